"""A simulated sweep beside the one that was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sweeps import report
from sweeps.analysis import study as studying
from sweeps.analysis.study import Study
from sweeps.record import ledger, ownership
from sweeps.report import twin
from sweeps.report.chart import Table
from sweeps.simulator.model import KINDS, step
from sweeps.spec import plan, sweep_file
from tests.unit import studies
from workers.contract.messages import TrialConfig

SWEEP = """
name: batches
model: resnet50
device: gpu
space: {batch_size: [64, 128], gpus: [1, 4], precision: fp16}
repeats: 3
"""
WHERE = "nodes=1,gpus=4,gpu=v100,noise=0.1%"


def slower(config: TrialConfig) -> float:
    """Than the model by a fifth at four GPUs, as fast as it at one; repeats are 1% apart."""
    rate = 1e3 * config.global_batch / step(config, KINDS["v100"], [config.gpus]).step_ms
    return rate * (0.8 if config.gpus == 4 else 1.0) * (0.99 + 0.01 * config.repeat)


@pytest.fixture(scope="module")
def simulated() -> Study:
    return studies.simulated(SWEEP, WHERE)


@pytest.fixture(scope="module")
def measured() -> Study:
    return studies.planted(SWEEP, slower)


def table(study: Study) -> Table:
    found = twin.section(study)
    assert found
    (block,) = found.blocks
    assert isinstance(block, Table)
    return block


def test_predicted_stands_beside_measured_with_its_error(simulated: Study, measured: Study) -> None:
    cells = twin.both(measured.measured, simulated.measured)
    assert len(cells) == 4
    of_one, of_four = (cells[cells["gpus"] == gpus] for gpus in (1, 4))
    assert of_one["error"].to_list() == pytest.approx([0, 0], abs=0.005)
    assert of_four["error"].to_list() == pytest.approx([0.25, 0.25], abs=0.005)
    assert of_one["is_within"].all()
    assert not of_four["is_within"].any()


def test_either_report_shows_the_same(simulated: Study, measured: Study) -> None:
    of_real = dataclasses.replace(measured, twin=simulated)
    of_simulated = dataclasses.replace(simulated, twin=measured)
    assert table(of_real) == table(of_simulated)
    assert table(of_real).columns[-4:] == (
        "predicted, images/s", "measured, images/s", "error", "within the interval"
    )  # fmt: skip
    assert [row[-1] for row in table(of_real).rows] == ["yes", "no", "yes", "no"]
    assert "twin" in [section.name for section in report.sections(of_simulated)]


def test_there_is_none_without_a_twin_nor_without_a_cell_in_common(simulated: Study, measured: Study) -> None:
    assert twin.section(measured) is None
    other = studies.simulated(SWEEP.replace("[64, 128]", "[32]"), WHERE)
    assert twin.section(dataclasses.replace(measured, twin=other)) is None


def test_a_single_repeat_has_no_interval_to_lie_in(simulated: Study) -> None:
    once = studies.planted(SWEEP.replace("repeats: 3", "repeats: 1"), slower)
    assert [row[-1] for row in table(dataclasses.replace(once, twin=simulated)).rows] == [""] * 4


def test_the_twin_is_the_latest_of_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))

    def begun(text: str = SWEEP, where: str = "") -> str:
        return ownership.create(plan.plan(sweep_file.parse(text, "x")), text, (), where).facts.name

    assert studying.read(begun()).twin is None
    for where in (WHERE, WHERE):
        begun(where=where)
    begun(SWEEP.replace("name: batches", "name: batches-2"), WHERE)
    found = studying.read("batches").twin
    assert found
    assert found.name == "batches-simulated-2"
    back = studying.read("batches-simulated").twin
    assert back
    assert back.name == "batches"
    unreadable = tmp_path / "batches-simulated-2" / "ledger.jsonl"
    unreadable.write_text(unreadable.read_text().replace(f'"version":{ledger.VERSION}', '"version":0'))
    earlier = studying.read("batches").twin
    assert earlier
    assert earlier.name == "batches-simulated"
