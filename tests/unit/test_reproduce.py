"""The verdict on each row of a table, against planted trials whose verdicts are known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.analysis import publication, recipe, reproduction, setups
from sweeps.analysis.publication import PublishedTable
from sweeps.cli import main
from sweeps.record import ledger, ownership, rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import driver, reproduce
from sweeps.run.terms import Terms
from sweeps.simulator.cluster import parse
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import arrangements, keys, plan, sweep_file
from tests.unit.planted_tables import HEAD, OWN, held, planted, sweep_of, table, verdicts
from tests.unit.records import record
from workers.contract.messages import TrialConfig


def test_what_is_off_differs_by_so_much_and_what_is_missing_says_why() -> None:
    found = held(table(), {2: 1.0, 3: 0.8})
    assert verdicts(found) == {2: ("holds", ""), 3: ("differs", "differs"), 4: ("not measured", "")}
    rate = found[1].rate
    assert rate
    assert rate.why == "-20.0%"
    assert rate.low < 0.8 < rate.high < 0.95
    assert found[2].rate
    assert found[2].rate.why == "needs 1 rank, for which there is no room here"


def test_a_speed_up_holds_on_a_machine_whose_rates_do_not() -> None:
    assert verdicts(held(table(), {2: 0.1, 3: 0.1, 4: 0.1})) == {
        2: ("differs", ""),
        3: ("differs", "holds"),
        4: ("differs", ""),
    }


def test_the_tolerance_and_the_print_s_rounding_are_allowed_and_no_more() -> None:
    text = "model,device,batch_size,gpus,images_per_s\ntiny,cpu,8,1,{}\n"
    for printed, factor, tolerance, verdict in [
        ("1000", 1.03, 0.05, "holds"),
        ("1000", 1.03, 0.02, "differs"),
        ("1e3", 1.3, 0.0, "holds"),  # 500 to 1500, as it is printed
        ("1000", 1.3, 0.0, "differs"),
        ("1000", 0.94, 0.05, "differs"),
        ("1000", 0.95, 0.05, "open"),
        ("1000", 1.0, 0.0, "open"),
    ]:
        (one,) = held(table(text.format(printed)), {2: factor}, tolerance, noise=0.001)
        assert one.rate
        assert one.rate.verdict == verdict, (printed, factor, tolerance)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.79, 0.953, "open"),  # 13% off, and only not refuted
        (0.79, 0.949, "differs"),
        (0.949, 1.0, "open"),
        (0.951, 1.049, "holds"),
        (0.951, 1.051, "open"),
        (1.051, 1.06, "differs"),
        (0.5, 2.0, "open"),
    ],
)
def test_a_row_holds_where_its_whole_interval_is_allowed_and_differs_where_none_of_it_is(
    low: float, high: float, verdict: str
) -> None:
    assert reproduction.judge(low, high, 0.05, 0.0) == verdict


def test_what_is_13_percent_off_is_open_and_says_what_would_tell() -> None:
    (one,) = held(table("model,device,batch_size,gpus,images_per_s\ntiny,cpu,8,1,1000\n"), {2: 0.87}, noise=0.0367)
    assert one.rate
    assert (one.rate.low, one.rate.high) == pytest.approx((0.794, 0.953), abs=0.001)
    assert one.rate.verdict == "open"
    assert one.rate.why == f"{one.rate.low - 1:+.1%} to {one.rate.high - 1:+.1%} reaches over ±5.05%: more repeats"


def test_a_quiet_print_does_not_make_noisy_repeats_sure() -> None:
    """Ten repeats that agree to a thousandth, and three here of 5%: the interval is that of the three."""
    text = "model,device,batch_size,gpus,images_per_s,images_per_s_ci,repeats\ntiny,cpu,8,1,1000,{},10\n"
    (own,), (beside,) = (held(table(text.format(ci)), {2: 1.0}, noise=0.05) for ci in ("0.001", "1"))
    assert own.rate
    assert beside.rate
    alone, both = (math.log(claim.high / claim.low) / 2 for claim in (own.rate, beside.rate))
    assert alone == pytest.approx(4.3027 * 0.05 / math.sqrt(3), rel=0.01)
    assert both == pytest.approx(math.hypot(alone, 0.001), rel=1e-6)


def test_an_interval_too_wide_to_tell_and_a_single_repeat_are_open() -> None:
    (one, *_) = held(table(), {2: 1.0, 3: 1.0, 4: 1.0}, noise=0.3)
    assert one.rate
    assert one.rate.verdict == "open"
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    (alone, *_) = reproduction.reproduce(found, asked, planted(config, [1000.0]), set(), 0.05)
    assert alone.rate
    assert (alone.rate.verdict, alone.rate.why) == ("open", "a single repeat has no interval")


@pytest.mark.parametrize("column", ["data_files", "arrangement"])
def test_repeats_on_other_files_or_arranged_otherwise_are_not_averaged(column: str) -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = [*planted(config, [1000.0, 1010.0], **{column: "a"}), *planted(config, [2000.0, 2010.0], **{column: "b"})]
    (one, *_) = reproduction.reproduce(found, asked, trials, set(), 0.05)
    assert one.rate is None or one.rate.verdict != "holds"
    assert "not averaged" in one.why


def test_the_table_s_own_interval_counts_as_well() -> None:
    sure = held(table(), {2: 1.05, 3: 1.05, 4: 1.05}, 0.0, 0.001)[0].rate
    unsure = held(table(OWN.replace("1000,10,5", "1000,50,5")), {2: 1.05, 3: 1.05, 4: 1.05}, 0.0, 0.001)[0].rate
    assert sure
    assert unsure
    assert (sure.verdict, unsure.verdict) == ("differs", "open")
    assert unsure.high - unsure.low > 2 * (sure.high - sure.low)


def test_repeats_on_unlike_machines_are_not_averaged() -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = planted(config, [1000.0, 1001.0], hardware="aaaa") + planted(config, [500.0], hardware="bbbb")
    (one, *_) = reproduction.reproduce(found, asked, trials, {config.cell}, 0.05)
    assert one.rate
    assert one.rate.verdict == "not measured"
    assert "2 hardware fingerprints" in one.rate.why


@pytest.mark.parametrize("column", ["hardware", "software", "data_files"])
def test_a_relative_figure_is_over_a_cell_that_was_measured_alike(column: str) -> None:
    found, asked = table(), sweep_of(table())

    def relatives(*made: str) -> list[str]:
        trials = []
        for row, what in zip(found.rows, made, strict=True):
            config = reproduction.cell_of(row.settings, asked)
            assert isinstance(config, TrialConfig)
            trials += planted(config, [1000.0, 1010.0], **{column: what})
        judged = reproduction.reproduce(found, asked, trials, set(), 0.05)
        return [one.relative.why for one in judged if one.relative]

    words = f"its base was measured with other {column.replace('_', ' ')}"
    assert words in relatives("old", "new", "new")
    assert words not in relatives("new", "new", "new")


def test_a_failed_or_infeasible_row_says_what_became_of_it() -> None:
    found, asked = table(), sweep_of(table())
    config = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(config, TrialConfig)
    trials = planted(config, [1.0], outcome="infeasible", kind="device memory", message="2 GiB are needed")
    (one, other, _) = reproduction.reproduce(found, asked, trials, {config.cell}, 0.05)
    assert one.rate
    assert one.rate.why == "infeasible: device memory: 2 GiB are needed"
    assert other.relative
    assert other.relative.verdict == "not measured"


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.2), st.floats(0.0, 0.3), st.floats(0.0, 0.01))
def test_a_wider_tolerance_never_makes_a_row_differ_nor_one_that_holds_open(
    ratio: float, half: float, tolerance: float, u: float
) -> None:
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    strict, loose = (reproduction.judge(low, high, one, u) for one in (tolerance, tolerance + 0.1))
    assert not (loose == "differs" and strict != "differs")
    assert not (strict == "holds" and loose != "holds")
    assert (strict == "differs") == (low > 1 + tolerance + u or high < 1 - tolerance - u)


@pytest.mark.parametrize(("override", "counts"), [("emulate=true", True), ("xla=on", False), ("batch_size=64", False)])
def test_how_far_the_simulator_misses_a_row_is_told_of_the_program_that_was_fitted_alone(
    override: str, counts: bool
) -> None:
    where, found = "nodes=2,gpu=v100-k", publication.published("a-table-5").system("C4140-K")
    asked, done = simulated(found, where, override)
    trials = [rows.row(one) for one in done]
    judged = reproduction.reproduce(found, asked, trials, {one.config.cell for one in done}, 0.05)
    departed = [reproduce._departures(found, one, asked) for one in judged]
    assert any(departed)
    assert any(error is not None for _, error in reproduce._fit(judged, departed, where)) is counts


def simulated(found: PublishedTable, where: str, *overrides: str) -> tuple[keys.SweepSpec, list[TrialRecord]]:
    """What there is room for, as the simulator answers."""
    asked, cluster = sweep_of(found, *overrides), parse(where)
    done = []
    for config in plan.plan(asked).trials:
        if seats := arrangements.place(config, cluster.nodes, arrangements.idle(cluster.nodes)):
            group = SimulatedGroup(cluster, seats)
            group.start(config, at=1_700_000_000.0)
            outcome = group.wait()
            assert outcome
            done.append(TrialRecord(config=config, outcome=outcome, started_at=0.0, ended_at=group.took_s))
    return asked, done


def test_a_simulated_run_says_so_and_that_the_simulator_was_fitted_to_these_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, found = "nodes=2,gpu=v100-k", publication.published("a-table-5")
    asked, done = simulated(found, where)
    trials = [rows.row(one) for one in done]
    judged = reproduction.reproduce(found, asked, trials, {one.config.cell for one in done}, 0.05)
    departed = [reproduce._departures(found, one, asked) for one in judged]
    fit = list(reproduce._fit(judged, departed, where))
    assert [is_in for is_in, _ in fit] == [True] * 14
    known = {one.row.settings["model"]: error for one, (_, error) in zip(judged, fit, strict=True) if error is not None}
    assert known == {
        "inception_v4": -0.036, "vgg19": 0.021, "vgg16": -0.003, "inception_v3": 0.039, "resnet50": 0.012,
        "googlenet": -0.079, "alexnet": 0.010,
    }  # fmt: skip
    unlike = list(setups.aspects(found, judged, asked, (), parse(where)))
    reproduce._show(found, judged, unlike, fit, departed, "x-simulated", where, 0.05)
    out = capsys.readouterr().out
    assert out.startswith(f"a-table-5 against x-simulated SIMULATED on {where}: nothing was measured\n")
    assert "images/s: of 14, 6 hold, 1 open, 7 not measured" in out
    assert "the simulator was fitted to 14 of these 14 rows" in out
    assert "missed by 2.1% (median), 7.9% (worst): 6 of 7 within 5%" in out
    assert "SIMULATED: PowerEdge C4140-K" in out


def test_frameworks_that_the_simulator_was_not_fitted_to_are_not_claimed() -> None:
    where, found = "nodes=8,gpu=v100-pcie", publication.published("c-section-iv-a")
    asked, done = simulated(found, where)
    judged = reproduction.reproduce(found, asked, [rows.row(one) for one in done], set(), 0.05)
    fit = reproduce._fit(judged, [None] * len(judged), where)
    seen = {one.row.framework: is_in for one, (is_in, _) in zip(judged, fit, strict=True)}
    assert seen == {"mxnet": False, "tensorflow-horovod": True, "caffe2": False}
    assert {one.over for one in judged} == {"1 GPU"}
    assert not any(one.rate for one in judged), "print gives no rates there"


@pytest.mark.parametrize(
    ("factor", "tolerance", "verdict", "why"),
    [
        (1.05, "2%", "differs", "+5.0%"),
        (0.95, "2%", "differs", "-5.0%"),
        (1.005, "2%", "holds", ""),
        (0.995, "2%", "holds", ""),
        (1.005, "0%", "differs", "+0.5%"),
        (1.0, "0%", "open", "more repeats"),
        (1.05, "10%", "holds", ""),
    ],
)
def test_records_that_are_off_by_so_much_have_the_verdict_and_the_difference_that_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    factor: float, tolerance: str, verdict: str, why: str,
) -> None:  # fmt: skip
    """One cell of three is off; repeats of one cell are within 0.02% of each other."""
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(f"{HEAD},device\ntiny,8,1,1000.00,cpu\ntiny,8,2,1900.00,cpu\ntiny,16,2,1990.00,cpu\n")
    text = recipe.text(publication.load(Path("own.csv")), 3)
    planned = plan.plan(sweep_file.parse(text, "recipe"))
    book = ownership.create(planned, text)
    rates = {(8, 1): 1000.0, (8, 2): 1900.0 * factor, (16, 2): 1990.0}
    for config in planned.trials:
        rate = rates[config.batch_size, config.gpus] * (1 + (config.repeat - 1) / 5000)
        book.write(record(config, rate, hardware="node"))
    book.end("complete")
    asked = ["reproduce", "own.csv", "--measured", "reproduce-own", "--tolerance", tolerance]
    assert main.main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    met = "open" if tolerance == "0%" else "holds"  # repeats differ by more than the print's rounding
    assert [row["rate_verdict"] for row in found] == [met, verdict, met]
    assert [row["relative_verdict"] for row in found][1] == verdict, "over its own row of one GPU"
    for told in (found[1]["rate_why"], found[1]["relative_why"]):
        assert (bool(told), told.endswith(why)) == (bool(why), True)
    assert found[1]["rate_ratio"] == pytest.approx(factor, abs=1e-6)
    assert found[1]["rate_low"] < factor < found[1]["rate_high"]
    assert found[1]["rate_high"] - found[1]["rate_low"] < 0.004
    assert main.main(asked) == 0
    out = capsys.readouterr().out
    assert "not measured" not in out
    assert (f"differs: {why}" in out) is (verdict == "differs")


def test_a_run_is_a_sweep_measured_anew_whose_exit_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is run is replaced; the file, the terms, the streams and the comparison are the command's own."""
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)
    asked: list[Terms] = []

    def drive(file: Path, overrides: tuple[str, ...], terms: Terms, begun: Callable[[str], object]) -> int:
        asked.append(terms)
        text = file.read_text()
        planned = plan.plan(sweep_file.parse(text, str(file), overrides))
        book = ownership.create(planned, text, overrides)
        begun(book.facts.name)
        for config in planned.trials:
            book.write(record(config, 1000.0 * config.gpus * (1 + config.repeat / 1000), hardware="node"))
        book.end("complete")
        print("what was found")
        return 1

    monkeypatch.setattr(driver, "drive", drive)
    assert main.main(["reproduce", "own.csv", "--format", "json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "what was found" in printed.err
    assert (found["table"], found["sweep"], found["tolerance"]) == ("own", "reproduce-own", 0.05)
    assert [row["rate_verdict"] for row in found["rows"]] == ["holds", "open", "differs"]
    assert found["rows"][1]["rate_ratio"] == pytest.approx(2.002 / 1.9), "5.4% off, but both sides have intervals"
    assert [row["rate_published"] for row in found["rows"]] == [1000, 1900, 1200]
    assert [(terms.is_fresh, terms.skips_impossible) for terms in asked] == [(True, True)]
    assert ledger.read("reproduce-own").facts.file == Path("results/reproduce-own.yaml").read_text()
