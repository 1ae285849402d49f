"""What a sweep file may say: its keys, with their types and defaults. Pure."""

from __future__ import annotations

import functools
import graphlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from sweeps.spec import expression, space
from sweeps.spec.expression import Expression
from sweeps.spec.fields import (
    MOST_GPUS,
    AxisOf,
    Bound,
    Ci,
    Classes,
    Conditions,
    Data,
    Goals,
    ImageSize,
    Lengths,
    Network,
    OwnAxis,
    PlacementPoint,
    Schedule,
    Seconds,
    Share,
    Short,
    Threads,
    Variable,
    Variables,
)
from sweeps.spec.space import Axis
from workers.contract import messages

OWN = "own."  # begins the name of an axis that a user's own code has
RANK: Mapping[messages.Device, str] = {"gpu": "GPU", "cpu": "rank"}  # what a rank is called in words
MOST_BATCH = 65536
MOST_TRIALS = 100_000

Method = Literal["grid", "random", "tpe", "asha", "frontier"]
ASHA_GOAL = "top1"  # that the built-in training is judged by
LOWER_IS_BETTER: tuple[str, ...] = ("gpu_hours_per_epoch", "hours_to_target")


def is_lower_better(goal: str) -> bool:
    return goal in LOWER_IS_BETTER or goal.startswith("min ")


def column_of(goal: str) -> str:
    """Return the column that a goal goes by: of what a script reports it says which way is better."""
    way, _, name = goal.partition(" ")
    if not name:
        return way
    return name if name in messages.REPORTED else f"{messages.OWN_FIGURE}{name}"


def as_written(axis: str) -> str:
    """Return an axis by the name that a sweep file has for it."""
    return axis.removeprefix(OWN)


class _Section(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


def _axis(default: Any, description: str) -> Any:
    """Return an axis that holds one point where the file says nothing."""
    return Field(space.Choice((default,)), description=description)


class Space(_Section):
    """What is varied: every combination of the axes' points is a cell. Code of the user's own may have others."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OwnAxis]

    batch_size: Annotated[space.Axis, AxisOf(Annotated[int, Field(ge=1, le=MOST_BATCH)])] | None = Field(
        None, description="images per rank and step"
    )
    global_batch: Annotated[space.Axis, AxisOf(Annotated[int, Field(ge=1, le=MOST_BATCH)])] | None = Field(
        None, description="images of all ranks per step, instead of batch_size; a rank has its equal part"
    )
    gpus: Annotated[space.Axis, AxisOf(Annotated[int, Field(ge=1, le=MOST_GPUS)])] = Field(
        description="ranks, one a GPU; on `device: cpu` each rank is a CPU slot"
    )
    placement: Annotated[space.Axis, AxisOf(PlacementPoint)] = _axis(
        "pack", "ranks on as few nodes as possible, on as many, or on so many nodes with so many on each: 2x4"
    )
    precision: Annotated[space.Axis, AxisOf(messages.Precision)] = _axis(
        "fp32", "number format of the arithmetic; weights stay fp32"
    )
    framework: Annotated[space.Axis, AxisOf(messages.Framework)] = _axis(
        "tensorflow", "what computes: TensorFlow whose ranks Horovod joins, or torch under DistributedDataParallel"
    )
    xla: Annotated[space.Axis, AxisOf(bool)] = _axis(False, "compile each step with XLA; tensorflow alone")
    compile: Annotated[space.Axis, AxisOf(bool)] = _axis(False, "compile the network by torch.compile; torch alone")
    channels_last: Annotated[space.Axis, AxisOf(bool)] = _axis(
        False, "weights and images in memory with their channels last; torch alone, TensorFlow's always are"
    )
    decode_threads: Annotated[space.Axis, AxisOf(Threads)] = _axis(
        "auto", "JPEG decoding threads per node, shared by its ranks"
    )
    cache: Annotated[space.Axis, AxisOf(messages.Cache)] = _axis(
        "any", "the data's pages on every node before a trial: dropped, read in, or left as they are"
    )
    lr_schedule: Annotated[space.Axis, AxisOf(Schedule)] = _axis("0.01", "the learning rate over the epochs")
    optimizer: Annotated[space.Axis, AxisOf(messages.Optimizer)] = _axis(
        "sgd", "sgd has momentum; adamw takes `momentum` as its beta1"
    )
    momentum: Annotated[space.Axis, AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(
        0.9, "what earlier gradients weigh in a step of SGD and LARS; AdamW's beta1"
    )
    beta2: Annotated[space.Axis, AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(0.999, "AdamW's beta2")
    trust: Annotated[space.Axis, AxisOf(Annotated[float, Field(gt=0, le=1)])] = _axis(
        0.001, "trust coefficient of LARS"
    )
    weight_decay: Annotated[space.Axis, AxisOf(Annotated[float, Field(ge=0, le=1)])] = _axis(
        1e-4, "how fast kernels shrink; biases and batch norm do not"
    )
    label_smoothing: Annotated[space.Axis, AxisOf(Annotated[float, Field(ge=0, lt=1)])] = _axis(
        0.0, "share of a label spread over all classes"
    )
    fusion_mib: Annotated[space.Axis, AxisOf(Annotated[float, Field(ge=0, le=4096)])] = _axis(
        128.0, "Horovod fuses tensors up to this size"
    )
    cycle_ms: Annotated[space.Axis, AxisOf(Annotated[float, Field(gt=0, le=10_000)])] = _axis(
        1.0, "how often Horovod looks for tensors to reduce"
    )
    response_cache: Annotated[space.Axis, AxisOf(Annotated[int, Field(ge=0, le=1 << 20)])] = _axis(
        1024, "responses Horovod remembers; 0: none"
    )
    compression: Annotated[space.Axis, AxisOf(messages.Compression)] = _axis(
        "none", "number format of gradients while they are reduced"
    )
    reduction: Annotated[space.Axis, AxisOf(messages.Reduction)] = _axis(
        "overlapped", "gradients are reduced as they appear, beside the backward pass; or all together after it"
    )
    env: dict[str, Annotated[space.Axis, AxisOf(Variable)]] = Field(
        {}, description="environment variables, each an axis: set before a rank starts, and recorded"
    )


class Search(_Section):
    """How the cells are found that are measured."""

    method: Method = Field("grid", description="every cell, or those that a method chooses")
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(
        None, description="cells that random and tpe draw; asha takes all where this is not given"
    )
    goal: Goals | None = Field(
        None, description="the figure that tpe makes best, or two; what asha goes by: of `run` also `min loss`, …"
    )
    axis: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="of frontier: the axis of your own code whose largest value that fits is looked for"
    )
    grace: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="epochs that asha gives every trial before it is judged"
    )
    reduction: Annotated[int, Field(ge=2, le=100)] = Field(
        3, description="at each rung of asha the best 1 in so many go on, to so many times the epochs"
    )


class Budget(_Section):
    """What a sweep may spend: nothing more is started once it is spent."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="GPU-hours that gangs hold, exclusive ones all of their nodes, also between trials; "
        "on `device: cpu` hours of slots",
    )


class Measure(_Section):
    """What tells the steps of a program that doesn't pass its batches through `sweeps.steps`."""

    lines: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="the regular expression of a line that it prints after each step"
    )
    lengths: Lengths | None = Field(
        None,
        description="two numbers of steps, handed over as {steps}: it runs for each, and their difference is timed",
    )


class Steps(_Section):
    warmup: Annotated[int, Field(ge=1, le=100_000)] = Field(10, description="steps before the window opens")
    measured: Annotated[int, Field(ge=2, le=1_000_000)] = Field(100, description="steps in the window")


class Stop(_Section):
    """A trial measures until its interval is narrow enough, or for so many steps."""

    ci: Ci = Field(0.01, description="half a 95% interval of the mean step time, as a part of it: 1% or 0.01")
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(500, description="steps at most, warm-up included")
    min_window: Annotated[int, Field(ge=20, le=1_000_000)] = Field(
        40, description="steps before the interval may stop a trial, once 228 steps in a row have been calm"
    )


class Target(_Section):
    """A trial stops once its validation has reached all of these; of `run` once it has reported as much, by any
    names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Bound]

    top1: Share | None = Field(None, description="share of the images of which the first guess is right")
    top5: Share | None = Field(None, description="share of the images of which one of the first five guesses is right")


class DeadlineKeys(_Section):
    """How long a trial's ranks may stand still before the trial is given up."""

    fork_server_s: Seconds = Field(
        messages.Deadlines.fork_server_s, description="until a node's fork server answers: it imports TensorFlow, once"
    )
    ring_s: Seconds = Field(messages.Deadlines.ring_s, description="until every rank has joined the ring")
    build_s: Seconds = Field(
        messages.Deadlines.build_s, description="until the first step is done; before it, between two looks at the data"
    )
    step_s: Seconds = Field(
        messages.Deadlines.step_s, description="between two steps, and to report or to write a checkpoint"
    )


class SweepSpec(_Section):
    """One sweep: what is trained, on what, and which axes are varied."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")] = Field(
        description="what the study is called: letters, digits and `._-`; its second sweep is NAME-2"
    )
    preset: Literal["short-test", "long-test"] | None = Field(
        None, description="short-test: 10 + 100 steps; long-test: 90 epochs as published"
    )
    protocol: messages.Protocol = Field("throughput", description="images/s in a window, or epochs to an accuracy")
    model: Annotated[space.Axis, AxisOf(Network)] = Field(
        space.Choice(("",)),
        description="the network, or MODULE:FUNCTION that gives yours; an axis too. Needed, unless there is `run`",
    )
    run: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="instead of a network: the command of a program of your own, with names of axes in braces"
    )
    ranks: messages.Joining = Field(
        "horovod", description="of `run`: how its ranks join; their environment is as that launcher leaves it"
    )
    items: Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)] | None = Field(
        None, description="of `run`: items of a step over all ranks, such as batch_size * gpus"
    )
    unit: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,30}$")] = Field("items", description="of `run`: what items are")
    fork: bool = Field(True, description="of `run`: a Python script starts where the framework is imported already")
    measure: Measure = Field(Measure(), description="of `run`: what tells its steps, if it doesn't use sweeps.steps")
    data: Annotated[space.Axis, AxisOf(Data)] = _axis(
        "synthetic",
        "`synthetic`, `digits`, a folder of ImageNet-convention TFRecords, or MODULE:FUNCTION that opens yours; an axis"
        " too",
    )
    device: messages.Device = Field(description="what a rank computes on; on `cpu` each has cores_per_worker cores")
    space: Space
    where: Conditions = Field((), description="cells where this does not hold are left out")
    search: Annotated[Search, Short("method")] = Field(Search(), description="a method, or a section")
    repeats: Annotated[int, Field(ge=1, le=100)] = Field(3, description="trials of each cell; with tpe and frontier 1")
    budget: Budget = Field(Budget(), description="what the sweep may spend")
    wait_for_nodes_min: Annotated[float, Field(ge=0)] | None = Field(
        None, description="how long to wait for nodes that a trial needs; else 0 for the first and 10 for those that go"
    )
    priority: Annotated[float, Field(ge=0.01, le=100)] = Field(
        1.0, description="its part of the GPU time where other sweeps run on the cluster: with 2 twice that of a 1"
    )
    max_nodes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="nodes that it uses at a time, at most; without it, all that are free"
    )
    steps: Steps | None = Field(None, description="exactly so many steps, instead of `stop`")
    stop: Stop = Field(Stop(), description="when a throughput trial has measured enough")
    explain: bool = Field(True, description="after the window, take parts of a step away to see what they cost")
    epochs: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="how long a convergence trial trains, at most"
    )
    evaluate_every: Annotated[int, Field(ge=1)] = Field(1, description="epochs between two validations")
    checkpoint_every: Annotated[int, Field(ge=0)] = Field(0, description="epochs between two checkpoints; 0: none")
    target: Target = Field(
        Target(),
        description="validation accuracy at which a trial stops; of `run` also what it reports: `loss: <= 0.5`",
    )
    image_size: ImageSize = Field("auto", description="side in pixels; auto: as the network was published")
    classes: Classes = Field("auto", description="auto: 10 for digits, else 1000")
    labels_from: Annotated[int, Field(ge=0, le=1)] = Field(
        1, description="the first class's label in the TFRecords: 1 in ImageNet's files, where 0 is the background"
    )
    emulate: bool = Field(False, description="run a precision that the device does not compute natively")
    isolation: messages.Isolation = Field(
        "exclusive", description="a trial has its nodes to itself, or shares them with others"
    )
    sample_every_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        1.0, description="how often each node's counters are read beside the trials; 0: never"
    )
    probe_every_min: Annotated[float, Field(ge=0)] = Field(
        60.0, description="how often a node is tested for 5 s before a trial, the first time at its first; 0: never"
    )
    cores_per_worker: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="on `device: cpu`, the cores that a rank computes with"
    )
    worker_memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="host memory of a rank, enforced; else an equal part of nearly all of the node's"
    )
    env_from: Variables = Field(
        (), description="environment variables that a rank has of its node: names alone, no value is recorded"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0,
        description="random draws follow from it: cells, order, weights, crops, dropout; a repeat adds its number",
    )
    deadlines: DeadlineKeys = DeadlineKeys()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_repeats(cls, raw: Any) -> Any:
        """Look at more cells rather than at one of them again, in a search that goes by what it has seen."""
        if not isinstance(raw, dict) or raw.get("repeats") is not None:
            return raw
        search = raw.get("search")
        method = search.get("method") if isinstance(search, dict) else search
        return {**raw, "repeats": 1 if method in ("tpe", "frontier") else 3}

    @functools.cached_property
    def axes(self) -> dict[str, Axis]:
        """Every axis, named as a trial's fields are; a variable of `env` is `env.NAME`, an axis of the
        user's own code `own.NAME`."""
        plain = {name: axis for name in AXES[2:] if (axis := getattr(self.space, name)) is not None}
        own = {f"{OWN}{name}": axis for name, axis in (self.space.model_extra or {}).items()}
        variables = {f"env.{name}": axis for name, axis in self.space.env.items()}
        return {"model": self.model, "data": self.data, **plain, **own, **variables}

    @property
    def targets(self) -> dict[str, str]:
        """What a program of `run` is to report, by names of its own."""
        return dict(self.target.model_extra or {})

    @property
    def has_target(self) -> bool:
        return bool(self.target.top1 or self.target.top5 or self.targets)

    @property
    def names(self) -> tuple[str, ...]:
        """What a condition may refer to."""
        return tuple(dict.fromkeys([*map(as_written, self.axes), "batch_size", "global_batch"]))

    @functools.cached_property
    def conditions(self) -> dict[str, Expression]:
        """The conditions by the axes that have one."""
        return {name: expression.condition(axis.when, self.names) for name, axis in self.axes.items() if axis.when}

    @functools.cached_property
    def constraints(self) -> tuple[Expression, ...]:
        """The conditions of `where`: all of them hold for a cell."""
        return tuple(expression.condition(text, self.names) for text in self.where)

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """The axes, each behind those that its condition refers to; raises `graphlib.CycleError`."""
        after: dict[str, list[str]] = {name: sorted(made.names) for name, made in self.conditions.items()}
        batch, follows = ("batch_size", "global_batch") if self.space.batch_size else ("global_batch", "batch_size")
        after[follows] = [batch, "gpus"]
        written = {as_written(name): name for name in self.axes}
        ordered = graphlib.TopologicalSorter({name: after.get(name, []) for name in self.names})
        return tuple(written[name] for name in ordered.static_order() if name in written)

    def default(self, axis: str) -> Any:
        """Return an axis' point where its condition does not hold: it is as if nobody had asked for it; a variable is
        not set."""
        if axis.startswith(("env.", OWN)):
            return None
        return (SweepSpec if axis in ("model", "data") else Space).model_fields[axis].default.points()[0]

    @property
    def counted(self) -> str:
        """What its rates count."""
        return self.unit if self.run else "images"

    @property
    def rate(self) -> str:
        """The column of its rates."""
        return f"{self.counted}_per_s"

    @property
    def frontier_axis(self) -> str:
        """The axis of which a frontier looks for the largest value that fits."""
        return f"{OWN}{self.search.axis}" if self.search.axis not in (None, "batch_size") else "batch_size"

    @property
    def frontier_word(self) -> str:
        """What readers call it."""
        return "batch" if self.frontier_axis == "batch_size" else as_written(self.frontier_axis)

    @property
    def goals(self) -> tuple[str, ...]:
        return self.search.goal or (("top1",) if self.protocol == "convergence" else ("images_per_s",))


AXES = ("model", "data", *(name for name in Space.model_fields if name != "env"))
