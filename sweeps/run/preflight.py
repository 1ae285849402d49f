"""What is asked before a sweep begins: are its data and variables there, and can the nodes hold its trials?"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.cluster.site import Late
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record.ledger import SweepFacts
from sweeps.run.terms import Setting, Terms
from sweeps.scheduling import growth
from sweeps.spec import arrangements, plan, program
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.text import caller
from workers.contract.messages import TrialConfig, has_jpegs

SOME = 200  # cells of a search that stand for all
NO_PACKAGE, WITHOUT_CUDA = "none", "+cpu"  # in place of a version, and at the end of torch's
SHARDS = "-*-of-*"  # as the files of a split are named


def check(spec: SweepSpec, place: str, terms: Terms) -> None:
    """Raise what is wrong with running this here."""
    check_simulated(spec, place, terms)
    mistakes = [*_missing_data(spec), *_missing_script(spec)] if not (terms.machine or terms.address) else []
    if mistakes:
        raise InputError(place, mistakes)


def check_simulated(spec: SweepSpec, place: str, terms: Terms) -> None:
    """Raise what of a sweep no cluster that is made up can run: code of the user's own, and a framework of whose pace
    nothing is known."""
    frameworks = spec.space.framework.points()
    if terms.machine and frameworks != ["tensorflow"]:
        rule = "can't be simulated with torch: the model of step times is fitted to TensorFlow's published ones alone"
        raise InputError(place, [Mistake("space.framework", rule, ", ".join(frameworks))])
    if terms.machine and (own := [spec.run] if spec.run else program.functions_of(spec)):
        key = "run" if spec.run else "model" if own[0] in spec.model.points() else "data"
        rule = "can't be simulated: nothing is known of a program before it has run"
        raise InputError(place, [Mistake(key, rule, own[0])])


def _missing_script(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield a sweep on this machine can tell at once that its script isn't there."""
    script = program.script_of(spec.run) if spec.run else ""
    if script and not Path(script).is_file():
        yield Mistake("run", f"must name a script that is there, from {Path.cwd()}", script)


def _missing_data(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield a mistake for each set of images that isn't there: a sweep on this machine can tell at once."""
    for data, split in _images(spec):
        if not any(Path(data).glob(f"{split}{SHARDS}")):
            classes = 1000 if spec.classes == "auto" else spec.classes
            asked = f"--images 512 --shards 4 --classes {classes} --split {split}"
            made = caller.command("data", "make", data, *asked.split())
            cure = f" (to make one: {made})" if spec.labels_from == 1 else ""  # what it makes counts from 1
            rule = f"must be synthetic, digits, MODULE:FUNCTION or a folder of TFRecords named {split}{SHARDS}{cure}"
            yield Mistake("data", rule, data)


def waits_for_nodes(planned: Plan, setting: Setting) -> bool:
    """Say whether nodes may come that its trials need; to a cluster that is made up none does."""
    return bool(not setting.terms.machine and planned.spec.wait_for_nodes_min and _refused(planned, setting))


def await_nodes(planned: Plan, setting: Setting) -> None:
    """Wait for what its trials need, as long as the file says."""
    if not waits_for_nodes(planned, setting):
        return
    give_up = time.monotonic() + 60 * (planned.spec.wait_for_nodes_min or 0)
    ranks = max(config.gpus for trials in _refused(planned, setting).values() for config in trials)
    setting.console.print(f"waiting for nodes that hold {ranks} ranks …", style="dim")
    while _refused(planned, setting) and time.monotonic() < give_up:
        setting.site.ask_for(_wanted(planned, setting))  # again and again: whoever keeps it may have been lost
        time.sleep(1.0)


def possible(planned: Plan, setting: Setting, begun: SweepFacts | None = None, late: Late = lambda: None) -> Plan:
    """Return the plan without the trials that the cluster can never hold; raises unless they may be skipped, and where
    its data or a variable isn't. Of a sweep that has begun, the nodes that a trial was planned for may come back: it
    waits for them, unless they are to be skipped now. What they could not hold either is skipped if it was to be at
    first."""
    refused = _refused(planned, setting)
    if needed := _needed(planned.spec):
        setting.console.print(f"asking every node for its {needed} …", style="dim")
    _check_data(planned.spec, setting, late)
    check_variables(planned.spec, setting, late)
    check_torch(planned.spec, setting, late)
    if not refused:
        return planned
    if begun and planned.nodes and not setting.terms.skips_impossible and _held(planned, planned.nodes):
        for why, those in refused.items():
            line = f"! {len(those)} trials wait for nodes to come back: {why}"
            setting.console.print(line, style="yellow")
        return planned
    check_nodes(planned.spec, setting.site.nodes, setting.place)
    if not (setting.terms.skips_impossible or (begun and begun.skips_impossible)):
        raise InputError(setting.place, impossible(refused))
    for why, those in refused.items():
        setting.console.print(f"! {len(those)} trials are skipped: {why}", style="yellow")
    out = {config.trial for those in refused.values() for config in those}
    left = tuple(config for config in planned.trials if config.trial not in out)
    if planned.trials and not left:
        raise InputError(setting.place, impossible(refused, "no trial is left: give it a cluster, or --set device=cpu"))
    possible = dataclasses.replace(planned, trials=left)
    if planned.spec.wait_for_nodes_min and left:
        setting.site.ask_for(_wanted(possible, setting))  # what did not come is wanted no more
    return possible


def check_nodes(spec: SweepSpec, nodes: Sequence[Node], place: str) -> None:
    """Refuse a cluster that no node has joined: no trial need be left out of a sweep for that."""
    if nodes:
        return
    waited = spec.wait_for_nodes_min
    when = f"in the {waited:g} min of its wait_for_nodes_min" if waited else "yet"
    cure = "longer" if waited else "for them: wait_for_nodes_min: 10 in its file"
    raise RefusedError(
        f"{place}: a cluster must have nodes that run trials, but none has joined this one {when}\n"
        f"  wait: after `ray up` it takes minutes, and `{caller.command('doctor', '--cluster')}` says who is missing;"
        f" or have the sweep wait {cure}"
    )


def _refused(planned: Plan, setting: Setting) -> dict[str, list[TrialConfig]]:
    """Return what the nodes that are there can't hold, by the reason."""
    return arrangements.check_capacity(planned.trials or some(planned), setting.site.nodes, planned.spec.max_nodes)


def _wanted(planned: Plan, setting: Setting) -> list[dict[str, float]]:
    """Return what a cluster that grows is to hold for its trials, as far as is known from the nodes that are there."""
    return growth.wanted(planned.trials or some(planned), setting.site.nodes, planned.spec.max_nodes)


def _held(planned: Plan, nodes: Sequence[Node]) -> bool:
    return not arrangements.check_capacity(planned.trials or some(planned), nodes, planned.spec.max_nodes)


def some(planned: Plan) -> tuple[TrialConfig, ...]:
    """Return some trials of a search that proposes its own."""
    spec, nodes = planned.spec, planned.nodes
    return tuple(plan.grid(spec, nodes) if plan.is_enumerable(spec) else plan.sample(spec, SOME, nodes))


def impossible(
    refused: dict[str, list[TrialConfig]], cure: str = "leave these out, or skip them with --skip-impossible"
) -> list[Mistake]:
    """Return what the cluster can't hold, a mistake for each reason."""

    def asked(trials: list[TrialConfig]) -> str:
        shapes = dict.fromkeys((trial.gpus, trial.placement) for trial in trials)
        return ", ".join(f"{gpus} as {placement}" for gpus, placement in sorted(shapes))

    return [Mistake("space.gpus", f"{why} ({cure})", asked(trials)) for why, trials in refused.items()]


def _needed(spec: SweepSpec) -> str:
    """Return what trials need of every node, in words."""
    asked = {"images": any(_images(spec)), "variables": spec.env_from, "torch": _has_torch(spec)}
    return " and ".join(name for name, is_needed in asked.items() if is_needed)


def _check_data(spec: SweepSpec, setting: Setting, late: Late) -> None:
    """Any node may be given any trial."""
    needed = {f"{data}/{split}{SHARDS}": data for data, split in _images(spec)}
    lacking = setting.site.without([*needed], late) if needed else {}
    mistakes = []
    for pattern, data in needed.items():
        if nodes := [node for node, patterns in lacking.items() if pattern in patterns]:
            files = pattern.removeprefix(f"{data}/")
            mistakes.append(Mistake("data", f"must hold {files} on every node, but not on {', '.join(nodes)}", data))
    if mistakes:
        raise InputError(setting.place, mistakes)


def check_variables(spec: SweepSpec, setting: Setting, late: Late) -> None:
    """Refuse a sweep whose nodes lack one of its variables: they would fail its trials."""
    lacking = setting.site.unset(spec.env_from, late) if spec.env_from else {}
    mistakes = []
    for name in spec.env_from:
        if nodes := [node for node, unset in lacking.items() if name in unset]:
            rule = f"must be set on every node where Ray is started, but not on {', '.join(nodes)}"
            mistakes.append(Mistake("env_from", rule, name))
    if mistakes:
        raise InputError(setting.place, mistakes)


def _has_torch(spec: SweepSpec) -> bool:
    return "torch" in spec.space.framework.points()


def check_torch(spec: SweepSpec, setting: Setting, late: Late) -> None:
    """Refuse a sweep of torch on nodes that have none, several versions of it, or on GPUs one without CUDA."""
    found: dict[str, list[str]] = {}
    for node, (version,) in setting.site.versions(["torch"], late).items() if _has_torch(spec) else ():
        found.setdefault(version, []).append(node)
    mistakes = []
    if lacking := found.pop(NO_PACKAGE, []):
        rule = f"torch must be installed on every node, but not on {', '.join(lacking)}: make setup TORCH=1 does it"
        mistakes.append(Mistake("space.framework", rule, "torch"))
    if len(found) > 1:
        said = ", ".join(f"{version} on {', '.join(nodes)}" for version, nodes in found.items())
        rule = "torch must be of one version on every node: make clean setup TORCH=1 installs the tested one"
        mistakes.append(Mistake("space.framework", rule, said))
    for version, nodes in found.items() if spec.device == "gpu" else ():
        if version.endswith(WITHOUT_CUDA):
            rule = f"torch must be built with CUDA for device: gpu, but is not on {', '.join(nodes)}"
            mistakes.append(Mistake("space.framework", f"{rule}: make clean setup GPU=1 TORCH=1", f"torch {version}"))
    if mistakes:
        raise InputError(setting.place, mistakes)


def _images(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    """Yield the folders that trials read, each with the split."""
    needed = ["train"] if spec.protocol == "throughput" else ["train", "validation"]
    return ((data, split) for data in spec.data.points() if has_jpegs(data) for split in needed)
