"""What a sweep has spent: whoever held a GPU, for whatever; the same for whoever tells it; and what a budget holds."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import heapq
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import report
from sweeps.analysis import study
from sweeps.analysis.findings import next_steps
from sweeps.analysis.study import Study
from sweeps.errors import InputError
from sweeps.record import ledger, ownership
from sweeps.record.gpu_hours import UNHEARD_S, Hours, heard_until
from sweeps.record.ledger import TrialRecord
from sweeps.run import driver, ending, executor, forecast, metrics, status, terms
from sweeps.run.conductor import Conductor
from sweeps.run.in_process import InProcess
from sweeps.run.terms import Terms
from sweeps.scheduling import search
from sweeps.scheduling.asha import Rungs
from sweeps.scheduling.cache import Cache, NodeContents
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.observer import Spent
from sweeps.scheduling.packing import Start
from sweeps.scheduling.search import Listed
from sweeps.simulator import cluster as simulated
from sweeps.spec import arrangements, plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit import hopeless, records
from workers.contract.messages import Cached, Device, Isolation, TrialConfig, TrialOutcome

HOUR = 3600.0
FOUR = [Node(f"n{n}", 4, 0) for n in range(4)]
TEXT = "{name: study, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16, 32], gpus: 4}}"
LOSSY = "nodes=1,gpus=4,gpu=v100,loss=50%,seed=2"
MANY = hopeless.FILE.replace("{method: asha, grace: 4, reduction: 2}", "grid").replace("epochs: 90", "epochs: 2")


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("os.fsync", lambda _: None)  # no machine dies here
    return tmp_path / "results"


def config(isolation: Isolation = "shared", **fields: object) -> TrialConfig:
    """One that holds as many GPUs as it has ranks, if it isn't exclusive."""
    return dataclasses.replace(records.config(**fields), isolation=isolation)


def begun(text: str = TEXT) -> ledger.Ledger:
    return ownership.create(plan.plan(sweep_file.parse(text, "x")), text)


def held(config: TrialConfig, since: float, until: float, ended: str = "completed") -> TrialRecord:
    outcome = TrialOutcome(status=ended)  # type: ignore[arg-type]
    return TrialRecord(config=config, outcome=outcome, started_at=since + 1, ended_at=until, held_since=since)


# One driver after another; of each the attempts, as (trial, GPUs, from, to), and when it was last heard.
attempt = st.tuples(st.integers(0, 5), st.integers(1, 8), st.floats(0, 100), st.floats(0, 100))


@given(st.lists(st.tuples(st.lists(attempt, max_size=6), st.floats(0, 100)), max_size=4))
def test_all_that_was_held_is_spent_never_less_later_and_the_same_after_a_driver_as_before_the_next(
    drivers: list[tuple[list[tuple[int, int, float, float]], float]],
) -> None:
    hours, now, expected, last = Hours(), 0.0, 0.0, 0.0
    for attempts, killed_s in drivers:
        events = []
        for n, (trial, gpus, since, took) in enumerate(attempts):
            events += [(now + since, 0, f"{trial}-{n}", gpus, 0.0), (now + since + took, 1, f"{trial}-{n}", gpus, took)]
        end = now + killed_s
        heard = max([now, *(at for at, *_ in events if at <= end)])
        for at, is_end, name, gpus, took in sorted(events):
            if at > end:
                continue
            if is_end:
                hours.ended(name, gpus * took / HOUR, at)
            else:
                hours.started(name, gpus, at)
            assert hours.spent() >= last - 1e-9
            last = hours.spent()
        for _, gpus, since, took in attempts:
            if now + since <= end:
                until = now + since + took if now + since + took <= end else heard
                expected += gpus * (until - now - since) / HOUR
        assert hours.spent(heard) == pytest.approx(expected)
        hours.cut_off(heard)
        assert hours.spent(heard + 1e6) == pytest.approx(expected), "what comes later is the next driver's"
        now = end + 1


def test_attempts_that_were_lost_cancelled_or_run_again_count_and_results_used_again_do_not() -> None:
    book = begun()
    first, second, third = book.facts.trials
    book.start(first, 1000.0)
    book.write_attempt(held(first, 1000.0, 1000.0 + HOUR, "lost"))
    book.write(held(first, 5000.0, 5000.0 + HOUR, "failed"))
    book.write(held(second, 1000.0, 1000.0 + HOUR, "cancelled"))
    known = Cached(sweep="x", measured_at=1.0, hardware="", software="", limited_by="", figures={})
    cached = dataclasses.replace(held(third, 0.0, HOUR), outcome=TrialOutcome(status="completed", cached=known))
    book.write(cached)
    assert ledger.read("study").spent == 3 * 4
    book.close()
    again = ownership.reopen("study")  # as `sweep retry` does
    again.write(held(first, 9000.0, 9000.0 + HOUR))
    assert again.before.spent == 3 * 4
    assert ledger.read("study").spent == 4 * 4, "the trial counts once, its hours count twice"
    assert len(ledger.read("study").trials) == 3


@pytest.mark.parametrize(
    ("isolation", "placement", "gpus", "counted"),
    [
        ("exclusive", "pack", 1, 8),
        ("exclusive", "pack", 6, 8),
        ("exclusive", "pack", 12, 16),
        ("exclusive", "spread", 6, 32),
        ("exclusive", "2x3", 6, 16),
        ("shared", "pack", 1, 1),
        ("shared", "pack", 12, 12),
        ("shared", "spread", 6, 6),
    ],
)
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_an_hour_counts_as_many_gpus_as_the_bundles_of_its_placement_group_have(
    device: Device, isolation: Isolation, placement: str, gpus: int, counted: int
) -> None:
    """On a CPU as many ranks as the bundles' cores could hold."""
    made = config(isolation, gpus=gpus, placement=placement)
    trial = dataclasses.replace(made, device=device, cores_per_worker=2)
    nodes = [Node(f"n{n}", 16, 8 * (device == "gpu")) for n in range(4)]
    of = Engine(lambda _: Listed([trial]), Fixed(lambda _: HOUR), Feasibility(), Cache())
    of.nodes_are(nodes, {})
    assert of.predicted_gpu_hours(trial) == counted
    start = of.next(0.0)
    assert isinstance(start, Start)
    parts = arrangements.bundles(trial, start.seats, nodes)
    in_bundles = sum(part["GPU"] if device == "gpu" else part["CPU"] / 2 for part in parts)
    assert of.holds(trial) == in_bundles == counted
    of.held(trial, 0.0)
    assert of.spent(HOUR).gpu_hours == of.spent(HOUR).expected == counted
    (slot,) = forecast.forecast([trial], nodes, lambda _: HOUR).slots
    assert slot.gpu_hours == counted, "as its plan has said"


def test_of_unlike_nodes_those_are_counted_that_it_got() -> None:
    trials = [config("exclusive", gpus=1, repeat=repeat) for repeat in range(2)]
    made = Engine(lambda _: Listed(trials), Fixed(lambda _: HOUR), Feasibility(), Cache())
    made.nodes_are([Node("small", 2, 0), Node("large", 64, 0)], {})
    starts = [made.next(0.0), made.next(0.0)]
    assert [made.holds(start.trial) for start in starts if isinstance(start, Start)] == [2, 64]


def test_what_is_too_dear_on_the_node_that_is_free_waits_for_the_one_that_another_sweep_has() -> None:
    trials = [config("exclusive", gpus=1, repeat=repeat) for repeat in range(2)]
    made = Engine(lambda _: Listed(trials), Fixed(lambda _: HOUR), Feasibility(), Cache(), 2.5)
    made.nodes_are([Node("small", 1, 1), Node("large", 8, 8)], {})
    made.others_have({"small": HOUR})
    assert made.next(0.0) is None
    assert not made.is_over
    made.others_have({}, HOUR)
    start = made.next(HOUR)
    assert isinstance(start, Start)
    assert [node for node, _ in start.seats] == ["small"]


@pytest.mark.parametrize(("isolation", "each", "count"), [("exclusive", 4, 2), ("shared", 1, 8)])
def test_a_budget_stops_a_sweep_whose_trials_hold_whole_nodes_by_what_these_hold(
    isolation: Isolation, each: int, count: int
) -> None:
    """Eight trials on one of a node's four GPUs, and a budget of nine times what one takes on one GPU."""
    space = "{batch_size: 32, gpus: 1}"
    text = f"{{name: alone, model: resnet50, device: gpu, isolation: {isolation}, repeats: 8, space: {space}}}"
    shape = "nodes=1,gpus=4,gpu=v100"
    machine = simulated.parse(shape)
    planned = plan.plan(sweep_file.parse(text, "x"), "x", machine.nodes)
    known = forecast.learned(machine, is_real=False)
    alone = known.predict(planned.trials[0]).seconds / HOUR
    made = Engine(lambda _: Listed(planned.trials), Fixed(lambda _: HOUR * alone), Feasibility(), Cache(), 9.5 * alone)
    book = ownership.create(planned, text, simulated=shape)
    assert executor.carry_out(made, book, InProcess(machine)) == (isolation == "shared")
    book.close()
    record = ledger.read("alone-simulated")
    assert len(record.trials) == count
    assert {trial.gpus_held for trial in record.trials} == {each}
    lines = [json.loads(line) for line in book.paths.ledger.read_text().splitlines()]
    assert {line["gpus"] for line in lines if line["kind"] == "start"} == {each}
    held_s = sum(trial.held_s for trial in record.trials)
    assert record.spent == pytest.approx(made.spent().gpu_hours) == pytest.approx(each * held_s / HOUR)
    assert len(made.beyond) == 8 - count


def test_hours_begin_when_gpus_are_held_not_when_ranks_start() -> None:
    trial = config(gpus=2)
    assert held(trial, 100.0, 100.0 + HOUR).gpu_hours == 2
    of_before = dataclasses.replace(held(trial, 0.0, HOUR), held_since=None)
    assert of_before.gpu_hours == pytest.approx(2 * (HOUR - 1) / HOUR)


def test_what_ran_when_a_driver_was_killed_counts_until_it_was_last_heard_and_seconds_more() -> None:
    book = begun()
    first, second, _ = book.facts.trials
    unheard = 4 * UNHEARD_S / HOUR  # of each
    book.start(first, 1000.0)
    book.start(second, 1000.0 + HOUR)  # the last line
    assert ledger.read("study").spent == pytest.approx(4 + 2 * unheard)
    book.paths.status.write_text(json.dumps({"at": 1000.0 + 2 * HOUR}))  # the driver's last bulletin
    before = ledger.read("study").spent
    assert before == pytest.approx(8 + 4 + 2 * unheard)
    book.close()
    again = ownership.reopen("study")
    again.paths.status.write_text(json.dumps({"at": 1000.0 + 50 * HOUR}))  # the next driver's
    assert again.before.spent == ledger.read("study").spent == before
    again.start(first, 1000.0 + 50 * HOUR)
    again.write(held(first, 1000.0 + 50 * HOUR, 1000.0 + 51 * HOUR))
    assert ledger.read("study").spent == pytest.approx(before + 4)


def test_a_start_whose_driver_was_killed_before_it_said_a_word_is_paid_for_once() -> None:
    book = begun()
    first = book.facts.trials[0]
    for number in range(3):  # killed again and again, always at once
        book.start(first, 1000.0 * (number + 1))
        assert ledger.read("study").spent == pytest.approx((number + 1) * 4 * UNHEARD_S / HOUR)
        book.close()
        book = ownership.reopen("study")
        assert book.before.spent == ledger.read("study").spent
    book.close()


def test_a_driver_that_goes_on_is_never_ahead_of_the_clock() -> None:
    book = begun()
    since = time.time()
    book.start(book.facts.trials[0], since)
    spent = ledger.read("study").spent
    assert 0 < spent <= 4 * (time.time() - since) / HOUR
    book.close()


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e3))
def test_who_is_heard_counts_longer_the_later_one_looks_and_for_seconds_at_most(
    last: float, now: float, later_s: float
) -> None:
    assert last <= heard_until(last, now) <= heard_until(last, now + later_s) <= last + UNHEARD_S
    assert heard_until(last, now) <= max(last, now)


def test_a_driver_that_is_killed_while_it_waits_for_an_answer_counts_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it asks others, and Ray, may take a minute to answer; until then Tune's loop stands still."""
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    writer = status.StatusWriter(book.facts, book.paths, made)
    conductor = Conductor(made, book, [writer])
    start = conductor.next()
    assert start
    conductor.passed()
    conductor.held(start.trial)
    began = time.time()
    time.sleep(UNHEARD_S + 2 * status.EVERY_S)  # an ask that gets no answer
    took = time.time() - began
    writer.close(is_told=False)  # killed: its thread ends, and its bulletin stays
    looked = status.look("study")
    assert looked["at"] < began, "what it tells is as old as its last look"
    assert looked["heard_at"] == pytest.approx(began + took, abs=status.EVERY_S + 0.5)
    monkeypatch.setattr(ledger.time, "time", lambda: began + HOUR)
    assert ledger.read("study").spent * HOUR / 4 == pytest.approx(took, abs=UNHEARD_S)
    assert ledger.read("study").spent * HOUR / 4 >= took
    book.close()


def test_a_driver_is_heard_more_often_than_is_counted_unheard() -> None:
    assert UNHEARD_S >= status.EVERY_S + 1.0, "its thread may come late"


@pytest.mark.parametrize("version", ledger.READ)
def test_a_ledger_of_before_counts_what_it_tells(version: int) -> None:
    book = begun()
    first = book.facts.trials[0]
    book.write_attempt(held(first, 1000.0, 1001.0 + HOUR, "lost"))
    book.write(held(first, 9000.0, 9001.0 + HOUR))
    book.end("stopped")
    book.close()
    lines = [json.loads(line) for line in book.paths.ledger.read_text().splitlines()]
    lines[0]["version"] = version
    for line in lines:
        for new in ("held_since", "gpus_held", "heard_at", "user"):
            line.pop(new, None)
    book.paths.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ledger.read("study").spent == 8
    again = ownership.reopen("study")
    assert again.before.spent == 8
    again.start(first, 20_000.0)
    again.write(held(first, 20_000.0, 20_000.0 + HOUR))
    assert ledger.read("study").spent == 12


def test_wherever_a_driver_is_killed_nothing_is_forgotten_and_nothing_is_paid_twice() -> None:
    """On a simulated cluster that loses every other attempt, through engine, conductor and ledger."""
    whole = hopeless.run(MANY, LOSSY)
    assert whole.attempts
    ran = [*whole.trials, *whole.attempts]
    held_s = sum(one.ended_at - one.started_at for one in ran)
    assert whole.spent == pytest.approx(4 * held_s / HOUR), "each has the node's four to itself"
    book = ledger.paths(whole.facts.name).ledger
    lines = book.read_text().splitlines(keepends=True)
    last = 0.0
    for cut in range(2, len(lines) + 1):
        book.write_text("".join(lines[:cut]))
        now = ledger.read(whole.facts.name).spent
        assert now >= last - 1e-9
        last = now
    for cut in (len(lines) // 3, len(lines) // 2, 2 * len(lines) // 3):
        book.write_text("".join(lines[:cut]))
        killed = ledger.read(whole.facts.name).spent
        again = hopeless.go_on(whole.facts.name)
        mine = [json.loads(line) for line in book.read_text().splitlines()[cut:]]
        ended = [line for line in mine if line["kind"] in ("trial", "attempt")]
        took = sum(line["gpus_held"] * (line["ended_at"] - line["held_since"]) for line in ended) / HOUR
        assert again.spent == pytest.approx(killed + took)


class Fixed(Durations):
    """Predictions that no end changes."""

    def learn(self, record: TrialRecord) -> None: ...


def engine(trials: Sequence[TrialConfig], hours: dict[str, float], budget: float, cache: Cache | None = None) -> Engine:
    """Make an engine of predictions in hours, by cell."""
    made = Engine(
        lambda _: Listed(trials),
        Fixed(lambda config: HOUR * hours[config.cell]),
        Feasibility(),
        cache or Cache(),
        budget,
    )
    made.nodes_are(FOUR, {})
    return made


def test_what_fits_in_the_budget_runs_and_what_does_not_is_told() -> None:
    """The case of the issue: a budget of 10, cells of 32 and of 1 GPU-hours."""
    large, small = config(batch_size=8, gpus=16), [config(batch_size=16, repeat=n) for n in range(4)]
    hours = {large.cell: 2.0, small[0].cell: 1.0}
    made = engine([large, *small], hours, budget=10.0)
    ran = played(made, {trial: HOUR * took for trial, took in hours.items()})
    assert {one.config.trial for one in ran} == {trial.trial for trial in small}
    assert made.beyond == [large]
    assert made.is_over
    assert made.spent().gpu_hours == 4
    assert made.spent().expected == 36, "what a larger budget would have to hold"
    assert made.spent().part_left == 0, "of what runs"
    first, second = ending.beyond(made, sweep_file.parse(TEXT, "x"))
    assert first == "not run, since each of these needs more than the budget has left, 6 of 10 rank-hours:"
    assert second.endswith("1 × about 32 rank-hours")


@pytest.mark.parametrize("large_hours", [4.0, 1.0])
def test_a_search_goes_on_beside_cells_that_the_budget_does_not_hold(large_hours: float) -> None:
    """It awaits a few trials at a time, and of these it would wait for ever."""
    space = "{batch_size: {range: [1, 64, 1]}, gpus: [1, 8]}"
    text = f"{{name: x, model: tiny, device: cpu, repeats: 1, search: {{method: tpe, trials: 60}}, space: {space}}}"
    planned = plan.plan(sweep_file.parse(text, "x"))
    known = Fixed(lambda trial: HOUR * (large_hours if trial.gpus == 8 else 0.01))
    made = Engine(lambda is_out: search.strategy(planned, is_out), known, Feasibility(), Cache(), 10.0)
    made.nodes_are(FOUR, {})
    ran = played(made, collections.defaultdict(lambda: 0.01 * HOUR))
    assert made.is_over
    assert len(ran) + len(made.beyond) == 60, "all that the search asks for"
    assert len(ran) > 15
    assert all(config.gpus == 8 for config in made.beyond)


def test_no_nodes_are_kept_free_for_what_the_budget_can_never_hold() -> None:
    large, small = config(batch_size=8, gpus=16), [config(batch_size=16, gpus=4, repeat=n) for n in range(6)]
    made = engine([large, *small], {large.cell: 2.0, small[0].cell: 0.1}, budget=10.0)
    starts = list(iter(lambda: made.next(0.0), None))
    assert len(starts) == 4
    made.ended(held(starts[0].trial, 0.0, 60.0), 60.0)  # type: ignore[union-attr]
    assert isinstance(made.next(60.0), Start), "on the node that is free, with three others in use"
    assert made.beyond == [large]


def test_nor_are_they_where_an_earlier_sweep_has_measured_another_cell() -> None:
    large, small = config(batch_size=8, gpus=16), [config(batch_size=16, gpus=4, repeat=n) for n in range(6)]
    row = {"trial": small[-1].trial, "arrangement": "", "hardware": "elsewhere", "software": "sw", "data_files": ""}
    made = engine([large, *small], {large.cell: 2.0, small[0].cell: 0.1}, 10.0, Cache([row]))
    made.others_have({"n3": 60.0})
    assert len(list(iter(lambda: made.next(0.0), None))) == 3
    assert made.beyond == [large]


def known(trial: TrialConfig, hardware: str = "hw") -> dict[str, object]:
    """What an earlier sweep has measured of a trial, on one kind of nodes."""
    row = {"hardware": hardware, "software": "sw", "limited_by": "", "sweep": "earlier", "started_at": 1.7e9}
    return row | {"arrangement": "", "data_files": "", "trial": trial.trial, "figures": {"images_per_s": 123.0}}


UNLIKE = {"n0": NodeContents("hw", "sw"), **{node.name: NodeContents("other", "sw") for node in FOUR[1:]}}


@pytest.mark.parametrize("spent", [0.0, 1.0, 50.0])
def test_a_result_that_can_be_used_again_costs_nothing_and_is_used_also_where_the_budget_is_spent(spent: float) -> None:
    trial = config(batch_size=8, gpus=4)
    made = engine([trial], {trial.cell: 9.0}, budget=1.0, cache=Cache([known(trial)]))
    made.resumed([], spent=spent)
    made.nodes_are(FOUR, UNLIKE)
    ended = made.next(0.0)
    assert isinstance(ended, TrialRecord)
    assert ended.outcome.cached
    assert ended.gpu_hours == 0
    assert made.is_over
    assert not made.beyond
    assert made.spent().gpu_hours == spent


def test_of_unlike_nodes_a_result_is_used_where_it_was_measured_and_elsewhere_the_trial_is_run() -> None:
    trial = config(batch_size=8, gpus=4)
    for busy, is_cached in (([], True), (["n0"], False)):
        made = engine([trial], {trial.cell: 1.0}, budget=math.inf, cache=Cache([known(trial)]))
        made.nodes_are(FOUR, UNLIKE)
        made.others_have(dict.fromkeys(busy, 60.0))
        found = made.next(0.0)
        assert isinstance(found, TrialRecord) == is_cached
        assert is_cached or found.seats[0][0] != "n0"  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["n0", "n3"])
def test_what_the_budget_does_not_hold_is_used_again_from_whichever_nodes_of_the_cluster_have_measured_it(
    place: str,
) -> None:
    """Also where the ones that it would run on now are others, or all are in use: a result takes no seat."""
    running, trial = config(batch_size=16, gpus=16), config(batch_size=8, gpus=4)
    hours = {running.cell: 0.1, trial.cell: 9.0}
    made = engine([running, trial], hours, budget=2.0, cache=Cache([known(trial)]))
    made.nodes_are(FOUR, {node.name: NodeContents("hw" if node.name == place else "other", "sw") for node in FOUR})
    first = made.next(0.0)
    while not isinstance(first, Start):  # the result may come first
        assert isinstance(first, TrialRecord)
        assert first.outcome.cached
        first = made.next(0.0)
    assert first.trial == running
    made.next(0.0)
    made.ended(held(running, 0.0, 360.0), 360.0)
    while made.next(360.0):
        ...
    assert not made.beyond
    assert made.is_over
    assert made.spent().gpu_hours == pytest.approx(1.6)


def test_no_result_of_other_nodes_than_the_cluster_s_is_used_where_the_budget_is_spent() -> None:
    trial = config(batch_size=8, gpus=4)
    made = engine([trial], {trial.cell: 9.0}, budget=1.0, cache=Cache([known(trial, "elsewhere")]))
    made.nodes_are(FOUR, UNLIKE)
    assert made.next(0.0) is None
    assert made.beyond == [trial]


def test_what_did_not_fit_runs_once_others_have_taken_less_than_predicted() -> None:
    first, second = config(batch_size=8, gpus=4), config(batch_size=16, gpus=4)
    hours = {first.cell: 2.0, second.cell: 2.0}
    made = engine([first, second], hours, budget=10.0)
    assert len(played(made, {first.cell: 0.5 * HOUR, second.cell: 0.5 * HOUR})) == 2
    assert not made.beyond


def test_a_base_that_is_run_again_fits_in_a_budget_by_all_that_the_sweep_had_measured() -> None:
    """A long trial came before the short one that tells what the base takes."""
    base, again, many = (config(batch_size=16, gpus=gpus, repeat=repeat) for gpus, repeat in ((1, 0), (1, 1), (4, 0)))
    pruned = dataclasses.replace(held(base, 0.0, 60.0), outcome=TrialOutcome(status="pruned", kind="hopeless"))
    rungs = Rungs(1, 2, 8)
    made = Engine(
        lambda _: Listed([base, again, many]), Durations(lambda _: HOUR), Feasibility(), Cache(), 20.0, rungs=rungs
    )
    made.nodes_are(FOUR, {node.name: NodeContents("hw", "sw") for node in FOUR})
    made.resumed([pruned, held(many, 0.0, 4 * HOUR), held(again, 0.0, 60.0)], spent=17.0)
    start = made.next(0.0)
    assert isinstance(start, Start)
    assert start.trial == base
    assert not made.beyond


def played(made: Engine, seconds: dict[str, float], fails: Sequence[int] = ()) -> list[TrialRecord]:
    """Run to the end, as many at a time as there is room for; all attempts. Those named end badly."""
    now, ran, ends = 0.0, [], list[tuple[float, int, Start, float]]()
    number = 0
    while True:
        while isinstance(found := made.next(now), Start):
            made.held(found.trial, now)
            heapq.heappush(ends, (now + seconds[found.trial.cell], number, found, now))
            number += 1
        if not ends:
            return ran
        now, n, start, since = heapq.heappop(ends)
        ended = held(start.trial, since, now, "lost" if n in fails else "completed")
        ran.append(dataclasses.replace(ended, gpus_held=made.holds(start.trial)))
        made.ended(ran[-1], now)


cells = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 16]), st.floats(0.1, 5), st.floats(0.01, 10), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


isolations = st.sampled_from(["shared", "exclusive"])


@given(cells, st.floats(0.5, 60), st.sets(st.integers(0, 10), max_size=3), st.floats(0, 20), isolations)
def test_a_budget_is_overdrawn_by_no_more_than_what_ran_when_the_last_trial_started(
    drawn: list[tuple[int, float, float, int]], budget: float, fails: set[int], before: float, isolation: Isolation
) -> None:
    trials, predicted, actual = [], {}, {}
    for n, (gpus, hours, took, repeats) in enumerate(drawn):
        alike = [config(isolation, batch_size=n + 1, gpus=gpus, repeat=repeat) for repeat in range(repeats)]
        trials += alike
        predicted[alike[0].cell], actual[alike[0].cell] = hours, HOUR * took
    made = engine(trials, predicted, budget)
    made.resumed([], spent=before)
    ran = played(made, actual, sorted(fails))
    spent = made.spent().gpu_hours
    assert spent == pytest.approx(before + sum(one.gpu_hours for one in ran))
    assert made.is_over
    if ran:
        last = max(one.held_since or 0.0 for one in ran)
        running = [one for one in ran if (one.held_since or 0.0) <= last < one.ended_at]
        late = (max(0.0, one.gpu_hours - made.predicted_gpu_hours(one.config)) for one in running)
        assert spent <= budget + sum(late) + 1e-6, "all of it by what was late"
    else:
        assert spent == before
    for config_ in made.beyond:
        assert spent + made.predicted_gpu_hours(config_) > budget, "what fits runs"


def test_a_trial_that_outlives_its_prediction_counts_as_long_as_it_takes() -> None:
    late, other = config(batch_size=8, gpus=4), config(batch_size=16, gpus=4)
    made = engine([late], {late.cell: 1.0, other.cell: 1.0}, budget=9.0)
    assert isinstance(made.next(0.0), Start)
    assert made._is_affordable(other, 1.5 * HOUR), "it waits for its GPUs"
    made.held(late, 1.5 * HOUR)
    assert made._is_affordable(other, 2.0 * HOUR)
    assert not made._is_affordable(other, 3.0 * HOUR)


def test_a_trial_that_waits_for_its_gpus_spends_nothing_until_it_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its placement group may wait for a node that has yet to come."""
    book = begun()
    made = engine(book.facts.trials[:1], {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    now = [1000.0]
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: now[0])
    conductor = Conductor(made, book, [])
    start = conductor.next()
    assert start
    now[0] += HOUR
    assert made.spent(conductor.now).gpu_hours == 0
    assert ledger.read("study").spent == 0, "nor for a driver that is killed now"
    conductor.held(start.trial)
    now[0] += HOUR
    conductor.held(start.trial)  # it is told once
    conductor.begun(start.trial)
    assert made.spent(conductor.now).gpu_hours == 4
    now[0] += HOUR
    conductor.answered(start.trial, TrialOutcome(status="lost", kind="node lost"))
    assert made.spent(conductor.now).gpu_hours == ledger.read("study").spent == 2 * 4
    again = conductor.next()
    assert again
    assert again.trial == start.trial
    now[0] += HOUR
    assert made.spent(conductor.now).gpu_hours == 2 * 4, "what the attempt before held is over"
    conductor.held(again.trial)
    now[0] += HOUR
    assert made.spent(conductor.now).gpu_hours == 3 * 4


def test_what_a_gang_holds_between_two_trials_and_before_it_is_gone_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    now = [1000.0]
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: now[0])
    conductor = Conductor(made, book, [])
    start = conductor.next()
    assert start
    conductor.held(start.trial)
    now[0] += HOUR
    conductor.answered(start.trial, TrialOutcome(status="completed"))
    now[0] += HOUR
    conductor.waited(4, now[0] - HOUR)
    assert made.spent(conductor.now).gpu_hours == ledger.read("study").spent == 2 * 4
    assert ledger.read("study").trials[0].gpu_hours == 4, "it is not the trial's"
    book.close()
    assert ownership.reopen("study").before.spent == 2 * 4


class OneGang:
    """An executor that runs trials one after the other in a gang that keeps its GPUs until it is gone."""

    is_virtual = False

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def run(self, conductor: Conductor) -> None:
        last, freed_at = 0, 0.0
        conductor.engine.nodes_are(FOUR[:1], {})
        conductor.ready()
        while start := conductor.next():
            if last:
                conductor.waited(last, freed_at)
            conductor.held(start.trial)
            self._now[0] += HOUR / 60  # what brings its ranks together
            conductor.begun(start.trial)
            self._now[0] += HOUR
            last = conductor.engine.holds(start.trial)
            conductor.answered(start.trial, TrialOutcome(status="completed"))
            freed_at = self._now[0]
            self._now[0] += HOUR / 2
        assert last
        conductor.waited(last, freed_at)
        conductor.stopped()


def test_an_executor_whose_gangs_wait_leaves_a_line_of_each_wait_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    book = begun()
    trials = book.facts.trials
    made = engine(trials, {trial.cell: 1.0 for trial in trials}, budget=100.0)
    now = [1000.0]
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: now[0])
    assert executor.carry_out(made, book, OneGang(now))
    lines = [json.loads(line) for line in book.paths.ledger.read_text().splitlines()]
    kinds = [line["kind"] for line in lines if line["kind"] in ("start", "trial", "wait")]
    assert kinds == ["start", "trial", "wait"] * 3
    held_s = HOUR / 60 + HOUR
    ends = [1000.0 + n * (held_s + HOUR / 2) + held_s for n in range(3)]
    waits = [line for line in lines if line["kind"] == "wait"]
    assert [(wait["gpus"], wait["since"], wait["at"]) for wait in waits] == [(4, end, end + HOUR / 2) for end in ends]
    record = ledger.read("study")
    assert sum(trial.gpu_hours for trial in record.trials) == pytest.approx(3 * 4 * held_s / HOUR)
    assert record.spent == pytest.approx(3 * 4 * (held_s + HOUR / 2) / HOUR)
    assert made.spent(now[0]).gpu_hours == pytest.approx(record.spent), "to the budget, too"
    book.close()  # as if its driver had been killed
    assert ownership.reopen("study").before.spent == pytest.approx(record.spent)


def test_no_gang_waits_on_a_virtual_clock() -> None:
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    Conductor(made, book, [], is_virtual=True).waited(4, 1000.0)
    assert made.spent().gpu_hours == ledger.read("study").spent == 0


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_attempt_that_never_had_its_gpus_took_no_time(is_stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: 1000.0)
    conductor = Conductor(made, book, [])
    start = conductor.next()
    assert start
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: 1000.0 + HOUR)
    if is_stopped:
        conductor.stopped()
        (record,) = ledger.read("study").trials
    else:
        conductor.answered(start.trial, TrialOutcome(status="lost", kind="node lost"))
        (record,) = ledger.read("study").attempts
    assert made.spent().gpu_hours == ledger.read("study").spent == record.gpu_hours == 0
    assert sum(metrics.spent(record).values()) == 0


def test_what_runs_is_spent_as_it_runs_and_what_is_cancelled_stays_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: 1000.0)
    conductor = Conductor(made, book, [])
    start = conductor.next()
    assert start
    conductor.begun(start.trial)
    monkeypatch.setattr("sweeps.run.conductor.time.time", lambda: 1000.0 + HOUR)
    assert made.spent(conductor.now).gpu_hours == 4
    conductor.stopped()
    assert made.spent().gpu_hours == ledger.read("study").spent == 4
    (cancelled,) = ledger.read("study").trials
    assert cancelled.outcome.status == "cancelled"
    assert not made.is_over, "it waits for whoever goes on"


def test_a_simulated_trial_that_is_cancelled_has_held_its_gpus_until_the_virtual_clock_stopped() -> None:
    book = begun()
    made = engine(book.facts.trials, {trial.cell: 2.0 for trial in book.facts.trials}, budget=100.0)
    conductor = Conductor(made, book, [], is_virtual=True)
    starts = list(iter(conductor.next, None))
    assert len(starts) == 3
    for n, start in enumerate(starts):
        conductor.answered(start.trial, TrialOutcome(status="completed"), took_s=(n + 1) * HOUR)
    made.nodes_are([], {})  # nothing can start
    ended: list[TrialRecord] = []
    book_write = book.write
    book.write = lambda one: (ended.append(one), book_write(one))  # type: ignore[assignment]
    conductor._virtual_now, _, first = heapq.heappop(conductor._ahead)
    conductor._happens(first)
    conductor.stopped()
    assert sorted(one.outcome.status for one in ended) == ["cancelled", "cancelled", "completed"]
    assert ledger.read("study").spent == made.spent().gpu_hours == 3 * 4


@pytest.fixture
def spending(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What drivers are told was spent before them."""
    told: list[float] = []

    def conduct(planned: object, book: object, setting: object, before: driver._Before) -> int:
        told.append(before.spent)
        return 0

    class Site:
        nodes = FOUR
        guarded = staticmethod(contextlib.nullcontext)

    def site(*_: object) -> Iterator[Site]:
        yield Site()

    monkeypatch.setattr(terms, "open_site", contextlib.contextmanager(site))
    monkeypatch.setattr(driver, "_conduct", conduct)
    monkeypatch.setattr("sweeps.store.query.finished", lambda _: [])
    return told


def stopped() -> Study:
    book = begun()
    first, second, _ = book.facts.trials
    book.write(held(first, 1000.0, 1000.0 + HOUR, "lost"))
    book.write(held(second, 1000.0, 1000.0 + HOUR, "failed"))
    book.end("stopped")
    book.close()
    return study.read("study")


def test_a_resume_and_a_retry_go_on_from_what_was_spent(spending: list[float]) -> None:
    stopped()
    assert driver.resume("study", Terms()) == 0
    assert driver.retry("study", ["failed"], Terms(budget=20.0)) == 0
    assert spending == [8, 8]


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_of_nothing_is_refused(spending: list[float], budget: float) -> None:
    stopped()
    for call in (driver.resume, functools.partial(driver.retry, statuses=["failed"])):
        with pytest.raises(InputError, match="--budget: must be rank-hours, more than 0, but got"):
            call("study", asked=Terms(budget=budget))
    assert not spending


def test_status_report_and_mlflow_tell_the_same_figure_as_the_ledger() -> None:
    of = stopped()
    assert ledger.read("study").spent == of.spent == 8
    assert status.look("study")["spent"] == 8
    assert "8 rank-hours spent" in report.as_text("study")
    conclusion = report.conclusion("study")
    assert conclusion.gpu_hours == 8
    assert "8 rank-hours spent" in conclusion.markdown


def test_whoever_stops_at_a_budget_is_told_one_that_holds_the_rest() -> None:
    of = stopped()
    at = next_steps.Situation(stopped="nothing else fits in the budget", expected=40.2)
    step = next_steps._going_on(of, at)
    assert step.what == "sweep resume study --budget 41"
    assert "8 rank-hours of it are spent" in step.why


def test_a_plan_says_what_its_budget_can_never_hold() -> None:
    text = TEXT[:-1] + ", budget: {gpu_hours: 3}}"
    trials = plan.plan(sweep_file.parse(text, "x")).trials
    hours = dict(zip((trial.cell for trial in trials), (0.5, 1.0, 2.0), strict=True))
    known = Durations(lambda config: HOUR * hours[config.cell])
    lines = forecast.summary_lines(sweep_file.parse(text, "x"), trials, FOUR, known)
    refused = "! 2 trials need more than the whole budget, the cheapest of them about 4 rank-hours: they won't run"
    assert refused in lines


def test_a_bulletin_counts_each_trial_once_with_those_of_earlier_drivers() -> None:
    """One of three trials was stopped by an earlier driver and runs again, as a base may."""
    book = begun()
    first, second, _ = book.facts.trials
    before = held(first, 0.0, 60.0, "pruned")
    made = engine([second], dict.fromkeys((first.cell, second.cell), 0.1), budget=10.0)
    status_writer = status.StatusWriter(book.facts, book.paths, made, [before])
    status_writer.spent(Spent(0.0, 0.0, 3))

    def told() -> tuple[dict[str, int], int]:
        found = status_writer._bulletin(0.0)
        return found["ended"], found["waiting"]

    assert told() == ({"pruned": 1}, 2)
    status_writer.started(first)
    assert told() == ({}, 2)
    status_writer.ended(held(first, 60.0, 90.0))
    assert told() == ({"completed": 1}, 2)
    book.close()
