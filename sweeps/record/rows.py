"""A trial as one flat row, the same whether it comes from the ledger or back from MLflow.

`METRICS` names each figure once: its column in a DataFrame and its name in MLflow, where `/` makes a section.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from sweeps.record import bottleneck
from sweeps.record.ledger import TrialRecord
from workers.contract import imagenet, messages, redact
from workers.contract.messages import EpochRecord, Measurement, TrialConfig, Window

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
NO_PARAMS = ("deadlines", "env", "env_from", "arrangement")
PARAMS = {f.name: str(f.type) for f in dataclasses.fields(TrialConfig) if f.name not in NO_PARAMS}
Side = Literal["hardware", "software"]
SIDES: tuple[Side, ...] = get_args(Side)  # of a fingerprint
WHERE = (*SIDES, "data_files", "arrangement")  # what trials must share to be pooled, beside their cell
SIMULATED = "simulated"  # in place of digests, where nodes are
UNKNOWN = "unknown"  # in place of the digest of a node that has not said it, beside others'
NOT_PINNED = "not: "  # begins the words on ranks that may run anywhere
SYSTEM = "system/"  # begins the name of a reading of the nodes
READ_BACK = "in_force."  # begins the name of a tag that says what was read back of a setting
VARIABLE = "env."  # begins the name of a parameter that is an environment variable
TRAINING = 3  # the backward pass costs twice the forward one


def params(config: TrialConfig) -> dict[str, Any]:
    """What a trial was asked for. A ledger of before secrets were refused may hold one."""
    variables = {f"{VARIABLE}{name}": redact.shown(name, value) for name, value in config.env.items()}
    return {name: getattr(config, name) for name in PARAMS} | variables


def typed(name: str, text: str) -> Any:
    """A parameter as it was before MLflow made it a string."""
    kinds: dict[str, Any] = {"int": int, "float": float, "bool": lambda text: text == "True"}
    return kinds.get(PARAMS.get(name, "str"), str)(text)


def metrics(record: TrialRecord) -> dict[str, float]:
    """The figures of a trial that measured something; else only how long it took."""
    if cached := record.outcome.cached:
        known = {name: figure for name, figure in cached.figures.items() if name in METRICS}
        if "cpu_joules_per_image" not in known:  # of before the two were told apart: of one or of both
            known.pop("joules_per_image", None)
        return known
    figures = {"trial_s": record.ended_at - record.started_at}
    measured = record.outcome.measurement
    if measured:
        figures |= _measured(measured, record)
    return figures


def _measured(measured: Measurement, record: TrialRecord) -> dict[str, float]:
    first = measured.ranks[0]
    own = _epochs(measured.epochs, first.reached_target) if measured.epochs else _steps(measured)
    nodes = {place.node for place in record.outcome.granted}
    return (
        own
        | _shares(measured, record.config)
        | _straggler(measured)
        | ({"nodes": float(len(nodes))} if nodes else {})
        | {
            "images_per_s": measured.images_per_s,
            "images_per_s_per_gpu": measured.images_per_s / len(measured.ranks),
            "gpu_hours_per_epoch": len(measured.ranks) * imagenet.TRAIN_IMAGES / measured.images_per_s / 3600,
            "launch_s": max(rank.entered_at for rank in measured.ranks) - record.started_at,
            "build_s": max(rank.build_s for rank in measured.ranks),
            "window_s": measured.window_s,
            "peak_memory_mib": max(rank.peak_memory_mib for rank in measured.ranks),
            **({"peak_device_memory_mib": peak} if (peak := _device_peak_mib(measured)) else {}),
            "parameters": float(first.parameters),
            "flops_per_image": float(first.flops),
            "train_tflops": TRAINING * first.flops * measured.images_per_s / 1e12,
            "read_mib": sum(rank.read_mib for rank in measured.ranks),
            **({"is_pinned": float(all(rank.pinned for rank in measured.ranks))} if pinned(record) else {}),
            **({"allreduce_mib_per_s": first.allreduce_mib_per_s} if first.allreduce_mib_per_s else {}),
            **_joules(record, measured.images),
            "skipped_images": float(sum(rank.skipped_images for rank in measured.ranks)),
        }
    )


def _joules(record: TrialRecord, images: int) -> dict[str, float]:
    """Energy an image, of processors and of GPUs, as far as each is known of all nodes; and of both together, which a
    trial without GPUs has of its processors alone."""
    read = record.outcome.usage
    parts = ("cpu", "gpu") if record.config.device == "gpu" else ("cpu",)
    known = {
        f"{part}_joules_per_image": read[f"{part}_energy_j"] / images for part in parts if read.get(f"{part}_energy_j")
    }
    return known | ({"joules_per_image": sum(known.values())} if len(known) == len(parts) else {})


def _device_peak_mib(measured: Measurement) -> float:
    """Return the largest of the ranks' peaks; 0 on CPUs."""
    return max(rank.peak_device_memory_mib for rank in measured.ranks)


def limited_by(record: TrialRecord) -> str:
    """What limits a trial, in words; empty where that was not looked for."""
    if record.outcome.cached:
        return record.outcome.cached.limited_by
    measured, config = record.outcome.measurement, record.config
    found = bottleneck.shares(measured, config) if measured else None
    if not measured or not found:
        return ""
    return bottleneck.sentence(bottleneck.verdict(found), config.gpus, measured.ranks[0].decode_threads)


def why_withheld(record: TrialRecord) -> str:
    """Why a trial's window has no interval of its own; empty where it has one, or there was no window."""
    if record.outcome.cached:
        return record.outcome.cached.why_withheld
    measured = record.outcome.measurement
    window = measured.ranks[0].window if measured else None
    return window.withheld if window else ""


def pinned(record: TrialRecord) -> str:
    """The cores of each rank and of its decode threads, or why they were not pinned; empty where nothing tells."""
    measured = record.outcome.measurement
    said: dict[str, list[str]] = {}
    for rank in measured.ranks if measured else ():
        note = rank.pinning_note
        words = f"{rank.pinned} ({note})" if rank.pinned and note else rank.pinned or (note and f"{NOT_PINNED}{note}")
        said.setdefault(words, []).append(str(rank.rank))
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"rank {', '.join(ranks)}: {words}" for words, ranks in said.items())


def _shares(measured: Measurement, config: TrialConfig) -> dict[str, float]:
    found = bottleneck.shares(measured, config)
    if not found:
        return {}
    figures: dict[str, float] = {}
    for part, share in vars(found).items():
        figures |= {f"{part}_share": share.value, f"{part}_share_ci": share.half_width}
    return figures


def _steps(measured: Measurement) -> dict[str, float]:
    """The figures of a throughput trial's window."""
    times, first = step_ms(measured), measured.ranks[0]
    known = _window(first.window, len(times), statistics.fmean(times), measured.images_per_s) if first.window else {}
    return known | {
        "step_ms_mean": statistics.fmean(times),
        "step_ms_p50": percentile(times, 50),
        "step_ms_p95": percentile(times, 95),
        "step_ms_p99": percentile(times, 99),
        "loss": first.steps[-1].loss,
    }


def _straggler(measured: Measurement) -> dict[str, float]:
    """How far the slowest rank is behind the median rank in steps that it takes alone: in others all wait for it."""
    alone = [
        rounds for rank in measured.ranks if (rounds := rank.without_ms.get("both") or rank.without_ms.get("comm"))
    ]
    if len(alone) < 2:
        return {}
    means = [statistics.fmean(map(statistics.fmean, rounds)) for rounds in alone]
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


def _epochs(epochs: Sequence[EpochRecord], reached_target: bool) -> dict[str, float]:
    """The figures of a convergence trial: its last validation, and what it took to get to the target."""
    figures = {"loss": epochs[-1].loss}
    for epoch in epochs:
        if epoch.top1 is not None and epoch.top5 is not None:
            figures |= {"top1": epoch.top1, "top5": epoch.top5}
    if reached_target:
        figures |= {
            "epochs_to_target": float(len(epochs)),
            "hours_to_target": sum(epoch.taken_s for epoch in epochs) / 3600,
            "train_hours_to_target": sum(epoch.train_s for epoch in epochs) / 3600,
            "checkpoint_hours_to_target": sum(epoch.checkpoint_s for epoch in epochs) / 3600,
        }
    return figures


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
        f"{digest or UNKNOWN}*{form}" for digest, each in alike.items() for form in messages.arranged(each).split("+")
    )


def digests(text: str) -> list[str]:
    """Return the digests that are joined there, in this form or an earlier one."""
    return list(dict.fromkeys(part.partition("*")[0] for part in text.split("+")))


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
        joint[name] = joined((digest, ranks) for (_, digest), ranks in found.items())
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
    """What its nodes read while it ran, by column."""
    if cached := record.outcome.cached:
        return {name: figure for name, figure in cached.figures.items() if name.startswith(SYSTEM)}
    return {f"{SYSTEM}{name}": value for name, value in record.outcome.usage.items()}


def step_ms(measured: Measurement) -> list[float]:
    """Each step's time, by the first rank's clock: a step waits for the slowest rank. None in a convergence trial."""
    return [step.step_ms for step in measured.ranks[0].steps]


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
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
        "pinned": pinned(record),
        **params(record.config),
        **where(record),
        **metrics(record),
        **system(record),
        "started_at": record.started_at,
    }
