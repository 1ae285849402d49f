"""A trial as one flat row, the same whether it comes from the ledger or back from MLflow.

`METRICS` names each figure once: its column in a DataFrame and its name in MLflow, where `/` makes a section.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from sweeps.record import bottleneck
from sweeps.record.ledger import TrialRecord
from sweeps.spec import keys
from workers.contract import imagenet, messages, redact
from workers.contract.messages import EpochRecord, Measurement, RankReport, TrialConfig, Window

METRICS = {
    "images_per_s": "images_per_s",
    "images_per_s_per_gpu": "images_per_s_per_gpu",
    "gpu_hours_per_epoch": "cost/gpu_hours_per_epoch",
    "step_ms_mean": "step_ms/mean",
    "step_ms_p50": "step_ms/p50",
    "step_ms_p95": "step_ms/p95",
    "step_ms_p99": "step_ms/p99",
    "images_per_s_within": "window/images_per_s_ci",
    "warmup_steps_taken": "window/warmup_steps",
    "steps_taken": "window/steps",
    "is_steady": "window/is_steady",
    "nodes": "ranks/nodes",
    "straggler_ratio": "ranks/slowest_over_median",
    "is_pinned": "ranks/is_pinned",
    "loss": "loss",
    "top1": "accuracy/top1",
    "top5": "accuracy/top5",
    "epochs_to_target": "target/epochs",
    "hours_to_target": "target/hours",
    "train_hours_to_target": "target/train_hours",
    "checkpoint_hours_to_target": "target/checkpoint_hours",
    "input_share": "share/input",
    "input_share_ci": "share/input_ci",
    "comm_share": "share/comm",
    "comm_share_ci": "share/comm_ci",
    "compute_share": "share/compute",
    "compute_share_ci": "share/compute_ci",
    "overlap_share": "share/overlap",
    "overlap_share_ci": "share/overlap_ci",
    "joules_per_image": "joules_per_image",
    "cpu_joules_per_image": "energy/cpu_joules_per_image",
    "gpu_joules_per_image": "energy/gpu_joules_per_image",
    "read_mib": "data/read_mib",
    "allreduce_mib_per_s": "ranks/allreduce_mib_per_s",
    "launch_s": "time/launch_s",
    "build_s": "time/build_s",
    "window_s": "time/window_s",
    "trial_s": "time/trial_s",
    "peak_memory_mib": "memory/rank_peak_mib",
    "peak_device_memory_mib": "memory/device_peak_mib",
    "parameters": "model/parameters",
    "flops_per_image": "model/flops_per_image",
    "train_tflops": "model/train_tflops",
    "skipped_images": "data/skipped_images",
}
# Estimated in this folder, which no fingerprint knows, from times that only a ledger keeps. Of a result that is used
# again they count where they were estimated as they are now. Whoever changes what one of them comes to for the same
# times, or what `limited_by` says of it, raises the version; a test holds that.
ESTIMATED = ("input_share", "comm_share", "compute_share", "overlap_share", "straggler_ratio")
ESTIMATORS = "1"
NO_PARAMS = ("deadlines", "env", "env_from", "arrangement", "script", "own", "targets", "strategy")
PARAMS = {f.name: str(f.type) for f in dataclasses.fields(TrialConfig) if f.name not in NO_PARAMS}
# Of runs that were stored before there was such a parameter.
BEFORE: dict[str, Any] = {
    f.name: f.default for f in dataclasses.fields(TrialConfig) if f.name in messages.OF_A_FRAMEWORK
}
Side = Literal["hardware", "software"]
SIDES: tuple[Side, ...] = get_args(Side)  # of a fingerprint
WHERE = (*SIDES, "data_files", "arrangement")  # what trials must share to be pooled, beside their cell
SIMULATED = "simulated"  # in place of digests, where nodes are
SYSTEM = "system/"  # begins the name of a reading of the nodes
READ_BACK = "in_force."  # begins the name of a tag that says what was read back of a setting
VARIABLE = "env."  # begins the name of a parameter that is an environment variable
REPORTED = messages.OWN_FIGURE  # begins the name of a figure that a script tells
REPORTED_IN, RATES_IN = OF_SCRIPTS = "reported/", "rate/"  # begin their names in MLflow, and those of rates by unit
OWN = keys.OWN  # begins the name of a parameter that is an axis of a user's own program
NAMED = (VARIABLE, OWN)  # begin the names of parameters that a sweep file has named
IMAGES, RATE = "images", "_per_s"
UNIT_RATE = re.compile(rf"[a-z][a-z_]*{RATE}")
TRAINING = 3  # the backward pass costs twice the forward one


def params(config: TrialConfig) -> dict[str, Any]:
    """Return what a trial was asked for. A ledger of before secrets were refused may hold one."""
    variables = {f"{VARIABLE}{name}": redact.shown(name, value) for name, value in config.env.items()}
    own = {f"{OWN}{name}": value for name, value in config.own.items()}
    return {name: getattr(config, name) for name in PARAMS} | own | variables


def typed(name: str, text: str) -> Any:
    """Return a parameter as it was before MLflow made it a string."""
    kinds: dict[str, Any] = {"int": int, "float": float, "bool": lambda text: text == "True"}
    if name.startswith(OWN):
        return _own(text)
    return kinds.get(PARAMS.get(name, "str"), str)(text)


def _own(text: str) -> Any:
    """Return a value of a program's own axis."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"True": True, "False": False}.get(text, text)


def metrics(record: TrialRecord) -> dict[str, float]:
    """Return the figures of a trial that measured something; else only how long it took."""
    if cached := record.outcome.cached:
        known = {name: figure for name, figure in cached.figures.items() if name in METRICS or is_of_script(name)}
        if "cpu_joules_per_image" not in known:  # of before the two were told apart: of one or of both
            known.pop("joules_per_image", None)
        if cached.estimators != ESTIMATORS:
            known = {name: figure for name, figure in known.items() if name.removesuffix("_ci") not in ESTIMATED}
        if rate := known.get("images_per_s"):
            follows = _of_rate(rate, record.config.gpus, known.get("flops_per_image"))
            known |= {name: figure for name, figure in follows.items() if name in known}
        return known
    figures = {"trial_s": record.ended_at - record.started_at}
    measured = record.outcome.measurement
    if measured:
        figures |= _measured(measured, record)
    return figures


def _measured(measured: Measurement, record: TrialRecord) -> dict[str, float]:
    first = measured.ranks[0]
    is_learning = record.config.protocol == "convergence" if record.config.script else bool(measured.epochs)
    own = _epochs(measured, record.config) if is_learning else _steps(measured, record.config)
    nodes = {place.node for place in record.outcome.granted}
    return (
        own
        | _shares(measured, record.config)
        | _straggler(measured)
        | ({"nodes": float(len(nodes))} if nodes else {})
        | {
            **_rates(measured, record.config),
            "launch_s": _launch_s(measured, record),
            "build_s": max(rank.build_s for rank in measured.ranks),
            "window_s": measured.window_s,
            "peak_memory_mib": max(rank.peak_memory_mib for rank in measured.ranks),
            **({"peak_device_memory_mib": peak} if (peak := _device_peak_mib(measured)) else {}),
            **({} if record.config.script else _of_network(first)),
            "read_mib": sum(rank.read_mib for rank in measured.ranks),
            **_pinned(measured),
            **({"allreduce_mib_per_s": first.allreduce_mib_per_s} if first.allreduce_mib_per_s else {}),
            **_joules(record, measured.images),
            "skipped_images": float(sum(rank.skipped_images for rank in measured.ranks)),
        }
    )


def _launch_s(measured: Measurement, record: TrialRecord) -> float:
    """Return how long the last rank took to stand in the loop, by the nodes' monotonic clocks: their others may be off
    from the driver's, by which ranks of earlier versions are told."""
    by_node = [rank.launch_s for rank in measured.ranks if rank.launch_s is not None]
    return max(by_node) if by_node else max(rank.entered_at for rank in measured.ranks) - record.started_at


def _of_network(rank: RankReport) -> dict[str, float]:
    """Return how large a network is, as far as that is known."""
    known = {"parameters": float(rank.parameters), "flops_per_image": float(rank.flops)}
    return {name: figure for name, figure in known.items() if figure}


def _rates(measured: Measurement, config: TrialConfig) -> dict[str, float]:
    """Return what all ranks did in a second: as `images_per_s`, by which every analysis knows it, and by the unit of a
    user's program. Nothing of one that has told no steps."""
    if not measured.images:
        return {}
    rate, script = measured.images_per_s, config.script
    own = {f"{script.unit}{RATE}": rate} if script and script.unit != IMAGES else {}
    flops = None if script else measured.ranks[0].flops or None
    return {"images_per_s": rate, **own, **_of_rate(rate, len(measured.ranks), flops, has_images=not script)}


def is_of_script(column: str) -> bool:
    """Say whether a column is a figure that only a user's program has: its rate by its unit, or what it reports."""
    return column.startswith(REPORTED) or is_unit_rate(column)


def is_unit_rate(column: str) -> bool:
    """Say whether a column is a rate by the unit of a user's program."""
    return column not in METRICS and UNIT_RATE.fullmatch(column) is not None


def stored_as(column: str) -> str:
    """Return a figure's name in MLflow."""
    if column.startswith(REPORTED):
        return REPORTED_IN + column.removeprefix(REPORTED)
    return f"{RATES_IN}{column}" if is_unit_rate(column) else METRICS.get(column, column)


def column_of(stored: str) -> str:
    """Return the column of a figure that only a user's program has; empty of any other in MLflow."""
    if stored.startswith(REPORTED_IN):
        return REPORTED + stored.removeprefix(REPORTED_IN)
    return stored.removeprefix(RATES_IN) if stored.startswith(RATES_IN) else ""


def _of_rate(images_per_s: float, gpus: int, flops: float | None, has_images: bool = True) -> dict[str, float]:
    """Return what follows from a rate; `flops` are those of an image's forward pass, where they are known."""
    return {
        "images_per_s_per_gpu": images_per_s / gpus,
        **({"gpu_hours_per_epoch": gpus * imagenet.TRAIN_IMAGES / images_per_s / 3600} if has_images else {}),
        **({} if flops is None else {"train_tflops": TRAINING * flops * images_per_s / 1e12}),
    }


def _joules(record: TrialRecord, images: int) -> dict[str, float]:
    """Energy an image, of processors and of GPUs, as far as each is known of all nodes; and of both together, which a
    trial without GPUs has of its processors alone."""
    read = record.outcome.usage
    parts = ("cpu", "gpu") if record.config.device == "gpu" else ("cpu",)
    known = {
        f"{part}_joules_per_image": read[f"{part}_energy_j"] / images for part in parts if read.get(f"{part}_energy_j")
    }
    return known | ({"joules_per_image": sum(known.values())} if len(known) == len(parts) else {})


def _pinned(measured: Measurement) -> dict[str, float]:
    """Say whether all ranks had cores of their own; nothing where nothing tells."""
    is_told = any(rank.pinned or rank.pinning_note for rank in measured.ranks)
    return {"is_pinned": float(all(rank.pinned for rank in measured.ranks))} if is_told else {}


def _device_peak_mib(measured: Measurement) -> float:
    """Return the largest of the ranks' peaks; 0 on CPUs."""
    return max(rank.peak_device_memory_mib for rank in measured.ranks)


def limited_by(record: TrialRecord) -> str:
    """Say what limits a trial, in words; empty where that was not looked for."""
    if cached := record.outcome.cached:
        return cached.limited_by if cached.estimators == ESTIMATORS else ""
    measured, config = record.outcome.measurement, record.config
    if not measured:
        return ""
    if found := bottleneck.shares(measured, config):
        is_whole = not math.isnan(found.comm.value)
        if said := bottleneck.verdict(found) if is_whole else bottleneck.of_input(found.input):
            return bottleneck.sentence(said, config.gpus, measured.ranks[0].decode_threads)
    why = measured.ranks[0].why_no_comm
    return f"open: communication is withheld: {why}" if why else ""


def why_withheld(record: TrialRecord) -> str:
    """Why a trial's window has no interval of its own; empty where it has one, or there was no window."""
    if record.outcome.cached:
        return record.outcome.cached.why_withheld
    measured = record.outcome.measurement
    window = measured.ranks[0].window if measured else None
    return window.withheld if window else ""


def measured_by(record: TrialRecord) -> str:
    """Say what told the steps of a user's program; empty of the built-in training, which times its own."""
    measured = record.outcome.measurement
    return measured.ranks[0].measured_by if measured else ""


def pinned(record: TrialRecord) -> str:
    """Return the cores of each rank and of its decode threads; empty where they may run anywhere, or nothing tells."""
    return _by_rank(
        record,
        lambda rank: f"{rank.pinned} ({rank.pinning_note})" if rank.pinned and rank.pinning_note else rank.pinned,
    )


def why_not_pinned(record: TrialRecord) -> str:
    """Return why ranks may run anywhere; empty where all have cores of their own, or nothing tells."""
    return _by_rank(record, lambda rank: "" if rank.pinned else rank.pinning_note)


def _by_rank(record: TrialRecord, words: Callable[[RankReport], str]) -> str:
    """Return what is to be said of a trial's ranks, once of those alike; nothing of those of which there is none."""
    measured = record.outcome.measurement
    said: dict[str, list[str]] = {}
    for rank in measured.ranks if measured else ():
        said.setdefault(words(rank), []).append(str(rank.rank))
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"rank {', '.join(ranks)}: {words}" for words, ranks in said.items() if words)


def _shares(measured: Measurement, config: TrialConfig) -> dict[str, float]:
    found = bottleneck.shares(measured, config)
    if not found:
        return {}
    figures: dict[str, float] = {}
    for part, share in vars(found).items():
        if math.isnan(share.value):
            continue
        figures |= {f"{part}_share": share.value, f"{part}_share_ci": share.half_width}
    return figures


def _steps(measured: Measurement, config: TrialConfig) -> dict[str, float]:
    """Return the figures of a throughput trial's window, and what a script has reported in it."""
    if config.script and config.script.lengths:  # no step was timed by itself
        few, many = config.script.lengths
        taken = {"warmup_steps_taken": float(few), "steps_taken": float(many - few), "is_steady": 0.0}
        return taken | {"step_ms_mean": 1e3 * measured.window_s / (many - few)} | _last(measured.epochs)
    times, first = step_ms(measured), measured.ranks[0]
    known = _window(first.window, len(times), statistics.fmean(times), measured.images_per_s) if first.window else {}
    return known | {
        "step_ms_mean": statistics.fmean(times),
        "step_ms_p50": percentile(times, 50),
        "step_ms_p95": percentile(times, 95),
        "step_ms_p99": percentile(times, 99),
        **({} if math.isnan(loss := first.steps[-1].loss) else {"loss": loss}),
        **_last(measured.epochs),
    }


def _last(epochs: Sequence[EpochRecord]) -> dict[str, float]:
    """Return what a script has reported last, figure by figure; a figure that was no number then is left out."""
    last = {name: figure for epoch in epochs for name, figure in epoch.figures.items()}
    return {name: figure for name, figure in last.items() if math.isfinite(figure)}


def _straggler(measured: Measurement) -> dict[str, float]:
    """How far the slowest rank is behind the median rank in steps that it takes alone: in others all wait for it."""
    alone = [
        rounds for rank in measured.ranks if (rounds := rank.without_ms.get("both") or rank.without_ms.get("comm"))
    ]
    if len(alone) < 2:
        return {}
    distinct = {id(rounds): rounds for rounds in alone}  # simulated ranks share theirs
    mean_ms = {key: statistics.fmean(map(statistics.fmean, rounds)) for key, rounds in distinct.items()}
    means = [mean_ms[id(rounds)] for rounds in alone]
    return {"straggler_ratio": max(means) / statistics.median(means)}


def _window(window: Window, measured_steps: int, mean_ms: float, images_per_s: float) -> dict[str, float]:
    """How sure a trial's own figure is, and what it took. The interval of a rate is that of its step time, mirrored."""
    taken = {
        "warmup_steps_taken": float(window.warmup_steps),
        "steps_taken": float(measured_steps),
        "is_steady": float(not window.withheld),
    }
    within = (
        {} if window.half_width_ms is None else {"images_per_s_within": images_per_s * window.half_width_ms / mean_ms}
    )
    return taken | within


def _epochs(measured: Measurement, config: TrialConfig) -> dict[str, float]:
    """Return the figures of a convergence trial: its last validation, and what it took to get to the target. A script
    may have gone on behind that; of one that has gone on from what an earlier attempt had left, the time is not
    known."""
    epochs, first = measured.epochs, measured.ranks[0]
    figures = _last(epochs)
    if config.script and first.reached_target:
        reached = next(n for n, epoch in enumerate(epochs, 1) if messages.reaches_target(epoch, config))
        epochs = epochs[:reached]
        if first.gone_on_from:
            return figures | {"epochs_to_target": float(epochs[-1].epoch)}
    if first.reached_target:
        figures |= {
            "epochs_to_target": float(epochs[-1].epoch if config.script else len(epochs)),
            "hours_to_target": sum(epoch.taken_s for epoch in epochs) / 3600,
            "train_hours_to_target": sum(epoch.train_s for epoch in epochs) / 3600,
            "checkpoint_hours_to_target": sum(epoch.checkpoint_s for epoch in epochs) / 3600,
        }
    return figures


def where(record: TrialRecord) -> dict[str, str]:
    """On what a trial was measured, by `WHERE`: fingerprints of its nodes, their software and the files that it read,
    and how many of its ranks sat on how many nodes. Empty where it never ran, and of files where it reads none."""
    if cached := record.outcome.cached:
        return {name: str(getattr(cached, name)) for name in WHERE}
    places = record.outcome.granted
    nodes = [place.node_id or place.node for place in places]
    joint = {}
    for name in (*SIDES, "data_files"):
        found = Counter(zip(nodes, (getattr(place, name) for place in places), strict=True))
        joint[name] = messages.joined((digest, ranks) for (_, digest), ranks in found.items())
    return joint | {"arrangement": messages.arranged(Counter(nodes).values())}


def arrangement(gpus: int, nodes: float, placement: str) -> str:
    """How ranks sat of which only their number and that of their nodes is known, where that leaves no choice; of
    trials of stores that were written before it was recorded."""
    form = messages.nodes_by_ranks(placement)
    if form:
        return f"{form[0]}x{form[1]}"
    if nodes == 1 or gpus == 1:
        return f"1x{gpus}"
    return f"{gpus}x1" if nodes == gpus else ""


def system(record: TrialRecord) -> dict[str, float]:
    """Return what its nodes read while it ran, by column."""
    if cached := record.outcome.cached:
        return {name: figure for name, figure in cached.figures.items() if name.startswith(SYSTEM)}
    return {f"{SYSTEM}{name}": value for name, value in record.outcome.usage.items()}


def step_ms(measured: Measurement) -> list[float]:
    """Each step's time, by the first rank's clock: a step waits for the slowest rank. None in a convergence trial."""
    return [step.step_ms for step in measured.ranks[0].steps]


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def row(record: TrialRecord) -> dict[str, Any]:
    return {
        "trial": record.config.trial,
        "cell": record.config.cell,
        "outcome": record.outcome.status,
        "kind": record.outcome.kind,
        "message": record.outcome.message,
        "inferred_from": record.outcome.inferred_from,
        "limited_by": limited_by(record),
        "why_withheld": why_withheld(record),
        "measured_by": measured_by(record),
        "pinned": pinned(record),
        "why_not_pinned": why_not_pinned(record),
        **params(record.config),
        **where(record),
        **metrics(record),
        **system(record),
        "started_at": record.started_at,
    }
