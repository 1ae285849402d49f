"""How the set-up behind a table of published figures and that of the run which repeats it differ. Pure.

A table is silent on most of what a trial's program is: whether XLA compiled it, how its gradients were reduced. What of
that is not as a sweep file has it that says nothing has a line of its own; the rest is one line, ALL_ELSE.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sweeps.analysis import APART, FINGERPRINTS, publication, reproduction
from sweeps.analysis.publication import PublishedRow, PublishedTable
from sweeps.analysis.reproduction import Cell, Held
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.spec import plan
from sweeps.spec.keys import SweepSpec
from sweeps.spec.rules import NEEDED_BY, OF_REDUCTION
from sweeps.spec.space import shown
from workers.contract import messages
from workers.contract.messages import TrialConfig

Likeness = Literal["same", "differs", "not stated", "by name only"]
USUAL = ("model", "batch_size", "precision", "data", "placement")  # told even where they are the same
PACKAGES = {"tensorflow": "TensorFlow", "horovod": "Horovod", "torch": "PyTorch"}
ALL_ELSE = "all else"
# Of a trial's settings those that have a line anyhow, and those that no step in the window sees.
HAVE_A_LINE = {*USUAL, "gpus", "device", "image_size", "arrangement", "framework"} | {
    *("warmup_steps", "measured_steps", "ci", "max_steps", "min_window", "seed", "repeat", "deadlines", "explain"),
    *("protocol", "epochs", "evaluate_every", "checkpoint_every", "target_top1", "target_top5", "targets"),
}
OF_FILES = ("decode_threads", "cache", "labels_from")
OF_A_NODE = 0.0  # worker_memory_gib
Facts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Aspect:
    """One part of both set-ups."""

    what: str
    published: str
    here: str
    likeness: Likeness


def aspects(
    table: PublishedTable,
    held: Sequence[Held],
    spec: SweepSpec,
    nodes: Iterable[Facts],
    cluster: SimulatedCluster | None,
) -> Iterator[Aspect]:
    """Yield the aspects of the rows that have a figure: the machine, the program, and every setting that the rows
    state."""
    nodes = tuple(nodes)
    done = [one for one in held if one.cell and not one.cell.why] or [one for one in held if one.cell]
    here = f"SIMULATED: {cluster.kind.what}" if cluster else _machines(nodes)
    yield _by_fingerprint("hardware", table, done, here, table.systems, bool(cluster))
    program = "SIMULATED: this project's model of step times" if cluster else _programs(nodes, done)
    yield _by_fingerprint("software", table, done, program, [row.framework for row in table.rows], bool(cluster))
    yield from _settings(table, done)
    yield _nodes(done)
    yield from _made_with(done)
    yield from _of_the_file(table, spec)


def _by_fingerprint(
    what: Literal["hardware", "software"],
    table: PublishedTable,
    done: Sequence[Held],
    here: str,
    names: Sequence[str],
    is_simulated: bool,
) -> Aspect:
    theirs = sorted({getattr(row, what) for row in table.rows} - {""})
    ours = sorted({digest for one in done if one.cell for digest in getattr(one.cell, what)})
    stated = ", ".join(dict.fromkeys([*filter(None, names), *theirs]))
    likeness: Likeness = "by name only"
    if not stated:
        likeness = "not stated"
    elif theirs and ours:
        likeness = "same" if theirs == ours else "differs"
    elif is_simulated:
        likeness = "differs"
    return Aspect(what, stated or "not stated", _joined(here, ours), likeness)


def _joined(words: str, digests: Sequence[str]) -> str:
    return f"{words} ({', '.join(digests)})" if words and digests else words or ", ".join(digests) or "nothing ran"


def _machines(nodes: Sequence[Facts]) -> str:
    """Say which machines there are: `2 nodes: 4 × Tesla V100-SXM2-16GB, Intel Xeon …`."""
    kinds = dict.fromkeys(_machine(node.get("hardware") or {}) for node in nodes)
    names = {node.get("node") for node in nodes}
    return f"{len(names)} node{'s' * (len(names) != 1)}: {'; '.join(kinds)}" if nodes else ""


def _machine(facts: Facts) -> str:
    gpus = [str(gpu.get("name", "GPU")) for gpu in facts.get("gpus") or ()]
    cpu = (facts.get("cpu") or {}).get("model", "")
    counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join([*counted, *([str(cpu)] if cpu else [])])


def _programs(nodes: Sequence[Facts], done: Sequence[Held]) -> str:
    """Return what the cells were computed with, by the nodes that hold it."""
    sides = dict.fromkeys(messages.SOFTWARE_OF[one.cell.config.framework] for one in done if one.cell)
    kinds = []
    for node, side in itertools.product(nodes, sides):
        packages = (node.get(side) or {}).get("packages") or {}
        kinds.append(", ".join(f"{said} {packages[name]}" for name, said in PACKAGES.items() if packages.get(name)))
    return "; ".join(dict.fromkeys(kind for kind in kinds if kind))


def _settings(table: PublishedTable, done: Sequence[Held]) -> Iterator[Aspect]:
    """Each axis that rows state, the usual ones where none does, and what else was not as it is where nobody asks."""
    cells = [(one.row, one.cell.config) for one in done if one.cell]
    for name in dict.fromkeys([*USUAL, *(name for row in table.rows for name in row.settings)]):
        pairs = [_pair(table, row, config, name) for row, config in cells]
        stated = [pair for pair in pairs if pair[0] is not None]
        if stated or name in USUAL:
            yield _aspect(name, stated or pairs)
    silent: dict[str, list[Silent]] = {}
    for row, config in cells:
        for one in _silent(table, row, config):
            silent.setdefault(one.name, []).append(one)
    for name, found in silent.items():
        if unusual := [one.words for one in found if not one.is_usual]:
            yield Aspect(name, "not stated", _several(unusual), "not stated")
    usual = {name: found for name, found in silent.items() if all(one.is_usual for one in found)}
    if usual:
        words = (f"{name} {_several(one.words for one in found)}" for name, found in usual.items())
        yield Aspect(ALL_ELSE, "not stated", ", ".join(words), "not stated")


def _pair(table: PublishedTable, row: PublishedRow, config: TrialConfig, name: str) -> tuple[Any, Any]:
    """Return what a row states of an axis, None where it doesn't, and what stood there."""
    here = plan.value(config, name)
    theirs = row.settings.get(name) if name not in table.unstated else None
    return (here if theirs is not None and _is_alike(config, name, theirs) else theirs), here


def _is_alike(config: TrialConfig, name: str, theirs: Any) -> bool:
    """Say whether a cell is as stated. What has no effect there is; so is another name for the same places."""
    if not _bears(config, name) or plan.value(config, name) == theirs:
        return True
    return name == "placement" and bool(config.arrangement) and messages.arranged(config.arrangement) == theirs


def _bears(config: TrialConfig, name: str) -> bool:
    """Say whether a setting has any effect at a cell."""
    if name in NEEDED_BY:
        return config.optimizer == NEEDED_BY[name]
    if name in OF_FILES:
        return messages.has_jpegs(config.data)
    if messages.AXES_OF.get(name, config.framework) != config.framework:
        return False
    if (name == "reduction" and config.xla) or (name in messages.OF_HOROVOD and config.framework != "tensorflow"):
        return False
    return config.gpus > 1 or name not in (*OF_REDUCTION, "placement")


@dataclasses.dataclass(frozen=True)
class Silent:
    """A setting that a row says nothing of, as it was here."""

    name: str
    here: Any
    is_usual: bool  # as it is where nobody sets it

    @property
    def words(self) -> str:
        if (self.name, self.here) == ("worker_memory_gib", OF_A_NODE):
            return "an equal part of the node's"
        return f"{self.here:g}" if isinstance(self.here, float) else _plain(self.here) or "not set"


def _silent(table: PublishedTable, row: PublishedRow, config: TrialConfig) -> Iterator[Silent]:
    """Yield the settings that no other line tells."""
    usual = _usual(config)
    covered = {*HAVE_A_LINE, "env", *({*row.settings, *table.settings} - table.unstated.keys())}
    for name in [*(field.name for field in dataclasses.fields(config)), *(f"env.{name}" for name in config.env)]:
        if name not in covered and _bears(config, name):
            here = plan.value(config, name)
            yield Silent(name, here, here == plan.value(usual, name))


def _usual(config: TrialConfig) -> TrialConfig:
    """Return the cell of a sweep file that names no more than it must."""
    space = {"batch_size": config.batch_size, "gpus": config.gpus}
    content = {"name": "x", "model": config.model, "data": config.data, "device": config.device, "space": space}
    spec = SweepSpec.model_validate(content)
    made = plan.cell_at(spec, {name: axis.points()[0] for name, axis in spec.axes.items()})
    assert isinstance(made, TrialConfig)
    return made


def unlike(table: PublishedTable, one: Held, spec: SweepSpec) -> list[str]:
    """Return what a row or its table states and was otherwise here; empty: the row is as printed."""
    assert one.cell
    row, config = one.row, one.cell.config
    stated = {name: theirs for name, theirs in row.settings.items() if name not in table.unstated}
    found = [name for name, theirs in stated.items() if not _is_alike(config, name, theirs)]
    found += ["nodes"] if _has_other_nodes(row, one.cell) else []
    found += reproduction.unlike(table, row, one.cell)
    found += ["steps"] if "steps" not in table.unstated and _steps(spec) != _steps(_as_stated(table, spec)) else []
    return found + [key for key, theirs in _of_all(table).items() if getattr(spec, key) != theirs]


def unstated(table: PublishedTable, one: Held) -> dict[str, str]:
    """Return what a row is silent on and was not here as it is where nobody sets it."""
    assert one.cell
    return {each.name: each.words for each in _silent(table, one.row, one.cell.config) if not each.is_usual}


def _has_other_nodes(row: PublishedRow, cell: Cell) -> bool:
    return None not in (row.nodes, cell.nodes) and row.nodes != cell.nodes


def _of_all(table: PublishedTable) -> dict[str, Any]:
    """Return what a table states of all of its rows, but for their steps."""
    return {key: value for key, value in table.settings.items() if "." not in key and key not in table.unstated}


def _nodes(done: Sequence[Held]) -> Aspect:
    return _aspect("nodes", [(one.row.nodes, one.cell.nodes) for one in done if one.cell])


def _made_with(done: Sequence[Held]) -> Iterator[Aspect]:
    """Yield the files that were read, and how ranks sat on nodes, where the table states them."""
    for side in APART:
        stated = [(getattr(one.row, side), one.cell) for one in done if one.cell and getattr(one.row, side)]
        if stated and side not in FINGERPRINTS:
            yield _aspect(side, [(theirs, ", ".join(getattr(cell, side)) or None) for theirs, cell in stated])


def _aspect(what: str, pairs: Sequence[tuple[Any, Any]]) -> Aspect:
    """Return an aspect from what each row states, if it does, and what stood there; the unlike pairs alone where there
    are some."""
    unlike = [(theirs, its) for theirs, its in pairs if None not in (theirs, its) and theirs != its]
    published, here = (_several(side) for side in zip(*(unlike or pairs), strict=True)) if pairs else ("", "")
    likeness: Likeness = "differs" if unlike else "same" if published and here else "not stated"
    return Aspect(what, published or "not stated", here or "nothing ran", likeness)


def _of_the_file(table: PublishedTable, spec: SweepSpec) -> Iterator[Aspect]:
    """Yield what holds for a whole sweep: its steps, device, image size and repeats, and what else the table states."""
    here = _steps(spec)
    there = "not stated" if "steps" in table.unstated else _steps(_as_stated(table, spec))
    yield Aspect("steps", there, here, "not stated" if "steps" in table.unstated else _likeness(there == here))
    stated = _of_all(table)
    for key in dict.fromkeys(("device", "image_size", *stated)):
        ours = getattr(spec, key)
        if key in stated:
            theirs = stated[key]
            yield Aspect(key, _words(theirs), _words(ours), _likeness(theirs == ours))
        else:
            yield Aspect(key, "not stated", _words(ours), "not stated")
    counts = sorted({row.repeats for row in table.rows} - {1})
    repeats = ", ".join(map(str, counts)) or "not stated"
    yield Aspect("repeats", repeats, str(spec.repeats), _likeness(counts == [spec.repeats]) if counts else "not stated")


def _likeness(is_same: bool) -> Likeness:
    return "same" if is_same else "differs"


def _as_stated(table: PublishedTable, spec: SweepSpec) -> SweepSpec:
    """Return the spec with the steps of the table in place of the sweep's."""
    content = publication.content_of(table.settings, {"model": "tiny", "batch_size": 1, "gpus": 1})
    stated = SweepSpec.model_validate({"name": spec.name, **content})
    return spec.model_copy(update={"steps": stated.steps, "stop": stated.stop})


def _steps(spec: SweepSpec) -> str:
    if spec.steps:
        return f"{spec.steps.warmup} + {spec.steps.measured}"
    return f"until ±{100 * spec.stop.ci:g}%, at most {spec.stop.max_steps}, window from {spec.stop.min_window}"


def _words(value: Any) -> str:
    return "auto: as each network was published" if value == "auto" else _plain(value)


def _plain(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else shown(value)


def _several(values: Iterable[Any]) -> str:
    found = list(dict.fromkeys(shown(value) for value in values if value is not None))
    return ", ".join(found)
