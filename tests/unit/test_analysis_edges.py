"""What analysis makes of too little: nothing, one trial, failures only, a figure that half of the trials lack."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis
from sweeps.analysis import predict
from tests.examples import examples
from tests.unit.planted import frame, trial
from workers.contract import imagenet

Function = Callable[[pd.DataFrame], Any]
FUNCTIONS: dict[str, Function] = {
    "batch_curve": analysis.batch_curve,
    "cells": analysis.cells,
    "convergence": analysis.convergence,
    "costs": analysis.costs,
    "decode_curve": analysis.decode_curve,
    "effects": analysis.effects,
    "feasible": analysis.feasible,
    "frontier": analysis.frontier,
    "interactions": analysis.interactions,
    "outliers": analysis.outliers,
    "pareto": lambda trials: analysis.pareto(analysis.cells(trials), ["images_per_s"], ["gpu_hours_per_epoch"]),
    "precision_ratios": analysis.precision_ratios,
    "ratios": lambda trials: analysis.ratios(trials, "gpus", 1),
    "scaling": analysis.scaling,
    "strong scaling": lambda trials: analysis.scaling(trials, is_strong=True),
    "stragglers": analysis.stragglers,
    "held_out": predict.held_out,
}
ONE = frame(trial(100.0, repeat=0, straggler_ratio=1.2, joules_per_image=2.0, peak_memory_mib=700.0))
TOO_LITTLE = {
    "nothing": analysis.frame([]),
    "a condition that nothing meets": ONE.iloc[:0],
    "one trial": ONE,
    "a failure": frame(trial(outcome="failed", kind="killed", message="killed by signal 9")),
}


def tables(found: Any) -> list[pd.DataFrame]:
    return list(found) if isinstance(found, tuple) else [found]


@functools.cache
def of_enough(function: Function) -> list[pd.DataFrame]:
    return tables(function(frame([trial(100.0 * n, gpus=n, straggler_ratio=1.2) for n in (1, 2)])))


@pytest.mark.parametrize("trials", TOO_LITTLE.values(), ids=TOO_LITTLE)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_too_little_gives_a_table_with_the_columns_of_enough(function: Function, trials: pd.DataFrame) -> None:
    for made, usual in zip(tables(function(trials)), of_enough(function), strict=True):
        assert {*usual} - {*made} <= {"gpus"}, "but for an axis that does not vary here"
        if trials.empty:
            assert made.empty


def test_what_one_trial_tells_is_told() -> None:
    (cell,) = analysis.scaling(ONE).to_dict("records")
    assert (cell["n"], cell["speedup"], cell["efficiency"], cell["intra"]) == (1, 1.0, 1.0, 1.0)
    assert math.isnan(cell["images_per_s_ci"])
    assert analysis.costs(ONE)["joules_per_epoch"].tolist() == [pytest.approx(2.0 * imagenet.TRAIN_IMAGES)]
    assert analysis.feasible(ONE)["fits"].tolist() == [True]
    assert analysis.stragglers(ONE)["straggler_ratio"].tolist() == [1.2]
    assert analysis.best(ONE)["images_per_s"] == 100.0
    assert analysis.outliers(ONE).empty
    assert analysis.effects(ONE).empty


GRID = [*itertools.product([1, 2], [8, 16], ["fp32", "fp16"], range(2))]
USUAL = {"joules_per_image": 1.0, "straggler_ratio": 1.2, "input_share": 0.1, "peak_memory_mib": 700.0}
WHOLE = frame(
    [trial(100.0 * g + n, gpus=g, batch_size=b, precision=p, repeat=r, **USUAL) for n, (g, b, p, r) in enumerate(GRID)]
)
FIGURES = ("images_per_s", "joules_per_image", "step_ms_mean", "peak_memory_mib", "straggler_ratio", "input_share")
LACKING = st.sets(st.sampled_from(range(len(GRID))), min_size=1)


def without(figure: str, lacking: set[int]) -> pd.DataFrame:
    return WHOLE.assign(**{figure: WHOLE[figure].mask(WHOLE.index.isin(lacking))})


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@examples(3)  # a table each, or several
@given(LACKING, st.sampled_from(FIGURES))
def test_a_figure_that_some_trials_lack_doubles_no_row_of_a_table(
    function: Function, lacking: set[int], figure: str
) -> None:
    for made in tables(function(without(figure, lacking))):
        assert not made.duplicated().any()


@examples(6)
@given(LACKING, st.sampled_from(FIGURES))
def test_a_figure_that_some_trials_lack_is_the_mean_of_those_that_have_it(lacking: set[int], figure: str) -> None:
    trials = without(figure, lacking)
    known = trials.dropna(subset=[figure]).groupby("cell")[figure]
    found = analysis.cells(trials).set_index("cell")
    assert len(found) == len(GRID) / 2, "no cell is dropped"
    if figure in analysis.FIGURES:
        assert found[figure].dropna().to_dict() == pytest.approx(known.mean().to_dict())
    measured = trials.dropna(subset=["images_per_s"]).groupby("cell").size()
    assert found["n"].to_dict() == {cell: measured.get(cell, 0) for cell in found.index}
