"""What the control plane and the data plane say to each other. Standard library only.

`TrialConfig` goes down to the ranks; `Measurement` and `TrialOutcome` come back. Each is a frozen value with a
JSON form (`to_json`, `from_json`), because that is how they cross processes, hosts and days.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

Device = Literal["cpu", "gpu"]
Protocol = Literal["throughput", "convergence"]
Placement = str  # pack, spread or NODESxRANKS: see `nodes_by_ranks`
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Optimizer = Literal["sgd", "lars", "adamw"]
Cache = Literal["any", "cold", "warm"]
Isolation = Literal["exclusive", "shared"]
Compression = Literal["none", "fp16"]
Reduction = Literal["overlapped", "grouped"]
Framework = Literal["tensorflow", "torch"]
Strategy = Literal["horovod", "mirrored", "multi_worker", "ddp"]
Joining = Literal["horovod", "torchrun", "mpi", "none"]  # what a script's ranks find in their environment
Scalar = str | int | float | bool  # a value of an axis that a user's own code has
# What a step is taken without, to see what it costs. Without `compute` it is its reduction alone.
Without = Literal["nothing", "input", "comm", "both", "compute"]
DecodeThreads = int | Literal["auto"]
Status = Literal["completed", "infeasible", "failed", "lost", "pruned", "cancelled"]
Model = Literal[
    "alexnet",
    "googlenet",
    "inception_v3",
    "inception_v4",
    "vgg16",
    "vgg19",
    "resnet50",
    "resnet50_v1.5",
    "resnet101",
    "resnet152",
    "tiny",
]

FIRST_STRATEGY: dict[Framework, Strategy] = {"tensorflow": "horovod", "torch": "ddp"}
SOFTWARE_OF: dict[Framework, str] = {"tensorflow": "software", "torch": "torch_software"}  # as a node tells of it
AXES_OF: dict[str, Framework] = {"xla": "tensorflow", "compile": "torch", "channels_last": "torch"}
OF_HOROVOD = ("fusion_mib", "cycle_ms", "response_cache")  # axes that nothing else reads

# The smallest image side that a network takes (32 at least), and the side that it was published with.
IMAGE_SIZES: dict[str, tuple[int, int]] = {
    "alexnet": (63, 224),
    "googlenet": (32, 224),
    "inception_v3": (75, 299),
    "inception_v4": (75, 299),
    "vgg16": (32, 224),
    "vgg19": (32, 224),
    "resnet50": (32, 224),
    "resnet50_v1.5": (32, 224),
    "resnet101": (32, 224),
    "resnet152": (32, 224),
    "tiny": (32, 32),
}

WITHOUT_JPEGS = ("synthetic", "digits")  # data of ours that nothing has to decode
OWN_FUNCTION = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"  # MODULE:FUNCTION

MOST_RANKS = 1024
OF_A_FRAMEWORK = ("framework", "strategy", "compile", "channels_last")
# Fields of a trial that do not name its cell where they are empty, so that the cells of older sweeps keep their names.
LATER_FIELDS = ("arrangement", "env_from", "script", "own", "targets", *OF_A_FRAMEWORK)
REPORTED = ("loss", "top1", "top5")  # figures that a script tells by the names of the built-in training's
BOUNDS = {"<=": operator.le, ">=": operator.ge}  # of figures that a script is to come to
OWN_FIGURE = "reported."  # begins the name of any other that it tells
UNKNOWN = "unknown"  # in place of the digest of a node that has not said it, beside others'
CALM_STEPS = 228  # that windows show before a short one is believed: a stall of 1 in 50 is absent from so many 1 in 100
LENT = 3  # short windows that may follow before calm has to be shown anew
UNREAD_VARIABLES = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")  # Horovod here has no MPI
ROUNDS = 6  # in which parts of a step are taken away by turns

# A rank's life, in order. A rank that stays in one phase longer than the phase's deadline is stalled.
Phase = Literal["start", "ring", "count", "build", "step", "evaluate", "explain", "finish"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long a gang may stand still before its trial is given up, in seconds."""

    fork_server_s: float = 300.0  # until the node's fork server answers: it imports TensorFlow from a cold disk, once
    ring_s: float = 60.0  # until every rank has joined the ring
    build_s: float = (
        600.0  # until the first step is done: tracing and compiling; before it, between two looks at the data
    )
    step_s: float = 60.0  # between two steps, and for reporting or writing a checkpoint

    def for_phase(self, phase: Phase) -> float:
        limits: dict[Phase, float] = {
            "start": self.ring_s,
            "ring": self.ring_s,
            "count": self.build_s,
            "build": self.build_s,
        }
        return limits.get(phase, self.step_s)


# How the steps of a script become known.
TOLD_STEPS = (
    "pass its batches through sweeps.steps(loader, items=…), train by Keras' fit, or print the lines that measure.lines"
    " names"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """A user's own program, as what a trial's ranks do."""

    run: str  # the command, with the names of axes in braces
    ranks: Joining
    items: int  # of one step, over all ranks; 0: the script says
    unit: str  # what these are
    fork: bool  # a Python script runs in a fork of the node's fork server, which has imported the framework
    lines: str = ""  # the pattern of a line that it prints after each step; empty: it says its steps otherwise
    lengths: tuple[int, ...] = ()  # two numbers of steps that it is run for, whose difference gives the time of one


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """All that a gang of ranks needs to know about its trial."""

    protocol: Protocol
    model: str  # a `Model`, or MODULE:FUNCTION of the user's; of a script, its name
    data: str  # `synthetic`, `digits`, a folder of ImageNet-convention TFRecords, or MODULE:FUNCTION of the user's
    device: Device
    gpus: int  # ranks; on the CPU each is a slot of `cores_per_worker` cores
    batch_size: int  # per rank
    placement: Placement
    precision: Precision
    emulate: bool  # take a precision that the device does not compute natively
    xla: bool
    decode_threads: DecodeThreads  # per node, shared by the node's ranks
    image_size: int
    classes: int
    labels_from: int  # the first class's label in the TFRecords, 0 or 1
    cache: Cache  # the data's pages in memory, before the trial
    isolation: Isolation
    cores_per_worker: int
    worker_memory_gib: float  # of the host, per rank; 0: an equal part of nearly all
    # how it learns
    lr_schedule: str  # see `schedules`
    optimizer: Optimizer
    momentum: float  # AdamW's beta1
    beta2: float  # AdamW only
    trust: float  # LARS only
    weight_decay: float
    label_smoothing: float
    # how the ranks talk
    fusion_mib: float
    cycle_ms: float
    response_cache: int
    compression: Compression
    reduction: Reduction  # each gradient as it appears, or all once the last one has
    env: Mapping[str, str]  # set before the rank starts; is recorded
    # throughput
    warmup_steps: int  # at least
    measured_steps: int  # exactly; 0: until the interval is as narrow as `ci`, or `max_steps` are done
    ci: float  # half of the 95% interval of a step's mean time, relative to it
    max_steps: int  # warm-up included
    min_window: int  # steps before the interval may stop a trial
    explain: bool  # after the window, take parts of a step away to see what they cost
    # convergence
    epochs: int
    evaluate_every: int  # epochs
    checkpoint_every: int  # epochs; 0: never
    target_top1: float  # stops once reached; 0: no target
    target_top5: float
    seed: int
    repeat: int = 0
    deadlines: Deadlines = Deadlines()
    # Ranks on each node, the fullest first, as the plan for a cluster has it; empty where none was planned for.
    arrangement: tuple[int, ...] = ()
    env_from: tuple[str, ...] = ()  # variables that a rank has of its node; their values are not recorded
    script: Script | None = None  # instead of training a network of ours
    own: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)  # by the names of the axes of the user's code
    targets: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of what a script reports: `<= 0.5`, by name
    framework: Framework = "tensorflow"
    strategy: Strategy | Literal[""] = ""  # that joins its ranks; empty: the framework's first
    compile: bool = False  # the network, by torch.compile
    channels_last: bool = False  # of torch, whose networks have their channels first

    @functools.cached_property
    def cell(self) -> str:
        """The content of the cell, as a short name: equal for the repeats of one cell and for nothing else."""
        content = {k: v for k, v in to_json(self).items() if k not in ("repeat", "deadlines")}
        for name in LATER_FIELDS:
            if not content[name] or content[name] == "tensorflow":
                del content[name]
        if content.get("script") and not content["script"]["lengths"]:
            del content["script"]["lengths"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @functools.cached_property
    def trial(self) -> str:
        return f"{self.cell}-{self.repeat}"

    @property
    def joined_by(self) -> Strategy:
        """What joins its ranks."""
        return self.strategy or FIRST_STRATEGY[self.framework]

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.gpus

    @property
    def own_code(self) -> str:
        """The code of its user's own that it measures, by what the sweep file names; empty where all is ours."""
        is_users = self.script or is_own(self.model) or is_own(self.data)
        return f"{self.model} on {self.data}" if is_users else ""

    @property
    def items(self) -> int:
        """Of a step over all ranks; 0 where only a user's program knows."""
        return self.script.items if self.script else self.global_batch

    @property
    def repeat_seed(self) -> int:
        """Repeats of a cell draw different numbers, the same ones each time they are run."""
        return self.seed + self.repeat

    @property
    def steps(self) -> int:
        """The steps of a throughput trial, at most."""
        return self.warmup_steps + self.measured_steps if self.measured_steps else self.max_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One measured step of one rank."""

    step: int
    step_ms: float
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Which steps of a throughput trial count, and how sure their mean is: as the first rank has seen them."""

    warmup_steps: int
    stopped_by: Literal["steps", "interval", "max_steps", "script", "lengths"]
    half_width_ms: float | None  # of the 95% interval of the mean step time; None where it is withheld
    withheld: str = ""  # why it is: no width would make it true


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One epoch of a convergence trial, over all ranks; the first is 1. Accuracies where it was validated.

    Of a user's script it is what `sweeps.report` was told once; what it was not told is not a number, or None.
    """

    epoch: int
    images: int
    loss: float  # mean over the epoch's images, each before the step that it belongs to
    rate: float  # learning rate of its last step
    train_s: float  # from a barrier of all ranks to the next
    evaluate_s: float = 0.0
    checkpoint_s: float = (
        0.0  # before it: writing a checkpoint since the last epoch, or reading the one it goes on from
    )
    top1: float | None = None
    top5: float | None = None
    own: Mapping[str, float] = dataclasses.field(default_factory=dict)  # a script's other figures, by its names
    code: str = ""  # of the user's own that it comes from, the same for all cells until it is edited

    @property
    def figures(self) -> dict[str, float]:
        """What it came to, by column: the names of the built-in training's, and `reported.NAME` of a script's other
        ones."""
        built_in = {name: figure for name in REPORTED if (figure := getattr(self, name)) is not None}
        known = {name: figure for name, figure in built_in.items() if not (name == "loss" and math.isnan(figure))}
        return known | {f"{OWN_FIGURE}{name}": figure for name, figure in self.own.items()}

    @property
    def taken_s(self) -> float:
        """All that `hours_to_target` holds of it."""
        return self.checkpoint_s + self.train_s + self.evaluate_s


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a rank has come."""

    phase: Phase
    step: int
    epoch: EpochRecord | None = None  # the last that it has finished
    note: str = ""  # what its user should know at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank measured. `window_s` runs from a barrier of all ranks to the next."""

    rank: int
    images: int
    window_s: float
    window_at: tuple[float, float] = (0.0, 0.0)  # wall clock, from its begin to its end
    read_mib: float = 0.0  # that this rank's process had from disks, from opening its data to the end of the window
    allreduce_mib_per_s: float = 0.0  # of a known tensor, after the window; 0 for a rank alone
    pinned: str = ""  # cores of the rank and of its decode threads, read back; empty where they may run anywhere
    pinning_note: str = ""  # why they may, or what of the cores was not known
    steps: tuple[StepRecord, ...] = ()  # throughput
    window: Window | None = None  # of the first rank
    # steps after the window, round by round
    without_ms: Mapping[Without, tuple[tuple[float, ...], ...]] = dataclasses.field(default_factory=dict)
    epochs: tuple[EpochRecord, ...] = ()  # convergence; and whatever a script has reported
    reached_target: bool = False
    begun_anew: str = ""  # why, although there was a checkpoint
    gone_on_from: int = 0  # epochs of the checkpoint that the trial went on from: an earlier attempt's
    entered_at: float  # wall clock of its node, when the rank stood in the loop with its framework and ring ready
    launch_s: float | None = None  # until then, from when its node was told of the rank; None of earlier versions
    build_s: float
    peak_memory_mib: float
    peak_device_memory_mib: float = 0.0  # of its GPU, from its start to the end of the window; 0 without one
    parameters: int
    flops: int  # of one image's forward pass
    decode_threads: int = 0  # of its node; 0 where nothing is decoded
    skipped_images: int = 0  # that could not be decoded
    in_force: Mapping[str, str] = dataclasses.field(default_factory=dict)  # environment that Horovod and NCCL read
    runs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # settings as what runs has them, read back
    software: str = ""  # fingerprint of what its process has loaded
    data_files: str = ""  # fingerprint of the files that it read, before and after; empty where it read none
    measured_by: str = ""  # of a script: what told its steps
    why_no_comm: str = ""  # likewise: why nothing is said of its communication


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a completed trial measured, over all its ranks."""

    ranks: tuple[RankReport, ...]

    @property
    def images(self) -> int:
        return sum(report.images for report in self.ranks)

    @property
    def window_s(self) -> float:
        """The slowest rank counts."""
        return max(report.window_s for report in self.ranks)

    @property
    def images_per_s(self) -> float:
        return self.images / self.window_s

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """The same at every rank."""
        return self.ranks[0].epochs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Granted:
    """The place where one rank really ran."""

    rank: int
    node: str
    gpu: str = ""
    node_id: str = ""  # Ray's
    hardware: str = ""  # fingerprints of the node
    software: str = ""
    data_files: str = ""  # and of the files that the rank read there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cached:
    """A result of an earlier sweep that stands for this trial's: where it was measured, when, and what came out."""

    sweep: str
    measured_at: float
    hardware: str
    software: str
    data_files: str = ""
    arrangement: str = ""  # in words
    limited_by: str
    why_withheld: str = ""
    estimators: str = ""  # the version of those behind some of the figures; empty of versions that had none
    figures: Mapping[str, float]  # by column


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How a trial ended. A failure is a value: rank, last step, kind, message, log."""

    status: Status
    kind: str = ""  # of a failure or an infeasibility, in two or three words
    message: str = ""
    inferred_from: str = ""  # the trial whose lack of memory shows that this one, which never ran, has too little
    rank: int | None = None
    step: int | None = None
    log: str = ""
    exit_code: int | None = None  # of a user's program
    last_lines: tuple[str, ...] = ()  # of the log of a user's program that ended badly
    measurement: Measurement | None = None
    granted: tuple[Granted, ...] = ()
    usage: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of its nodes during the window
    cached: Cached | None = None  # instead of a measurement

    @property
    def why(self) -> str:
        """Why a trial did not complete, in words."""
        inferred = f" (inferred from {self.inferred_from})" if self.inferred_from else ""
        return f"{self.kind}{inferred}: {self.message}"


def is_own(word: str) -> bool:
    """Say whether a network or data is a function of the user's own, MODULE:FUNCTION."""
    return re.fullmatch(OWN_FUNCTION, word) is not None


def has_jpegs(data: str) -> bool:
    """Say whether data is a folder of images, which have to be decoded."""
    return data not in WITHOUT_JPEGS and not is_own(data)


def nodes_by_ranks(placement: Placement) -> tuple[int, int] | None:
    """Return the nodes and the ranks on each that `2x4` asks for; None for pack and spread, and for what is no
    placement."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", placement)
    nodes, ranks = (int(found[1]), int(found[2])) if found else (0, 0)
    return (nodes, ranks) if 1 <= nodes * ranks <= MOST_RANKS else None


def reaches_target(record: EpochRecord, config: TrialConfig) -> bool:
    """Say whether an epoch was validated, and is at least as good as every accuracy that was asked for; of a script,
    whether it has reported all figures that were, as good as that."""
    targets = ((record.top1, config.target_top1), (record.top5, config.target_top5))
    reached = [got is not None and got >= target for got, target in targets if target]
    figures = record.figures if config.targets else {}
    for name, bound in config.targets.items():
        got = figures.get(name if name in REPORTED else f"{OWN_FIGURE}{name}", math.nan)
        reached.append(BOUNDS[bound[:2]](got, float(bound[2:])))
    return bool(reached) and all(reached)


def arranged(ranks: Iterable[int]) -> str:
    """Say ranks on each node as nodes × ranks: `2x4`, or `1x3+1x1` where the nodes are not alike."""
    return "+".join(f"{nodes}x{each}" for each, nodes in sorted(Counter(ranks).items(), reverse=True))


def joined(nodes: Iterable[tuple[str, int]]) -> str:
    """Say the digest and the number of ranks of each node: `aaaa` where all are alike, else `aaaa*1x3+bbbb*1x1`, with
    nodes x ranks behind each digest; empty where nothing is known of any.

    Earlier versions joined the digests alone (`aaaa+bbbb`), so that a gang of 3 + 1 ranks was called as one of 1 + 3.
    This says them otherwise: what they wrote of unlike nodes equals nothing that is written now.
    """
    seats = Counter(nodes)
    known = sorted({digest for digest, _ in seats})
    if len(known) < 2:
        return "".join(known)
    alike = {one: [ranks for (digest, ranks), n in seats.items() if digest == one for _ in range(n)] for one in known}
    return "+".join(
        f"{digest or UNKNOWN}*{form}" for digest, each in alike.items() for form in arranged(each).split("+")
    )


def digests(text: str) -> list[str]:
    """Return the digests that are joined there, in this form or an earlier one."""
    return list(dict.fromkeys(part.partition("*")[0] for part in text.split("+")))


def to_json(value: Any) -> dict[str, Any]:
    """`dataclasses.asdict`, four times as fast: a trial may hold thousands of steps."""
    return dict(_plain(value))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind in (tuple, list):
        return kind([_plain(one) for one in value])
    if kind is Measurement:
        return {"ranks": _reports(value.ranks)}
    if names := _names(kind):  # type: ignore[arg-type]
        return {name: _plain(getattr(value, name)) for name in names}
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _reports(ranks: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Return what the first rank reports, and of each other one what differs from that: most of it is true of all."""
    first, *others = map(vars, ranks)
    told = [(name, first[name]) for name in _names(RankReport)]
    return [
        _plain(ranks[0]),
        *(
            {name: _plain(its) for name, of_first in told if (its := one[name]) is not of_first and its != of_first}
            for one in others
        ),
    ]


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


# In ledgers of before names were changed, with their names of today.
EARLIER_DEADLINES = {"nursery_s": "fork_server_s"}
EARLIER_KINDS = {"no nursery": "no fork server", "nursery gone": "fork server gone"}
EARLIER_INFERRED = " (inferred)"  # ended a kind, and the message began with the trial


def trial_config(data: Mapping[str, Any]) -> TrialConfig:
    listed = {name: tuple(data.get(name, ())) for name in ("arrangement", "env_from")}
    deadlines = {EARLIER_DEADLINES.get(name, name): seconds for name, seconds in data["deadlines"].items()}
    script = _script(data["script"]) if data.get("script") else None
    return TrialConfig(**{**data, "deadlines": Deadlines(**deadlines), **listed, "script": script})


def _script(data: Mapping[str, Any]) -> Script:
    return Script(**{**data, "lengths": tuple(data.get("lengths", ()))})


def progress(data: Mapping[str, Any]) -> Progress:
    epoch = EpochRecord(**data["epoch"]) if data["epoch"] else None
    return Progress(data["phase"], data["step"], epoch, data["note"])


def rank_report(data: Mapping[str, Any]) -> RankReport:
    return RankReport(**_reported(data))


def _reported(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report, or a part of one, says, as the fields have it."""
    return {name: _REPORTED[name](told) if name in _REPORTED else told for name, told in data.items()}


_REPORTED: dict[str, Callable[[Any], Any]] = {
    "window_at": tuple,
    "window": lambda window: Window(**window) if window else None,
    "steps": lambda steps: tuple(StepRecord(**step) for step in steps),
    "epochs": lambda epochs: tuple(EpochRecord(**epoch) for epoch in epochs),
    "without_ms": lambda parts: {part: tuple(map(tuple, rounds)) for part, rounds in parts.items()},
}


def measurement(data: Mapping[str, Any]) -> Measurement:
    """Return what all ranks report; in ledgers of before each is there in full."""
    whole, *others = data["ranks"]
    first = rank_report(whole)
    return Measurement(ranks=(first, *(report_like(first, _reported(one)) for one in others)))


def report_like(first: RankReport, told: Mapping[str, Any]) -> RankReport:
    """`dataclasses.replace`, ten times as fast: a trial may have a thousand ranks."""
    made = object.__new__(RankReport)
    made.__dict__.update(vars(first), **told)
    return made


def inference(kind: str, message: str) -> dict[str, str]:
    """Return kind, message and `inferred_from` of what an earlier version wrote as two texts."""
    if not kind.endswith(EARLIER_INFERRED):
        return {}
    trial, _, said = message.removeprefix("inferred from ").partition(": ")
    return {"kind": kind.removesuffix(EARLIER_INFERRED), "message": said, "inferred_from": trial}


def trial_outcome(data: Mapping[str, Any]) -> TrialOutcome:
    measured = data.get("measurement")
    return TrialOutcome(
        **{
            **data,
            "kind": EARLIER_KINDS.get(kind := data.get("kind", ""), kind),
            **inference(kind, data.get("message", "")),
            "last_lines": tuple(data.get("last_lines", ())),
            "measurement": measurement(measured) if measured else None,
            "granted": tuple(Granted(**place) for place in data.get("granted", ())),
            "cached": Cached(**data["cached"]) if data.get("cached") else None,
        }
    )
