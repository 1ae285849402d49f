"""When gradients are reduced: each beside the backward pass, as it appears; or all together, after the last."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.integration.gangs import gang
from workers import contract

pytestmark = pytest.mark.usefixtures("nursery")

STEPS = 12


def lead_us(folder: Path, reduction: contract.Reduction) -> list[int]:
    """By step, how long before the last gradient appeared the first reduction began, by Horovod's own timeline."""
    file = folder / "timeline.json"
    fields = {"reduction": reduction, "env": {"HOROVOD_TIMELINE": str(file)}, "batch_size": 64, "measured_steps": STEPS}
    ends = gang(2, folder, "workers.train:run", explain=False, warmup_steps=1, **fields)
    assert [end.what for end in ends] == ["measured"] * 2, ends
    events = json.loads(file.read_text().rstrip().rstrip(",").removesuffix("]") + "]")
    names = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    at: dict[str, dict[str, list[int]]] = {"NEGOTIATE_ALLREDUCE": defaultdict(list), "ALLREDUCE": defaultdict(list)}
    for event in events:
        if event["ph"] == "B" and event["name"] in at:
            at[event["name"]][names[event["pid"]]].append(event["ts"])
    gradients = [name for name, begun in at["ALLREDUCE"].items() if len(begun) == STEPS + 1]
    assert len(gradients) > 10
    return [
        max(at["NEGOTIATE_ALLREDUCE"][name][step] for name in gradients)
        - min(at["ALLREDUCE"][name][step] for name in gradients)
        for step in range(1, STEPS + 1)
    ]


def test_reductions_begin_before_the_last_gradient_is_there(tmp_path: Path) -> None:
    assert sum(lead > 0 for lead in lead_us(tmp_path, "overlapped")) > 0.8 * STEPS


def test_grouped_reductions_begin_after_the_last_gradient(tmp_path: Path) -> None:
    assert max(lead_us(tmp_path, "grouped")) <= 0
