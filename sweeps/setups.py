"""How the set-up behind a table of published figures and that of the run which repeats it differ. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sweeps import plan, publication
from sweeps.errors import shown
from sweeps.publication import Table
from sweeps.reproduction import Held
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.spec import SweepSpec

Likeness = Literal["same", "differs", "not stated", "by name only"]
USUAL = ("model", "batch_size", "precision", "data", "placement")  # told even where they are the same
PACKAGES = {"tensorflow": "TensorFlow", "horovod": "Horovod"}
Facts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Aspect:
    """One part of both set-ups."""

    what: str
    published: str
    here: str
    likeness: Likeness


def aspects(
    table: Table, held: Sequence[Held], spec: SweepSpec, nodes: Iterable[Facts], cluster: SimulatedCluster | None
) -> Iterator[Aspect]:
    """Of the rows that have a figure: the machine, the program, and every setting that the rows state."""
    nodes = tuple(nodes)
    done = [one for one in held if one.cell and not one.cell.why] or [one for one in held if one.cell]
    here = f"SIMULATED: {cluster.kind.what}" if cluster else _machines(nodes)
    yield _by_fingerprint("hardware", table, done, here, table.systems)
    program = "SIMULATED: this project's model of step times" if cluster else _programs(nodes)
    yield _by_fingerprint("software", table, done, program, [row.framework for row in table.rows])
    yield from _settings(table, done)
    yield _nodes(done)
    yield from _of_the_file(table, spec)


def _by_fingerprint(
    what: Literal["hardware", "software"], table: Table, done: Sequence[Held], here: str, names: Sequence[str]
) -> Aspect:
    theirs = sorted({getattr(row, what) for row in table.rows} - {""})
    ours = sorted({digest for one in done if one.cell for digest in getattr(one.cell, what)})
    told = ", ".join(dict.fromkeys([*filter(None, names), *theirs]))
    likeness: Likeness = "by name only"
    if not told:
        likeness = "not stated"
    elif theirs and ours:
        likeness = "same" if theirs == ours else "differs"
    elif here.startswith("SIMULATED"):
        likeness = "differs"
    return Aspect(what, told or "not stated", _joined(here, ours), likeness)


def _joined(words: str, digests: Sequence[str]) -> str:
    return f"{words} ({', '.join(digests)})" if words and digests else words or ", ".join(digests) or "nothing ran"


def _machines(nodes: Sequence[Facts]) -> str:
    """`2 nodes: 4 × Tesla V100-SXM2-16GB, Intel Xeon …`"""
    kinds = dict.fromkeys(_machine(node.get("hardware") or {}) for node in nodes)
    names = {node.get("node") for node in nodes}
    return f"{len(names)} node{'s' * (len(names) != 1)}: {'; '.join(kinds)}" if nodes else ""


def _machine(facts: Facts) -> str:
    gpus = [str(gpu.get("name", "GPU")) for gpu in facts.get("gpus") or ()]
    cpu = (facts.get("cpu") or {}).get("model", "")
    counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join([*counted, *([str(cpu)] if cpu else [])])


def _programs(nodes: Sequence[Facts]) -> str:
    kinds = []
    for node in nodes:
        packages = (node.get("software") or {}).get("packages") or {}
        kinds.append(", ".join(f"{said} {packages[name]}" for name, said in PACKAGES.items() if packages.get(name)))
    return "; ".join(dict.fromkeys(kind for kind in kinds if kind))


def _settings(table: Table, done: Sequence[Held]) -> Iterator[Aspect]:
    """Each axis that rows state, and the usual ones where none does."""
    for name in dict.fromkeys([*USUAL, *(name for row in table.rows for name in row.settings)]):
        is_stated = name not in table.unstated
        pairs = [
            (one.row.settings.get(name) if is_stated else None, plan.value(one.cell.config, name))
            for one in done
            if one.cell
        ]
        aspect = _aspect(name, pairs)
        if name in USUAL or aspect.likeness == "differs":
            yield aspect


def _nodes(done: Sequence[Held]) -> Aspect:
    return _aspect("nodes", [(one.row.nodes, one.cell.nodes) for one in done if one.cell])


def _aspect(what: str, pairs: Sequence[tuple[Any, Any]]) -> Aspect:
    """Of what each row states, if it does, and what stood there; the unlike pairs alone where there are some."""
    unlike = [(theirs, its) for theirs, its in pairs if None not in (theirs, its) and theirs != its]
    published, here = (_several(side) for side in zip(*(unlike or pairs), strict=True)) if pairs else ("", "")
    likeness: Likeness = "differs" if unlike else "same" if published and here else "not stated"
    return Aspect(what, published or "not stated", here or "nothing ran", likeness)


def _of_the_file(table: Table, spec: SweepSpec) -> Iterator[Aspect]:
    """What holds for a whole sweep: its steps, device, image size and repeats, and what else the table states."""
    here = _steps(spec)
    there = "not stated" if "steps" in table.unstated else _steps(_as_stated(table, spec))
    yield Aspect("steps", there, here, "not stated" if "steps" in table.unstated else _likeness(there == here))
    for key in dict.fromkeys(("device", "image_size", *(key for key in table.settings if "." not in key))):
        ours = getattr(spec, key)
        if key in table.settings:
            theirs = table.settings[key]
            yield Aspect(key, _words(theirs), _words(ours), _likeness(theirs == ours))
        else:
            yield Aspect(key, "not stated", _words(ours), "not stated")
    counts = sorted({row.repeats for row in table.rows} - {1})
    told = ", ".join(map(str, counts)) or "not stated"
    yield Aspect("repeats", told, str(spec.repeats), _likeness(counts == [spec.repeats]) if counts else "not stated")


def _likeness(is_same: bool) -> Likeness:
    return "same" if is_same else "differs"


def _as_stated(table: Table, spec: SweepSpec) -> SweepSpec:
    """With the steps of the table in place of the sweep's."""
    content = publication.content_of(table.settings, {"model": "tiny", "batch_size": 1, "gpus": 1})
    stated = SweepSpec.model_validate({"name": spec.name, **content})
    return spec.model_copy(update={"steps": stated.steps, "stop": stated.stop})


def _steps(spec: SweepSpec) -> str:
    if spec.steps:
        return f"{spec.steps.warmup} + {spec.steps.measured}"
    return f"until ±{100 * spec.stop.ci:g}%, at most {spec.stop.max_steps}, window from {spec.stop.min_window}"


def _words(value: Any) -> str:
    return "auto: as each network was published" if value == "auto" else shown(value)


def _several(values: Iterable[Any]) -> str:
    found = list(dict.fromkeys(shown(value) for value in values if value is not None))
    return ", ".join(found)
