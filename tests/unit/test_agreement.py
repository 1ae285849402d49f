"""What two sweeps say of each other's cells, of every repeat and of the first three, and what a trial's own interval
says of the other repeats."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

import agreement
import verdicts
from sweeps import analysis
from sweeps.record import rows
from sweeps.spec import plan, sweep_file
from tests.unit.records import config, record
from workers.contract.messages import TrialConfig, Window

CELLS, REPEATS = 12, 8


@functools.cache  # each once, not once a sweep
def planned(batch_size: int, repeat: int) -> TrialConfig:
    return config(batch_size=batch_size, repeat=repeat)


def sweep(rates: Any, half_width: float = 0.01) -> Any:
    """The trials of a sweep: a row of rates a cell, each with an interval of this part of it."""
    found = []
    for cell, of_cell in enumerate(rates):
        for repeat, rate in enumerate(of_cell):
            made = record(planned(8 + cell, repeat), images_per_s=rate)
            assert made.outcome.measurement
            window = Window(warmup_steps=5, stopped_by="interval", half_width_ms=100 * half_width)
            ranks = tuple(dataclasses.replace(rank, window=window) for rank in made.outcome.measurement.ranks)
            measured = dataclasses.replace(made.outcome.measurement, ranks=ranks)
            found.append(dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, measurement=measured)))
    return analysis.frame([rows.row(one) for one in found])


def drawn(seed: int, spread: float, apart: float = 1.0) -> Any:
    """Rates of cells that are this much faster each than the one before; repeats scatter by `spread` of that."""
    of_cells = 100 * apart ** np.arange(CELLS)[:, None]
    return of_cells * (1 + spread * np.random.default_rng(seed).standard_normal((CELLS, REPEATS)))


def figures(half_width: float, spread: float = 0.1) -> dict[str, float]:
    return agreement.figures([sweep(drawn(seed, spread), half_width) for seed in (1, 2)], REPEATS)


def test_a_trial_whose_interval_leaves_out_what_repeats_differ_by_seldom_agrees_with_the_others() -> None:
    """One that holds it agrees in some 95%. To take each trial to be exact agrees as seldom whatever it says."""
    honest, far_too_narrow = figures(1.96 * 0.1), figures(0.001)
    assert honest["trials_shown"] == 2 * CELLS * REPEATS
    assert honest["trials_agreeing"] > 0.9
    assert far_too_narrow["trials_agreeing"] < 0.7
    assert honest["exact_trials_agreeing"] == pytest.approx(far_too_narrow["trials_agreeing"], abs=0.02)
    assert far_too_narrow["trials_median_half_width"] == pytest.approx(0.001)


def test_only_trials_that_show_an_interval_are_held_against_the_others_but_the_others_count_all() -> None:
    trials = sweep([[100.0, 100.0, 130.0]])
    trials.loc[trials["repeat"] > 0, "is_steady"] = 0.0
    ((trial, others),) = agreement.beside_others(trials)
    assert trial == pytest.approx((100.0, 1.0))
    assert others[0] == pytest.approx(115.0)


def test_the_first_three_repeats_are_judged_by_themselves() -> None:
    """Of these the cells are far apart and do not scatter; the rest are all alike."""
    rates = np.full((CELLS, REPEATS), 1000.0)
    rates[:, : agreement.DEFAULT_REPEATS] = 100 * 2.0 ** np.arange(CELLS)[:, None]
    found = agreement.figures([sweep(rates), sweep(rates)], REPEATS)
    assert found["default_median_half_width"] == pytest.approx(0, abs=1e-9)
    assert found["default_unlike_cells_agreeing"] == 0
    assert found["median_half_width"] > 0.1
    assert found["unlike_cells_agreeing"] > 0.5


def test_what_scatters_alike_is_three_times_as_wide_with_three_repeats_and_its_bound_too() -> None:
    found = figures(0.01, spread=0.1)
    ratio = found["default_median_half_width"] / found["median_half_width"]
    limits = [float(agreement.BOUNDS[f"{of}median_half_width"].split()[1]) for of in ("default_", "")]
    assert ratio == pytest.approx(limits[0] / limits[1], rel=0.35)


def test_cells_that_differ_by_less_than_three_repeats_can_tell_do_not_meet_the_bound_of_unlike_cells() -> None:
    """As each figure of the default that is bounded can be missed by itself."""
    wide = agreement.figures([sweep(drawn(seed, 0.1, apart=1.05)) for seed in (1, 2)], REPEATS)
    assert "default_unlike_cells_agreeing" in verdicts.unmet(wide, agreement.BOUNDS)
    narrow = agreement.figures([sweep(drawn(seed, 0.005, apart=1.2)) for seed in (1, 2)], REPEATS)
    of_widths = {figure: bound for figure, bound in agreement.BOUNDS.items() if figure != "errors_apart"}
    assert verdicts.unmet(narrow, of_widths) == []
    slower = [sweep(drawn(1, 0.005, apart=1.2)), sweep(0.7 * drawn(2, 0.005, apart=1.2))]
    missed = verdicts.unmet(agreement.figures(slower, REPEATS), of_widths)
    assert missed == ["cells_agreeing", "default_cells_agreeing"]


def test_three_are_the_repeats_of_a_sweep_that_names_no_number() -> None:
    text = agreement.SWEEP.replace("NAME", "x").replace("repeats: REPEATS\n", "")
    trials = plan.plan(sweep_file.parse(text, "x")).trials
    assert {trial.repeat for trial in trials} == {*range(agreement.DEFAULT_REPEATS)}
