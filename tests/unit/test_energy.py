"""Joules an image mean the same in every trial: of processors, of GPUs, or of all that the trial took."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from sweeps import analysis
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from tests.unit.planted import frame
from tests.unit.records import config, record
from workers.contract import imagenet, messages
from workers.launch import verdict
from workers.launch.supervisor import RankEnd

KNOWN = ("joules_per_image", "cpu_joules_per_image", "gpu_joules_per_image")
CPU, GPU = {"cpu_energy_j": 50.0}, {"gpu_energy_j": 300.0}


def told(device: str, usage: Mapping[str, float]) -> TrialRecord:
    """A trial of 100 images whose nodes took these."""
    made = record(dataclasses.replace(config(), device=device))  # type: ignore[arg-type]
    return dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, usage=usage))


@pytest.mark.parametrize(
    ("device", "usage", "joules"),
    [
        ("gpu", CPU | GPU, (3.5, 0.5, 3.0)),
        ("gpu", GPU, (None, None, 3.0)),
        ("gpu", CPU, (None, 0.5, None)),
        ("gpu", {}, (None, None, None)),
        # without GPUs the processors are all of it, whatever else the node has
        ("cpu", CPU, (0.5, 0.5, None)),
        ("cpu", CPU | GPU, (0.5, 0.5, None)),
        ("cpu", GPU, (None, None, None)),
        # earlier versions summed whichever was known
        ("gpu", GPU | {"energy_j": 300.0}, (None, None, 3.0)),
    ],
)
def test_joules_an_image_are_of_all_that_the_trial_took_or_are_not_told(
    device: str, usage: Mapping[str, float], joules: tuple[float | None, ...]
) -> None:
    assert tuple(rows.row(told(device, usage)).get(name) for name in KNOWN) == joules


def test_cells_and_costs_keep_the_parts_apart() -> None:
    trials = frame([rows.row(told("gpu", GPU))])
    cell = analysis.cells(trials).iloc[0]
    assert cell["gpu_joules_per_image"] == 3.0
    assert cell["joules_per_image"] != cell["joules_per_image"]
    costs = analysis.costs(trials).iloc[0]
    assert costs["gpu_joules_per_epoch"] == 3.0 * imagenet.TRAIN_IMAGES
    assert costs["joules_per_epoch"] != costs["joules_per_epoch"]


def test_an_earlier_result_whose_joules_may_be_of_a_part_tells_none() -> None:
    def cached(**figures: float) -> dict[str, float]:
        made = told("gpu", {})
        one = messages.Cached(
            sweep="s", measured_at=0.0, hardware="", software="", limited_by="", figures={"images_per_s": 9.0} | figures
        )
        return rows.metrics(dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, cached=one)))

    assert cached(joules_per_image=3.0) == {"images_per_s": 9.0}
    parts = {"joules_per_image": 3.5, "cpu_joules_per_image": 0.5, "gpu_joules_per_image": 3.0}
    assert cached(**parts) == {"images_per_s": 9.0} | parts


def test_a_node_that_saw_nothing_takes_the_sums_of_its_trial_along() -> None:
    """Half of a trial's nodes is not the trial."""

    def ends(*usages: Mapping[str, float] | None) -> list[RankEnd]:
        measured = record(config(gpus=len(usages))).outcome.measurement
        assert measured
        return [
            RankEnd(rank=n, what="measured", report=report, usage=usage)
            for n, (report, usage) in enumerate(zip(measured.ranks, usages, strict=True))
        ]

    assert verdict.outcome(ends(CPU | GPU, CPU | GPU), ()).usage == {"cpu_energy_j": 100.0, "gpu_energy_j": 600.0}
    assert verdict.outcome(ends(CPU | GPU, {}), ()).usage == {}
    assert verdict.outcome(ends(CPU | GPU, None), ()).usage == CPU | GPU, "the second rank of one node"


def test_the_energy_of_a_machine_that_is_two_of_ray_s_nodes_is_told_once() -> None:
    measured = record(config(gpus=2)).outcome.measurement
    assert measured
    ends = [
        RankEnd(rank=n, what="measured", report=report, usage=CPU | GPU, host="10.0.0.1")
        for n, report in enumerate(measured.ranks)
    ]
    assert verdict.outcome(ends, ()).usage == {"cpu_energy_j": 50.0, "gpu_energy_j": 600.0}
