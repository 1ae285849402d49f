"""What must hold between the keys of a sweep file, and what a preset stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from sweeps.errors import Mistake
from sweeps.spec import conditions, program
from sweeps.spec.keys import OWN, SweepSpec, as_written
from sweeps.spec.space import Uniform
from workers.contract import messages, schedules
from workers.contract.messages import IMAGE_SIZES, UNREAD_VARIABLES, has_jpegs, nodes_by_ranks
from workers.contract.spelling import did_you_mean

PRESETS: dict[str, dict[str, Any]] = {
    "short-test": {"protocol": "throughput", "steps": {"warmup": 10, "measured": 100}},
    "long-test": {
        "protocol": "convergence",
        "epochs": 90,
        "space": {
            "optimizer": "sgd",
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "lr_schedule": "0.4;10;0.04;60;0.004",
        },
    },
}
DIGITS_CLASSES = 10
FEWEST_STEPS = 30
OF_REDUCTION = ("fusion_mib", "cycle_ms", "response_cache", "compression", "reduction")
NEEDED_BY = {"trust": "lars", "beta2": "adamw"}  # a setting of one optimiser only
OWN_VARIABLES = {  # of the environment: who sets them
    "HOROVOD_FUSION_THRESHOLD": "the axis fusion_mib",
    "HOROVOD_CYCLE_TIME": "the axis cycle_ms",
    "HOROVOD_CACHE_CAPACITY": "the axis response_cache",
    "CUDA_VISIBLE_DEVICES": "the placement",
    "CUDA_DEVICE_ORDER": "the placement",
    **{f"HOROVOD_{name}": "the placement" for name in ("RANK", "SIZE", "HOSTNAME", "CONTROLLER", "CPU_OPERATIONS")},
    **{f"HOROVOD_{scope}_{name}": "the placement" for scope in ("LOCAL", "CROSS") for name in ("RANK", "SIZE")},
    **{f"HOROVOD_GLOO_{name}": "the placement" for name in ("IFACE", "RENDEZVOUS_ADDR", "RENDEZVOUS_PORT")},
}
REFUSED_VARIABLES = {
    **dict.fromkeys(UNREAD_VARIABLES, "has no effect: Horovod reads it only if built with MPI"),
    "HOROVOD_AUTOTUNE": "must be left out: Horovod would change fusion_mib and cycle_ms while steps are measured",
}
ASHA_CANNOT = ("images_per_s", "gpu_hours_per_epoch", "hours_to_target")
NCCL_ALONE = "HOROVOD_TORUS_ALLREDUCE"


def fill_in_preset(content: dict[str, Any]) -> list[Mistake]:
    """Put a preset's keys into a file's; those that the file sets otherwise are mistakes."""
    name = content.get("preset")
    if not isinstance(name, str) or name not in PRESETS:
        return []
    return list(_fill_in(content, PRESETS[name], name, ""))


def _fill_in(content: dict[str, Any], preset: dict[str, Any], name: str, prefix: str) -> Iterator[Mistake]:
    for key, value in preset.items():
        given = content.get(key)
        if isinstance(value, dict) and isinstance(given, dict):
            yield from _fill_in(given, value, name, f"{prefix}{key}.")
        elif given not in (None, value):
            yield Mistake(f"{prefix}{key}", f"preset {name} fixes this at {value}: leave out one of the two", given)
        else:
            content[key] = dict(value) if isinstance(value, dict) else value


@dataclasses.dataclass(frozen=True)
class KeyRule:
    """Something that must hold between keys; it is not asked where one of them is wrong already. No keys: all."""

    keys: tuple[str, ...]
    broken: Callable[[SweepSpec], Iterator[Mistake]]


def broken(spec: SweepSpec, wrong: set[str]) -> list[Mistake]:
    """Every rule that does not hold, but for those about keys that are wrong already."""

    def is_sound(rule: KeyRule) -> bool:
        if not rule.keys:
            return not wrong
        return not any(at == key or at.startswith((f"{key}.", f"{key}[")) for key in rule.keys for at in wrong)

    return [mistake for rule in filter(is_sound, RULES) for mistake in rule.broken(spec)]


def _protocol(spec: SweepSpec) -> Iterator[Mistake]:
    of = {
        "throughput": ("steps", "stop", "explain"),
        "convergence": ("epochs", "evaluate_every", "checkpoint_every", "target"),
    }
    for protocol, keys in of.items():
        for key in keys:
            if key in spec.model_fields_set and protocol != spec.protocol:
                given = getattr(spec, key)
                shown = given.model_dump(exclude_none=True) if hasattr(given, "model_dump") else given
                yield Mistake(key, f"belongs to protocol: {protocol}, this sweep's is {spec.protocol}", shown)


def _steps(spec: SweepSpec) -> Iterator[Mistake]:
    if spec.steps and "stop" in spec.model_fields_set:
        yield Mistake("stop", "must be left out beside steps, which says how many there are", spec.stop.model_dump())
    if spec.stop.max_steps < FEWEST_STEPS:
        rule = f"must be at least {FEWEST_STEPS}: 10 of warm-up and 20 to tell an interval from"
        yield Mistake("stop.max_steps", rule, spec.stop.max_steps)


def _convergence(spec: SweepSpec) -> Iterator[Mistake]:
    if spec.protocol != "convergence":
        return
    if spec.epochs is None:
        yield Mistake("epochs", "must be given with protocol: convergence", None)
    for data in () if spec.run else spec.data.points():
        if data == "synthetic":
            rule = "must be digits or a folder with protocol: convergence: random images can't be learned"
            yield Mistake("data", rule, data)


def _warmup(spec: SweepSpec) -> Iterator[Mistake]:
    for text in spec.space.lr_schedule.points():
        warmup = schedules.parse(text).warmup
        if spec.epochs and warmup >= spec.epochs:
            yield Mistake("space.lr_schedule", f"warmup must be shorter than the run of {spec.epochs} epochs", text)


def _image_size(spec: SweepSpec) -> Iterator[Mistake]:
    for model in spec.model.points() if "model" in spec.model_fields_set else ():
        smallest = IMAGE_SIZES.get(model, (0, 0))[0]  # of the user's own nobody knows
        if spec.image_size != "auto" and spec.image_size < smallest:
            yield Mistake("image_size", f"must be at least {smallest} for {model}", spec.image_size)


def _classes(spec: SweepSpec) -> Iterator[Mistake]:
    if "digits" in spec.data.points() and spec.classes != "auto" and spec.classes < DIGITS_CLASSES:
        yield Mistake("classes", "must be at least 10 for digits", spec.classes)


def _without_effect(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield the axes that are varied although nothing depends on them: they would give equal cells different names."""
    optimizers = spec.space.optimizer.points()
    for axis, optimizer in NEEDED_BY.items():
        if axis in spec.space.model_fields_set and optimizer not in optimizers:
            yield Mistake(f"space.{axis}", f"has no effect without optimizer: {optimizer}", ", ".join(optimizers))
    reductions = spec.space.reduction.points()
    is_xla_alone = all(spec.space.xla.points()) and spec.space.framework.points() == ["tensorflow"]
    if is_xla_alone and reductions != [spec.default("reduction")]:
        rule = "has no effect with xla: on alone, whose one operation gives all gradients at once"
        yield Mistake("space.reduction", rule, ", ".join(reductions))
    if not any(map(has_jpegs, spec.data.points())):
        given = ", ".join(spec.data.points())
        if len(spec.space.decode_threads.points()) > 1:
            rule = "has no effect where no JPEG is decoded: data must be a folder"
            yield Mistake("space.decode_threads", rule, given)
        if spec.space.cache.points() != ["any"]:
            yield Mistake("space.cache", "has no effect where no file is read: data must be a folder", given)
        if "labels_from" in spec.model_fields_set:
            yield Mistake("labels_from", "has no effect where no file is read: data must be a folder", given)


def _frameworks(spec: SweepSpec) -> Iterator[Mistake]:
    """Yield what one framework has, and none that the sweep names."""
    there = spec.space.framework.points()
    if spec.run:
        if "framework" in spec.space.model_fields_set:
            rule = "belongs to the built-in training: the program of `run` imports what it likes"
            yield Mistake("space.framework", rule, ", ".join(there))
        return
    for axis, owner in (messages.AXES_OF | dict.fromkeys(messages.OF_HOROVOD, "tensorflow")).items():
        if owner not in there and axis in spec.space.model_fields_set:
            yield Mistake(f"space.{axis}", f"has no effect without framework: {owner}", ", ".join(there))
    for name in spec.space.env:
        if name.startswith("HOROVOD_") and "tensorflow" not in there:
            yield Mistake(f"space.env.{name}", "has no effect without framework: tensorflow", ", ".join(there))


def _environment(spec: SweepSpec) -> Iterator[Mistake]:
    of_axes = [("space.env", f"space.env.{name}", name) for name in spec.space.env]
    for key, place, name in [*of_axes, *(("env_from", "env_from", name) for name in spec.env_from)]:
        if not name.isidentifier() or not name.isascii():
            yield Mistake(key, "the name of a variable must be letters, digits and '_'", name)
        elif name in OWN_VARIABLES:
            yield Mistake(place, f"is set by {OWN_VARIABLES[name]}", name)
        elif name in REFUSED_VARIABLES:
            yield Mistake(place, REFUSED_VARIABLES[name], name)
        elif name == NCCL_ALONE and spec.device == "cpu":
            yield Mistake(place, "has no effect on device: cpu: only NCCL reduces so", name)
        elif key == "env_from" and name in spec.space.env:
            yield Mistake(place, "must be left out of one of the two, space.env and env_from", name)


def _batch(spec: SweepSpec) -> Iterator[Mistake]:
    axes = spec.space
    if axes.batch_size is None and axes.global_batch is None and not spec.run:
        yield Mistake("space.batch_size", "must be given", None)
    if axes.batch_size is not None and axes.global_batch is not None:
        yield Mistake(
            "space.global_batch", "must be left out beside batch_size: one follows from the other", axes.global_batch
        )
    elif axes.global_batch and not isinstance(axes.global_batch, Uniform) and not isinstance(axes.gpus, Uniform):
        for batch in axes.global_batch.points():
            if all(batch % gpus for gpus in axes.gpus.points()):
                yield Mistake("space.global_batch", f"must be a multiple of gpus: one of {axes.gpus}", batch)


def _placement(spec: SweepSpec) -> Iterator[Mistake]:
    gpus = spec.space.gpus
    for placement in spec.space.placement.points():
        if form := nodes_by_ranks(placement):
            ranks = form[0] * form[1]
            if gpus.settled(ranks) != ranks if isinstance(gpus, Uniform) else ranks not in gpus.points():
                yield Mistake("space.placement", f"must hold as many ranks as gpus: one of {gpus}", placement)


def _search(spec: SweepSpec) -> Iterator[Mistake]:
    search, given = spec.search, spec.search.model_fields_set
    of = {
        "trials": ("random", "tpe", "asha"),
        "goal": ("tpe", "asha"),
        "grace": ("asha",),
        "reduction": ("asha",),
        "axis": ("frontier",),
    }
    for key, methods in of.items():
        if key in given and search.method not in methods:
            rule = f"belongs to method: {', '.join(methods)}, this sweep's is {search.method}"
            yield Mistake(f"search.{key}", rule, getattr(search, key))
    if search.method in ("random", "tpe") and search.trials is None:
        yield Mistake("search.trials", f"must be given with method: {search.method}: how many cells to measure", None)
    if search.method not in ("random", "tpe"):
        for name, axis in spec.axes.items():
            if isinstance(axis, Uniform):
                rule = f"must be a list with search: {search.method}: random and tpe alone draw from an interval"
                yield Mistake(conditions.key(name), rule, axis)


def _asha(spec: SweepSpec) -> Iterator[Mistake]:
    if spec.search.method != "asha":
        return
    if spec.protocol != "convergence":
        rule = "asha must have protocol: convergence: it stops trials between their epochs"
        yield Mistake("search", rule, spec.protocol)
    elif spec.epochs and spec.search.grace >= spec.epochs:
        yield Mistake("search.grace", f"must be fewer epochs than the run of {spec.epochs}", spec.search.grace)
    if spec.protocol == "convergence" and (len(spec.goals) > 1 or spec.goals[0] in ASHA_CANNOT):
        rule = "must be one figure that each epoch has: top1, or of `run` `min NAME` or `max NAME`"
        yield Mistake("search.goal", rule, ", ".join(spec.goals))


def _frontier(spec: SweepSpec) -> Iterator[Mistake]:
    if spec.search.method != "frontier":
        return
    axis, name = spec.axes.get(spec.frontier_axis), spec.search.axis or "batch_size"
    own = [one for one in map(as_written, spec.axes) if f"{OWN}{one}" in spec.axes]
    if name != "batch_size" and not axis:
        known = ["batch_size", *own]
        yield Mistake("search.axis", f"must be batch_size, or an axis of your own{did_you_mean(name, known)}", name)
    elif not axis or not axis.is_varied:
        other = f"; or search.axis must name another ({', '.join(own)})" if own and not spec.search.axis else ""
        rule = f"frontier must have several points of {name}: it looks for the largest that fits{other}"
        yield Mistake("search", rule, axis or "none")
    elif not isinstance(axis, Uniform) and (odd := [at for at in axis.points() if type(at) is not int]):
        rule = f"must be an axis of whole numbers, of which a larger one takes more memory, but {name} has others"
        yield Mistake("search.axis", rule, odd[0])
    elif axis.when:
        yield Mistake(f"{conditions.key(spec.frontier_axis)}.when", "must be left out of a frontier's axis", axis.when)
    if spec.repeats != 1:
        yield Mistake("repeats", "must be 1 with search: frontier: what does not fit once does not fit", spec.repeats)


def _goal(spec: SweepSpec) -> Iterator[Mistake]:
    for goal in spec.search.goal or ():
        if spec.run and goal in ("top1", "gpu_hours_per_epoch"):
            rule = "must be images_per_s, hours_to_target, or a figure that it reports: `min NAME`, `max NAME`"
            yield Mistake("search.goal", rule, goal)
        elif goal in ("top1", "hours_to_target") and spec.protocol != "convergence":
            yield Mistake("search.goal", f"{goal} must have protocol: convergence", spec.protocol)
        elif goal == "hours_to_target" and not spec.has_target:
            yield Mistake("search.goal", "hours_to_target must have a target", "none")


RULES = (
    KeyRule(
        ("model", "run", "space", "items", "measure", "search", "protocol", "epochs", "steps", "stop", "target"),
        program.mistakes,
    ),
    KeyRule(("space.batch_size", "space.global_batch", "space.gpus"), _batch),
    KeyRule(("space.placement", "space.gpus"), _placement),
    KeyRule(("search",), _search),
    KeyRule(("search", "protocol", "epochs"), _asha),
    KeyRule(("search", "repeats", "space"), _frontier),
    KeyRule(("search", "protocol", "target"), _goal),
    KeyRule(("space.env", "where"), conditions.unreadable),
    KeyRule((), conditions.untenable),
    KeyRule(
        ("protocol", "steps", "stop", "explain", "epochs", "evaluate_every", "checkpoint_every", "target"), _protocol
    ),
    KeyRule(("steps", "stop"), _steps),
    KeyRule(("protocol", "epochs", "data"), _convergence),
    KeyRule(("epochs", "space.lr_schedule"), _warmup),
    KeyRule(("model", "image_size"), _image_size),
    KeyRule(("data", "classes"), _classes),
    KeyRule(
        (
            *("data", "device", "labels_from"),
            *("space.optimizer", "space.decode_threads", "space.cache"),
            *("space.framework", "space.xla", "space.reduction"),
        ),
        _without_effect,
    ),
    KeyRule(("run", "space.framework", "space.env"), _frameworks),
    KeyRule(("space.env", "env_from"), _environment),
)
