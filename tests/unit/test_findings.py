"""A sweep's findings in words, the same for the console, the report and MLflow; and what is suggested at the end."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from sweeps import report
from sweeps.analysis import findings
from sweeps.analysis.findings import best, next_steps, outcomes
from sweeps.analysis.findings.next_steps import Situation
from sweeps.analysis.study import Study
from sweeps.record import rows
from sweeps.report import answer
from sweeps.report.page import rich
from sweeps.store import description
from sweeps.text.caller import Caller
from tests.unit import studies
from tests.unit.planted import frame, trial
from workers.contract.messages import Cached, TrialConfig, TrialOutcome

FILE = "{name: words, model: tiny, device: cpu, repeats: 3, space: {batch_size: [8, 16, 32], gpus: 1}}"
NOISE = {0: 0.99, 1: 1.0, 2: 1.01}
LEARNING = (
    "{name: words, model: tiny, data: digits, device: cpu, protocol: convergence, epochs: 90, repeats: 3,"
    " target: {top1: 0.9}, space: {batch_size: [8, 16, 32], gpus: 1}}"
)
HERE = Situation(file="words.yaml", report="results/words/report.html")


def study(rates: dict[int, float], text: str = FILE) -> Study:
    """Rates by batch size, 1% of noise in the repeats."""
    return studies.planted(text, lambda config: rates[config.batch_size] * NOISE[config.repeat])


def ended(text: str = FILE, **by_status: int) -> Study:
    """The first trials of a sweep ended so, as many of each; the rest completed."""
    made = study({8: 100.0, 16: 150.0, 32: 200.0}, text)
    ends = [status for status, n in by_status.items() for _ in range(n)]
    records = list(made.records)
    for n, status in enumerate(ends):
        log = f"logs/{n}.log" if status in ("failed", "lost") else ""
        kind = {"infeasible": "device memory", "lost": "node lost"}.get(status, "killed")
        end = TrialOutcome(status=status, kind=kind, message="why", log=log)  # type: ignore[arg-type]
        records[n] = dataclasses.replace(records[n], outcome=end)
    return dataclasses.replace(made, records=tuple(records))


def suggested(of: Study, at: Situation = HERE) -> dict[str, str]:
    return {step.word: step.what for step in next_steps.suggest(of, findings.find(of), at)}


def learned(hours: dict[int, tuple[float, ...]], reached: dict[int, int] | None = None) -> Study:
    """Hours to the target by batch size and repeat; an epoch an hour, top-1 a little unlike."""
    made = studies.planted(LEARNING, lambda config: 1.0)

    def row(config: TrialConfig) -> dict[str, object]:
        at = hours[config.batch_size][config.repeat]
        is_there = config.repeat < (reached or {}).get(config.batch_size, 3)
        own = {"hours_to_target": at, "epochs_to_target": round(at)} if is_there else {}
        return trial(100.0, **{**rows.params(config), "top1": 0.9 + 0.001 * config.repeat, **own})

    return dataclasses.replace(made, records=(), stored=frame([row(config) for config in made.facts.trials]))


def test_a_lead_that_is_shown_is_called_the_fastest_with_how_much_it_is_at_least() -> None:
    found = findings.find(study({8: 100.0, 16: 150.0, 32: 200.0}))
    assert found.answer.says == "Batch size 32 trains fastest: 200 ± 5 images/s"
    assert found.answer.sureness == "shown"
    assert found.answer.evidence["compared"] == 3
    assert 0.2 < found.answer.evidence["lead_low"] < 1 / 3 < found.answer.evidence["lead_high"]
    assert (
        found.notes[0].says
        == f"It is at least {100 * found.answer.evidence['lead_low']:.2g}% faster than any other cell."
    )


def test_a_lead_that_is_not_shown_says_what_is_open_and_what_would_tell() -> None:
    found = findings.find(study({8: 100.0, 16: 199.0, 32: 200.0}))
    assert found.answer.says.startswith("Batch size 32 leads, but not clearly: ")
    assert found.answer.sureness == "open"
    (says,) = [one.plain for one in found.notes if one.rule == "told apart"]
    assert says.startswith("Batch size 16 can't be told from it at 95%: 3 repeats each, and its lead is −")
    assert says.endswith("Even 30 repeats would not tell: they are too near to each other, or scatter too much.")
    nearer = findings.find(study({8: 100.0, 16: 197.0, 32: 200.0}))
    (says,) = [one.plain for one in nearer.notes if one.rule == "told apart"]
    assert "repeats would tell, if its lead is what it seems" in says


def test_of_a_best_cell_that_no_other_is_told_from_it_is_said_so() -> None:
    found = findings.find(study({8: 198.0, 16: 199.0, 32: 200.0}))
    (says,) = [one.plain for one in found.notes if one.rule == "told apart"]
    assert says.startswith("None of the 2 other cells can be told from it at 95%, batch size 16 first: ")


def test_a_lead_that_may_be_anything_is_told_without_its_digits() -> None:
    assert best._percent(0.5, "images_per_s") == "64.9%"
    assert best._percent(-0.5, "images_per_s") == "−39.3%"
    assert best._percent(16.0, "images_per_s") == "more than 1,000%", "of two repeats that scatter five times"


def test_of_single_repeats_nothing_is_called_the_fastest() -> None:
    once = study({8: 100.0, 16: 150.0, 32: 900.0}, FILE.replace("repeats: 3", "repeats: 1"))
    found = findings.find(once)
    assert "fastest" not in " ".join(found.lines())
    assert "every cell has a single repeat, and no interval. At least 3 repeats would tell." in found.notes[0].plain
    assert suggested(once)["next"] == "sweep run words.yaml --set repeats=3"


def test_one_cell_is_not_the_fastest_of_anything() -> None:
    alone = studies.planted("{name: a, model: tiny, device: cpu, space: {batch_size: 8, gpus: 1}}", lambda _: 100.0)
    assert findings.find(alone).answer.says == "It trains 100 ± 0 images/s"


def test_the_soonest_to_the_target_is_named_where_its_lead_is_shown_and_left_open_where_not() -> None:
    apart = findings.find(learned({8: (10.0, 10.1, 9.9), 16: (8.0, 8.1, 7.9), 32: (12.0, 12.1, 11.9)}))
    assert apart.answer.says.startswith("Batch size 16 reaches the target soonest: in 8 ± ")
    assert "9 of 9 trials reached the target of top-1 90.0%." in [one.says for one in apart.notes]
    assert {"told apart", "target", "fewest epochs", "most accurate"} == {one.rule for one in apart.notes}
    near = findings.find(learned({8: (9.0, 10.1, 9.5), 16: (8.9, 10.2, 9.3), 32: (12.0, 12.1, 11.9)}))
    assert "leads, but not clearly" in near.answer.says


def test_a_cell_that_did_not_always_reach_the_target_is_not_the_soonest_to_it() -> None:
    some = learned({8: (10.0, 10.1, 9.9), 16: (1.0, 1.1, 0.9), 32: (12.0, 12.1, 11.9)}, {16: 2, 32: 0})
    found = findings.find(some)
    assert found.answer.says.startswith("Batch size 8 alone reached the target with every repeat: in 10")
    assert [one.rule for one in found.doubts].count("missed target") == 2


@pytest.mark.parametrize("outcome", ["failed", "lost", "pruned", "infeasible"])
def test_a_cell_of_which_a_repeat_never_ended_is_not_the_soonest_to_the_target(outcome: str) -> None:
    """Two repeats reached it early; the third did not come so far."""
    made = learned({8: (10.0, 10.1, 9.9), 16: (1.0, 1.1, 0.9), 32: (12.0, 12.1, 11.9)})
    assert made.stored is not None
    last = (made.stored["batch_size"] == 16) & (made.stored.groupby("batch_size").cumcount() == 2)
    stored = made.stored.copy()
    stored["outcome"] = stored["outcome"].astype(str).where(~last, outcome)
    stored.loc[last, ["images_per_s", "hours_to_target", "epochs_to_target", "top1"]] = math.nan
    found = findings.find(dataclasses.replace(made, stored=stored))
    assert found.answer.says.startswith("Batch size 8 reaches the target soonest: in 10")
    assert "8 of 9 trials reached the target of top-1 90.0%." in [one.says for one in found.notes]


@pytest.mark.parametrize("made", [study({8: 100.0, 16: 199.0, 32: 200.0}), ended(failed=9), ended(failed=2, lost=1)])
def test_console_report_and_mlflow_say_the_same_sentences(made: Study) -> None:
    found = findings.find(made)
    page, conclusion = report.html(made), report.concluded(made)
    told = json.loads(conclusion.findings)
    assert [row["says"] for row in told] == [one.plain for one in found.all]
    for one in found.all:
        assert one.sentence in conclusion.markdown
        assert rich(one.sentence).replace("\u00a0", " ") in page.replace("\u00a0", " ")
        assert any(one.plain == line.strip() for line in found.lines())
    shown = answer.find(made)
    assert shown.headline == found.answer.plain
    assert shown.cares == tuple(one.sentence for one in found.doubts)


def test_the_tag_of_many_findings_is_whole_json_and_holds_the_first() -> None:
    found = findings.find(ended(failed=2, lost=1))
    cut = found.tag(700)
    assert len(cut) <= 700
    assert 0 < len(json.loads(cut)) < len(found.all)
    assert json.loads(cut)[0]["rule"] == "best"
    assert len(json.loads(found.tag(description.LONGEST))) == len(found.all)


@pytest.mark.parametrize("status", ["failed", "lost"])
def test_where_all_failed_logs_and_checks_are_suggested_and_no_repeats(status: str) -> None:
    steps = suggested(ended(**{status: 9}))
    assert steps["log"] == "less +G logs/0.log"
    assert steps["which"] == f"sweep trials words --where \"outcome == '{status}'\" --columns trial,kind,message"
    assert steps["check"] == "sweep doctor"
    assert steps["retry"] == "sweep retry words"
    assert not {"next", "query", "resume"} & {*steps}


def test_where_some_failed_they_come_first() -> None:
    steps = suggested(
        ended(failed=1, lost=1),
        dataclasses.replace(HERE, caller=Caller(kind="ray", address="host:6379"), is_on_cluster=True),
    )
    assert "outcome == 'failed' or outcome == 'lost'" in steps["which"]
    assert steps["check"] == "sweep doctor --cluster --address host:6379"
    assert steps["retry"] == "sweep retry words --address host:6379"
    assert "next" not in steps
    assert "query" in steps


def test_where_nothing_fits_a_smaller_batch_is_suggested() -> None:
    steps = suggested(ended(infeasible=9))
    assert "outcome == 'infeasible'" in steps["which"]
    assert steps["next"] == "sweep run words.yaml --set 'batch_size=[2,4]'"
    assert not {"log", "check", "retry"} & {*steps}


def test_a_sweep_that_stopped_goes_on_and_with_more_where_its_budget_was_spent() -> None:
    interrupted = suggested(ended(cancelled=3), dataclasses.replace(HERE, stopped="interrupted"))
    assert interrupted["resume"] == "sweep resume words"
    assert "next" not in interrupted
    spent = suggested(ended(), dataclasses.replace(HERE, stopped="nothing else fits in the budget", expected=12.34))
    assert spent["resume"] == "sweep resume words --budget 13"
    both = suggested(ended(failed=1), dataclasses.replace(HERE, stopped="interrupted"))
    assert {"log", "resume"} <= {*both}
    assert "retry" not in both


def test_where_all_is_from_earlier_sweeps_a_fresh_run_is_suggested() -> None:
    made = study({8: 100.0, 16: 199.0, 32: 200.0})
    records = tuple(
        dataclasses.replace(
            record,
            outcome=TrialOutcome(
                status="completed",
                kind="cached",
                cached=Cached(
                    sweep="old",
                    measured_at=1.0,
                    hardware="h",
                    software="s",
                    limited_by="",
                    figures=rows.metrics(record),
                ),
            ),
        )
        for record in made.records
    )
    cached = dataclasses.replace(made, records=records)
    assert suggested(cached)["next"] == "sweep run words.yaml --fresh"
    assert outcomes.are_all_cached(cached)
    assert any(one.rule == "cached" for one in findings.find(cached).notes)


def test_where_all_windows_were_too_short_longer_ones_are_suggested() -> None:
    made = study({8: 100.0, 16: 150.0, 32: 200.0})
    short = {"is_steady": 0.0, "steps_taken": 50.0, "why_withheld": "too short to know"}
    columns = [name for name in frame() if name != "cached_from"]
    withheld = dataclasses.replace(made, stored=made.trials[columns].assign(**short))
    assert suggested(withheld)["next"] == "sweep run words.yaml --set stop.max_steps=2000"
    drifts = dataclasses.replace(withheld, stored=withheld.trials[columns].assign(why_withheld="drift"))
    assert suggested(drifts)["check"] == "sweep doctor"
    assert "next" not in suggested(drifts)


def test_a_simulated_sweep_is_to_be_run_for_real() -> None:
    steps = suggested(studies.simulated(FILE, "nodes=1,cpus=4"))
    assert steps["next"] == "sweep submit words.yaml --address cluster.yaml"
    assert "check" not in steps


def test_where_the_largest_batch_is_the_best_larger_ones_are_suggested_and_else_nothing() -> None:
    edge = suggested(study({8: 100.0, 16: 150.0, 32: 200.0}))
    assert edge["next"] == "sweep run words.yaml --set 'batch_size=[32,64]'"
    assert "next" not in suggested(study({8: 100.0, 16: 200.0, 32: 150.0}))
    near = suggested(study({8: 100.0, 16: 197.0, 32: 200.0}))
    assert near["next"].startswith("sweep run words.yaml --set repeats=")
    assert math.isfinite(int(near["next"].split("=")[-1]))
    assert "next" not in suggested(study({8: 100.0, 16: 199.9, 32: 200.0})), "repeats would not tell them apart"


def test_what_needs_the_store_or_the_file_is_suggested_only_where_they_are() -> None:
    bare = suggested(ended(failed=1), dataclasses.replace(HERE, is_stored=False, file=""))
    assert {*bare} == {"report", "log", "check", "retry"}
    afar = suggested(
        study({8: 100.0, 16: 150.0, 32: 200.0}),
        dataclasses.replace(HERE, caller=Caller(kind="ssh", address="cluster.yaml")),
    )
    assert afar["report"] == "sweep report words --address cluster.yaml"
    assert afar["next"].startswith("sweep submit ")
