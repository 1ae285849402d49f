"""How gradients are reduced, by Horovod's own record: each setting shows in what Horovod did, not in what was asked."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gangs import gang
from workers.contract.messages import ROUNDS
from workers.measure import step_shares

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fork_server")]

STEPS = 12


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What Horovod did for the gradients of each step."""

    asked_us: dict[str, list[int]]  # by gradient and step, when rank 0 had it
    begun_us: dict[str, list[int]]  # likewise, when its reduction began
    activities: Counter[str]
    formats: set[str]  # of the gradients as they were sent
    asked_all: int  # times that every rank was asked whether it has a gradient

    @property
    def lead_us(self) -> list[int]:
        """By step but the first, how long before the last gradient was there the first reduction began."""
        return [
            max(at[step] for at in self.asked_us.values()) - min(at[step] for at in self.begun_us.values())
            for step in range(1, STEPS + 1)
        ]

    @property
    def apart_us(self) -> list[int]:
        """By step but the first, how long after the first gradient the last one was there."""
        return [
            max(at[step] for at in self.asked_us.values()) - min(at[step] for at in self.asked_us.values())
            for step in range(1, STEPS + 1)
        ]


def written(timeline: Path) -> list[dict[str, Any]]:
    """Horovod's events, in a file that it never closes."""
    events: list[dict[str, Any]] = json.loads(timeline.read_text().rstrip().rstrip(",").removesuffix("]") + "]")
    return events


def named(events: list[dict[str, Any]]) -> dict[int, str]:
    """The tensors, by the number that events have instead of a name."""
    return {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}


def reductions(timeline: Path) -> Counter[str]:
    """How often each tensor was reduced."""
    events = written(timeline)
    names = named(events)
    return Counter(names[event["pid"]] for event in events if event["ph"] == "B" and event["name"] == "ALLREDUCE")


def sent(timeline: Path) -> dict[str, str]:
    """The format and shape in which each tensor was reduced."""
    events = written(timeline)
    names = named(events)
    told = [event for event in events if event["ph"] == "E" and "args" in event]
    return {names[event["pid"]]: f"{event['args']['dtype']} {event['args']['shape']}" for event in told}


def shared_mib(timeline: Path) -> list[float]:
    """Return the size of every buffer that gradients shared: they begin one after the other, and are then copied into
    it."""
    events = written(timeline)
    names, formats = named(events), sent(timeline)
    begun: list[int] = []  # bytes of those that have begun since the last were copied
    found: list[float] = []
    for event in events:
        if event["ph"] == "B" and event["name"] == "ALLREDUCE":
            _, shape = formats[names[event["pid"]]].split(" ", 1)
            begun.append(4 * math.prod(json.loads(shape)))
        elif event["ph"] == "B" and event["name"] in ("MEMCPY_IN_FUSION_BUFFER", "GLOO_ALLREDUCE") and begun:
            if event["name"] == "MEMCPY_IN_FUSION_BUFFER":
                found.append(sum(begun) / (1 << 20))
            begun = []
    return found


def trained(folder: Path, **fields: object) -> tuple[Timeline, float]:
    """Horovod's timeline of a trial on two ranks, and the median step in milliseconds."""
    file = folder / "timeline.json"
    steps = {"batch_size": 64, "warmup_steps": 1, "measured_steps": STEPS, "explain": False}
    ends = gang(2, folder, "workers.workloads.images.train:run", env={"HOROVOD_TIMELINE": str(file)}, **steps | fields)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    events = written(file)
    names = named(events)
    counts = reductions(file)
    gradients = {name for name, count in counts.items() if count == STEPS + 1}
    assert len(gradients) > 10
    at: dict[str, dict[str, list[int]]] = {"NEGOTIATE_ALLREDUCE": defaultdict(list), "ALLREDUCE": defaultdict(list)}
    of_gradients = [event for event in events if names.get(event.get("pid", -1)) in gradients]
    for event in of_gradients:
        if event["ph"] == "B" and event["name"] in at:
            at[event["name"]][names[event["pid"]]].append(event["ts"])
    found = Timeline(
        asked_us=at["NEGOTIATE_ALLREDUCE"],
        begun_us=at["ALLREDUCE"],
        activities=Counter(event["name"] for event in of_gradients if event["ph"] == "B"),
        formats={event["args"]["dtype"] for event in of_gradients if event["ph"] == "E" and "args" in event},
        asked_all=sum(event["ph"] == "X" for event in of_gradients),
    )
    assert ends[0].report
    return found, statistics.median(step.step_ms for step in ends[0].report.steps)


def test_reductions_begin_before_the_last_gradient_is_there(tmp_path: Path) -> None:
    found, _ = trained(tmp_path, reduction="overlapped")
    assert sum(lead > 0 for lead in found.lead_us) > STEPS / 2  # grouped, it is none of them


@pytest.mark.parametrize(
    ("reduction", "compression", "by_itself"),  # any two of the three in every combination
    [
        ("overlapped", "none", False),
        ("overlapped", "fp16", True),
        ("grouped", "none", True),
        ("grouped", "fp16", False),
    ],
)
def test_a_reduction_alone_reduces_as_much_as_a_step(
    tmp_path: Path, reduction: str, compression: str, by_itself: bool
) -> None:
    """A step without all but its reduction tells `overlap_share`: Horovod counts what it reduced in each, the flag with
    which a trial that stops by itself does so among it."""
    file, most = tmp_path / "timeline.json", 24
    steps = {"measured_steps": 0, "max_steps": most, "min_window": most} if by_itself else {"measured_steps": most}
    asked = {"batch_size": 16, "warmup_steps": 1, "explain": True, "reduction": reduction, "compression": compression}
    ends = gang(2, tmp_path, "workers.workloads.images.train:run", env={"HOROVOD_TIMELINE": str(file)}, **asked | steps)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    report = ends[0].report
    assert report
    assert report.window
    a_part = ROUNDS * (step_shares.SETTLING + step_shares.FEWEST)
    whole = report.window.warmup_steps + len(report.steps) + a_part - 2 * step_shares.SETTLING  # two blocks only go on
    alone = 1 + a_part - 3 * step_shares.SETTLING  # one to build it; three blocks only go on
    counts, formats = reductions(file), sent(file)
    in_steps, in_alone = (
        Counter(formats[name] for name, count in counts.items() if count in (times, whole + alone))
        for times in (whole, alone)
    )
    assert sum(in_steps.values()) > 10
    assert in_steps == in_alone
    assert (counts["flag"] == whole + alone) is by_itself


def test_grouped_reductions_begin_after_the_last_gradient(tmp_path: Path) -> None:
    found, _ = trained(tmp_path, reduction="grouped")
    assert max(found.lead_us) <= 0


@pytest.mark.parametrize("reduction", ["overlapped", "grouped"])
def test_what_xla_compiles_gives_all_its_gradients_at_once(tmp_path: Path, reduction: str) -> None:
    """So there is nothing to reduce beside it, and `reduction` makes no cells with `xla: on`."""
    found, step_ms = trained(tmp_path, reduction=reduction, xla=True)
    assert max(found.lead_us) <= 0
    # One by one it is a third of every step; a busy machine may stop a rank between two gradients of one.
    assert statistics.median(found.apart_us) < 0.02 * 1e3 * step_ms


@pytest.mark.parametrize(("fusion_mib", "is_fused"), [(128.0, True), (0.0, False)])
def test_small_gradients_share_a_buffer_where_fusion_mib_lets_them(
    tmp_path: Path, fusion_mib: float, is_fused: bool
) -> None:
    found, _ = trained(tmp_path, fusion_mib=fusion_mib)
    assert (found.activities["MEMCPY_IN_FUSION_BUFFER"] > 0) is is_fused


def test_a_step_waits_for_a_cycle(tmp_path: Path) -> None:
    """Horovod looks for gradients once in `cycle_ms`: the last ones of a step wait for the next look."""
    _, seldom_ms = trained(tmp_path, cycle_ms=200.0)
    _, often_ms = trained(tmp_path, cycle_ms=1.0)
    assert seldom_ms - often_ms > 75


@pytest.mark.parametrize(("fusion_mib", "fits"), [(0.125, False), (128.0, True)])
def test_a_shared_buffer_is_no_larger_than_fusion_mib(tmp_path: Path, fusion_mib: float, fits: bool) -> None:
    """In a long cycle all gradients, 0.38 MiB, wait together."""
    trained(tmp_path, fusion_mib=fusion_mib, cycle_ms=60.0)
    largest = max(shared_mib(tmp_path / "timeline.json"))
    assert 0.02 < largest <= fusion_mib
    assert (largest > 0.125) is fits


@pytest.mark.parametrize("cycle_ms", [20.0, 60.0])
def test_horovod_looks_for_gradients_once_in_a_cycle(tmp_path: Path, cycle_ms: float) -> None:
    """It marks each look in its timeline: that is the only way in which it tells its cycle."""
    file = tmp_path / "timeline.json"
    variables = {"HOROVOD_TIMELINE": str(file), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    ends = gang(
        2,
        tmp_path,
        "workers.workloads.images.train:run",
        env=variables,
        cycle_ms=cycle_ms,
        measured_steps=STEPS,
        explain=False,
    )
    assert [end.what for end in ends] == ["measured"] * 2, ends
    looks = [event["ts"] for event in written(file) if event.get("name") == "CYCLE_START"]
    apart_ms = [(after - before) / 1e3 for before, after in itertools.pairwise(looks)]
    assert len(apart_ms) > STEPS
    assert statistics.median(apart_ms) == pytest.approx(cycle_ms, rel=0.1)


@pytest.mark.parametrize(("response_cache", "steps_asked"), [(1024, 1), (0, STEPS + 1)])
def test_what_horovod_remembers_it_does_not_ask_all_ranks_for_again(
    tmp_path: Path, response_cache: int, steps_asked: int
) -> None:
    found, _ = trained(tmp_path, response_cache=response_cache)
    assert found.asked_all == pytest.approx(2 * steps_asked * len(found.asked_us), rel=0.1)


@pytest.mark.parametrize(("compression", "sent_as"), [("none", {"float32"}), ("fp16", {"float16"})])
def test_gradients_are_sent_in_the_format_asked_for(tmp_path: Path, compression: str, sent_as: set[str]) -> None:
    found, _ = trained(tmp_path, compression=compression)
    assert found.formats == sent_as
