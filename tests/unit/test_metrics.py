"""What the metrics of a sweep add up to, and that the dashboard asks for no others."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import metrics
from sweeps.run.metrics import Meter
from sweeps.scheduling.packing import Start
from sweeps.spec.arrangements import Node
from tests.unit.records import config, record
from workers.contract.messages import Cached, TrialConfig, TrialOutcome

CLUSTERS = Path(__file__).parents[2] / "clusters"
OF_RAY = re.compile(r"ray_node_(gpus_utilization|gpus_available|gram_used|gram_available|cpu_utilization|mem_used)")


class Metric:
    """As strict as Ray's: text for every tag, and a counter only grows."""

    def __init__(self, kind: str, said: dict[tuple[str, ...], Any], name: str, tags: tuple[str, ...]) -> None:
        self._kind, self._said, self._name, self._tags = kind, said, name, tags

    def _key(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert tuple(tags) == self._tags
        assert all(isinstance(value, str) for value in tags.values())
        return (self._name, *tags.values())

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert self._kind == "counter"
        assert value > 0
        self._said[self._key(tags)] = self._said.get(self._key(tags), 0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert self._kind == "gauge"
        self._said[self._key(tags)] = value

    def observe(self, value: float, tags: dict[str, str]) -> None:
        assert self._kind == "histogram"
        self._said.setdefault(self._key(tags), []).append(value)


@dataclasses.dataclass
class Engine:
    nodes: list[Node]
    seated: list[Start]


def metered(engine: Engine | None = None) -> tuple[Meter, dict[tuple[str, ...], Any]]:
    said: dict[tuple[str, ...], Any] = {}
    make = SimpleNamespace(
        Counter=lambda name, _, tags: Metric("counter", said, name, tags),
        Gauge=lambda name, _, tags: Metric("gauge", said, name, tags),
        Histogram=lambda name, _, boundaries, tags: Metric("histogram", said, name, tags),
    )
    return Meter(SimpleNamespace(name="one"), engine or Engine([], []), make), said  # type: ignore[arg-type]


def gpu(ranks: int) -> TrialConfig:
    return dataclasses.replace(config(gpus=ranks), device="gpu")


def launched(trial: TrialRecord, launch_s: float) -> TrialRecord:
    """A trial of three seconds, one of them its window, with ranks that were ready after so long."""
    assert trial.outcome.measurement
    ranks = tuple(
        dataclasses.replace(rank, entered_at=trial.started_at + launch_s) for rank in trial.outcome.measurement.ranks
    )
    measured = dataclasses.replace(trial.outcome.measurement, ranks=ranks)
    return dataclasses.replace(trial, outcome=dataclasses.replace(trial.outcome, measurement=measured))


def test_seconds_are_told_apart_and_add_up() -> None:
    meter, said = metered()
    meter.ended(launched(record(gpu(2)), 0.5))
    assert said["sweep_gpu_seconds_total", "one", "gpu", "measuring"] == pytest.approx(2.0)
    assert said["sweep_gpu_seconds_total", "one", "gpu", "launching"] == pytest.approx(1.0)
    assert said["sweep_gpu_seconds_total", "one", "gpu", "other"] == pytest.approx(3.0)
    assert said["sweep_launch_seconds", "one"] == pytest.approx([0.5])


@pytest.mark.parametrize("launch_s", [-100.0, 0.0, 1.0, 100.0])  # another node's clock may say anything
def test_seconds_add_up_whatever_a_nodes_clock_says(launch_s: float) -> None:
    spent = metrics.spent(launched(record(gpu(1)), launch_s))
    assert sum(spent.values()) == pytest.approx(3.0)
    assert min(spent.values()) >= 0


@pytest.mark.parametrize("off_by_s", [-30.0, 0.0, 30.0])
def test_how_long_a_start_took_is_the_same_whatever_a_nodes_clock_says(off_by_s: float) -> None:
    trial = launched(record(gpu(2)), 0.5 + off_by_s)
    assert trial.outcome.measurement
    ranks = tuple(dataclasses.replace(rank, launch_s=0.4 + rank.rank / 10) for rank in trial.outcome.measurement.ranks)
    measured = dataclasses.replace(trial.outcome.measurement, ranks=ranks)
    trial = dataclasses.replace(trial, outcome=dataclasses.replace(trial.outcome, measurement=measured))
    assert rows.metrics(trial)["launch_s"] == pytest.approx(0.5)  # the last rank's
    assert metrics.spent(trial)["launching"] == pytest.approx(0.5)


def test_an_attempt_that_does_not_count_has_cost_all_the_same() -> None:
    meter, said = metered()
    meter.tried_again(record(gpu(4), outcome=TrialOutcome(status="failed")))
    assert said == {("sweep_gpu_seconds_total", "one", "gpu", "other"): pytest.approx(12.0)}


def test_what_was_not_run_costs_nothing() -> None:
    meter, said = metered()
    known = Cached(sweep="x", measured_at=1.0, hardware="", software="", limited_by="", figures={})
    meter.ended(record(gpu(4), outcome=TrialOutcome(status="completed", cached=known)))
    ruled_out = record(gpu(4), outcome=TrialOutcome(status="infeasible"))
    meter.ended(dataclasses.replace(ruled_out, ended_at=ruled_out.started_at))
    outcomes = {("sweep_trials_total", "one", status): 1 for status in ("completed", "infeasible")}
    assert said == outcomes


def test_idle_gpus_are_those_that_no_trial_holds_and_none_once_it_is_over() -> None:
    nodes = [Node("a", 8, 4), Node("b", 8, 4)]
    engine = Engine(nodes, [Start(gpu(3), (("a", 3),)), Start(config(gpus=2), (("b", 2),))])
    meter, said = metered(engine)
    meter.passed()
    assert said == {("sweep_nodes", "one"): 2, ("sweep_gpus_held", "one"): 3, ("sweep_gpus_idle", "one"): 5}
    meter.close()
    assert not any(said.values())


def test_the_dashboard_asks_for_metrics_that_exist_and_for_all_of_ours() -> None:
    board = json.loads((CLUSTERS / "grafana.json").read_text())
    assert board["schemaVersion"] >= 36
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    asked = Counter(
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bray_\w+", target["expr"])
    )
    ours = {re.sub(r"^ray_|_(bucket|sum|count)$", "", name) for name in asked if name.startswith("ray_sweep_")}
    assert ours == {*metrics.METRICS}
    assert all(OF_RAY.fullmatch(name) for name in asked if not name.startswith("ray_sweep_"))


def test_prometheus_asks_the_ports_that_the_nodes_have() -> None:
    scraped = yaml.safe_load((CLUSTERS / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for group in job["static_configs"] for target in group["targets"]}
    assert {f"127.0.0.1:{port}" for port in (44217, 44227, 44237)} <= targets
    assert all(target.startswith("127.0.0.1:") for target in targets)
    assert "--metrics-export-port=44237" in (CLUSTERS.parent / "scripts/node").read_text()
