"""The state of MLflow's page for a sweep: which trials, in which order, what of them, drawn how."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from sweeps.record.ledger import SweepFacts
from sweeps.store import saved_views
from tests.unit import studies

SCALING = """
name: scaling
model: resnet50
data: data/images
device: gpu
space:
  batch_size: [64, 128]
  gpus: [1, 2, 4]
  precision: [fp32, fp16]
  decode_threads: [4, auto]
repeats: 2
"""
LEARNING = """
name: learning
protocol: convergence
model: tiny
data: digits
device: cpu
epochs: 2
space: {batch_size: 8, gpus: 1, lr_schedule: ["0.1", "0.2"]}
"""
MOST_OF_A_TAG = 5000  # characters, in stores that older versions made


def facts(text: str = SCALING) -> SweepFacts:
    return studies.planted(text, lambda config: 100.0).facts


def state(text: str = SCALING) -> dict[str, Any]:
    return saved_views.views(facts(text), 1)[0].state


def charts(text: str, kind: str) -> list[dict[str, Any]]:
    return [chart for chart in state(text)["compareRunCharts"] if chart["type"] == kind]


def test_the_tag_is_json_in_json_under_a_key_that_stays() -> None:
    name, value = saved_views.views(facts(), 1)[0].tag(1.0, 2.0)
    assert name == "mlflow.sharedViewState.0"
    said = json.loads(value)
    assert (said["name"], said["createdAt"], said["updatedAt"]) == ("scaling", 1000, 2000)
    assert json.loads(said["state"]) == state()
    assert len(value) < MOST_OF_A_TAG


def test_it_shows_this_sweeps_trials_the_fastest_first() -> None:
    view = state()
    assert view["searchFilter"] == "tags.`sweep.id` = '0' AND tags.`sweep.trial` IS NOT NULL"
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`images_per_s`", False)


def test_columns_begin_with_the_swept_axes_as_numbers_where_they_are() -> None:
    columns = state()["columnOrder"]
    assert columns[:5] == [
        "metrics.`axis/batch_size`",
        "metrics.`axis/gpus`",
        "params.`precision`",
        "params.`decode_threads`",  # `auto` stands among them
        "metrics.`images_per_s`",
    ]
    assert "tags.`sweep.outcome`" in columns


def test_charts_lead_from_the_axes_to_images_per_s() -> None:
    (parallel,) = charts(SCALING, "PARALLEL")
    assert parallel["selectedParams"] == ["precision", "decode_threads"]
    assert parallel["selectedMetrics"] == ["axis/batch_size", "axis/gpus", "images_per_s"]
    drawn = {(chart["xaxis"]["key"], chart["yaxis"]["key"]) for chart in charts(SCALING, "SCATTER")}
    assert {("axis/gpus", "images_per_s"), ("axis/gpus", "images_per_s_per_gpu")} <= drawn


def test_what_learns_is_sorted_and_drawn_by_its_accuracy() -> None:
    assert state(LEARNING)["orderByKey"] == "metrics.`accuracy/top1`"
    assert [chart["metricKey"] for chart in charts(LEARNING, "LINE")] == ["epochs/top1"]


@pytest.mark.parametrize(("trials", "expected"), [(100, 1), (101, 2)])
def test_more_trials_than_the_page_draws_have_a_view_of_each_cell_once(trials: int, expected: int) -> None:
    made = saved_views.views(facts(), trials)
    assert len(made) == len({view.key for view in made}) == expected
    assert [view.state["searchFilter"].endswith("= '0'") for view in made] == [False, True][:expected]


def test_a_page_is_named_only_where_its_view_was_written() -> None:
    tags = [view.tag(0, 0)[0] for view in saved_views.views(facts(), 500)]
    told = saved_views.addresses("http://host:1/", "7", "0", "abc", tags)
    runs = "http://host:1/#/experiments/7/runs"
    assert told["trials"] == f"{runs}?workflowType=machine_learning&viewStateShareKey=0"
    assert told["charts"] == f"{runs}?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=0-once"
    assert told["verdict"] == f"{runs}/abc?workflowType=machine_learning"
    assert saved_views.addresses("http://host:1", "7", "0", "", []) == {
        "trials": f"{runs}?workflowType=machine_learning"
    }


def test_two_sweeps_of_a_study_have_two_views() -> None:
    other = dataclasses.replace(facts(), id="1", name="scaling-2")
    keys = {saved_views.views(of, 1)[0].key for of in (facts(), other)}
    assert len(keys) == 2
