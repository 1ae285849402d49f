"""What the engine starts next, what it spares, what it tries again: on planted ends, without Ray or a clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

import pytest

from sweeps.record import rows as rows_of
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.asha import Judgement, Rungs, arrival
from sweeps.scheduling.cache import Cache, NodeContents
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.packing import Start
from sweeps.scheduling.search import Listed, strategy
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import config, record
from workers.contract import messages
from workers.contract.messages import EpochRecord, Granted, TrialConfig, TrialOutcome

FOUR = [Node(f"n{n}", 4, 0) for n in range(4)]
MADE_OF = {node.name: NodeContents("hw", "sw", {"/images": "ff"}) for node in FOUR}
LOST = TrialOutcome(status="lost", kind="node lost", message="gone")
KILLED = TrialOutcome(status="failed", kind="killed", message="killed", rank=0)
TOO_LARGE = TrialOutcome(status="infeasible", kind="host memory", message="too large")
HOUR = 3600.0


def engine(trials: Sequence[TrialConfig], seconds: float = 10.0, **more: object) -> Engine:
    made = Engine(
        lambda _: Listed(trials),
        Durations(lambda _: seconds),
        more.pop("feasible", Feasibility()),  # type: ignore[arg-type]
        more.pop("cache", Cache()),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )
    made.nodes_are(FOUR, MADE_OF)
    return made


def played(
    made: Engine, end: Callable[[TrialConfig], TrialOutcome | None] = lambda _: None, seconds: float = 10.0
) -> list[TrialRecord]:
    """Run to the end, one trial after the other; the records that count."""
    now, counted = 0.0, []
    while True:
        found = made.next(now)
        if found is None:
            return counted
        if isinstance(found, Start):
            now += seconds
            ended = dataclasses.replace(
                record(found.trial, outcome=end(found.trial)), started_at=now - seconds, ended_at=now
            )
            counted += [final] if (final := made.ended(ended, now)) else []
        else:
            counted.append(found)


def test_every_trial_ends_once() -> None:
    trials = [config(batch_size=size, gpus=gpus) for size in (8, 16) for gpus in (1, 2, 16)]
    made = engine(trials)
    assert sorted(ended.config.trial for ended in played(made)) == sorted(trial.trial for trial in trials)
    assert made.is_over


def test_trials_run_beside_each_other_as_far_as_nodes_go() -> None:
    made = engine([config(batch_size=size) for size in range(1, 7)])
    starts = [made.next(0.0) for _ in range(5)]
    assert [isinstance(start, Start) for start in starts] == [True] * 4 + [False]
    assert len({start.seats for start in starts[:4] if isinstance(start, Start)}) == 4
    assert not made.is_over


def test_a_lost_trial_is_tried_again_elsewhere_and_counts_once() -> None:
    trial = config(gpus=4)
    made = engine([trial])
    first = made.next(0.0)
    assert isinstance(first, Start)
    assert made.ended(record(trial, outcome=LOST), 1.0) is None
    second = made.next(2.0)
    assert isinstance(second, Start)
    assert second.seats != first.seats
    final = made.ended(record(trial), 3.0)
    assert final
    assert (final.attempts, final.outcome.status) == (2, "completed")
    assert made.is_over


def test_a_trial_that_is_lost_again_and_again_is_given_up() -> None:
    (final,) = played(engine([config(gpus=4)]), end=lambda _: LOST)
    assert (final.attempts, final.outcome.status) == (4, "lost")


def test_a_node_that_keeps_failing_is_set_aside_and_the_rest_runs_elsewhere() -> None:
    bad = "n0"
    made = engine([config(batch_size=size) for size in range(1, 30)])
    now, on_bad = 0.0, 0
    while not made.is_over:
        running = []
        while isinstance(found := made.next(now), Start):
            running.append(found)
        now += 10
        for start in running:
            is_bad = start.seats[0][0] == bad
            on_bad += is_bad
            made.ended(record(start.trial, outcome=KILLED if is_bad else None), now)
    assert list(made.set_aside) == [bad]
    assert on_bad == 3


def test_the_last_nodes_that_can_hold_what_waits_are_not_set_aside() -> None:
    made = engine([config(batch_size=size, gpus=16) for size in range(1, 6)])
    played(made, end=lambda _: KILLED)
    assert not made.set_aside


def test_what_is_ruled_out_is_not_run() -> None:
    trials = [config(batch_size=size, repeat=n) for n in range(3) for size in (8, 16, 32, 64, 128, 256)]
    ran: list[TrialConfig] = []

    def end(trial: TrialConfig) -> TrialOutcome | None:
        ran.append(trial)
        return TOO_LARGE if trial.batch_size >= 32 else None

    ended = {final.config.trial: final.outcome for final in played(engine(trials), end=end)}
    assert len(ended) == len(trials)
    infeasible = {trial.trial for trial in trials if trial.batch_size >= 32}
    assert {trial for trial, outcome in ended.items() if outcome.status == "infeasible"} == infeasible
    assert len([trial for trial in ran if trial.trial in infeasible]) <= 4  # each size at most once
    assert len([trial for trial in ran if trial.batch_size < 32]) == 6


def rows(trials: Sequence[TrialConfig], hardware: str = "hw", **more: str) -> list[dict[str, object]]:
    same = {"hardware": hardware, "software": "sw", "limited_by": "", "sweep": "earlier", "started_at": 1.7e9}
    on = {"arrangement": "", "data_files": "", **same, **more}
    return [{**on, "trial": trial.trial, "figures": {"images_per_s": 123.0}} for trial in trials]


def test_what_was_measured_on_such_nodes_is_used_again() -> None:
    trials = [config(batch_size=size, repeat=n) for n in range(2) for size in (8, 16)]
    ran: list[TrialConfig] = []
    made = engine(trials, cache=Cache(rows(trials[:3])))
    ended = {final.config.trial: final for final in played(made, end=ran.append)}
    assert ran == trials[3:]
    assert ended[trials[0].trial].outcome.message == "cached (measured 2023-11-14, earlier)"
    assert made.spent().gpu_hours == 10 / HOUR


def test_what_was_measured_on_other_nodes_is_not() -> None:
    trials = [config(batch_size=8)]
    ran: list[TrialConfig] = []
    played(engine(trials, cache=Cache(rows(trials, hardware="other"))), end=ran.append)
    assert ran == trials


def ran_in(trials: Sequence[TrialConfig], known: list[dict[str, object]]) -> list[TrialConfig]:
    """The trials that are run all the same."""
    ran: list[TrialConfig] = []
    played(engine(trials, cache=Cache(known)), end=ran.append)
    return ran


def test_what_other_code_has_measured_is_not_used_again() -> None:
    trials = [config(batch_size=8)]
    assert ran_in(trials, rows(trials)) == []
    assert ran_in(trials, rows(trials, software="edited")) == trials


def test_each_framework_s_trials_are_looked_for_with_the_software_of_its_own() -> None:
    """What is known takes no seat, whichever of them is asked for first."""
    tensorflow = config(batch_size=8, gpus=16)
    torch = dataclasses.replace(tensorflow, framework="torch")
    made = {name: dataclasses.replace(one, torch_software="tw") for name, one in MADE_OF.items()}
    for first, known in ((torch, rows([tensorflow])), (tensorflow, rows([torch], software="tw"))):
        going = engine([first, *(torch, tensorflow)], cache=Cache(known))
        going.nodes_are(FOUR, made)
        starts = [going.next(0.0) for _ in range(2)]
        assert sorted(type(one).__name__ for one in starts) == ["Start", "TrialRecord"]


def test_what_was_measured_with_the_ranks_otherwise_on_nodes_is_not_used_again() -> None:
    spread = dataclasses.replace(config(gpus=4, placement="spread"), arrangement=(2, 2))
    assert ran_in([spread], rows([spread], arrangement="2x2")) == []
    assert ran_in([spread], rows([spread], arrangement="4x1")) == [spread]
    assert ran_in([spread], rows([spread])) == [spread], "of a store that does not tell"
    wider = dataclasses.replace(spread, arrangement=(1, 1, 1, 1))
    assert ran_in([wider], rows([spread], arrangement="2x2")) == [wider]


def test_what_was_measured_on_other_files_of_the_same_name_is_not_used_again() -> None:
    trial = dataclasses.replace(config(), data="/images")
    assert ran_in([trial], rows([trial], data_files="ff")) == []
    assert ran_in([trial], rows([trial], data_files="00")) == [trial]
    unknown = dataclasses.replace(trial, data="/elsewhere")  # no node has told of it
    assert ran_in([unknown], rows([unknown])) == [unknown]


def test_nothing_is_used_again_before_every_node_has_said_what_it_is_made_of() -> None:
    trial = dataclasses.replace(config(gpus=16, placement="spread"), arrangement=(4, 4, 4, 4))
    made = engine([trial], cache=Cache(rows([trial], arrangement="4x4")))
    made.nodes_are(FOUR, {"n0": MADE_OF["n0"]})
    assert isinstance(made.next(0.0), Start)


def test_a_gang_keeps_its_arrangement_when_a_node_goes_and_waits_for_it() -> None:
    spread = dataclasses.replace(config(gpus=4, placement="spread"), arrangement=(1, 1, 1, 1))
    made = engine([spread], wait_for_nodes_s=60.0)
    made.nodes_are(FOUR[:2], MADE_OF)
    assert made.next(0.0) is None
    made.nodes_are(FOUR, MADE_OF)
    start = made.next(30.0)
    assert isinstance(start, Start)
    assert [ranks for _, ranks in start.seats] == [1, 1, 1, 1]
    late = engine([spread], wait_for_nodes_s=0.0)
    late.nodes_are(FOUR[:2], MADE_OF)
    lost = late.next(0.0)
    assert isinstance(lost, TrialRecord)
    assert "planned as 4x1" in lost.outcome.message


def test_where_nodes_differ_the_seats_decide() -> None:
    trials = [config(batch_size=8), config(batch_size=16)]
    made = engine(trials, cache=Cache(rows(trials, hardware="new")))
    made.nodes_are(FOUR, MADE_OF | {"n0": NodeContents("new", "sw")})
    cached, again = made.next(0.0), made.next(0.0)  # both on the first node, since the one takes no time there
    assert isinstance(cached, TrialRecord)
    assert isinstance(again, TrialRecord)
    made = engine(trials, cache=Cache(rows(trials, hardware="new")))
    made.nodes_are(FOUR, MADE_OF | {"n1": NodeContents("new", "sw")})
    started, cached = made.next(0.0), made.next(0.0)
    assert isinstance(started, Start)
    assert isinstance(cached, TrialRecord)


def test_nothing_starts_once_the_budget_would_be_overdrawn() -> None:
    trials = [config(batch_size=size, gpus=4) for size in range(1, 9)]
    made = engine(trials, seconds=HOUR, budget_gpu_hours=10.0)
    ended = played(made, seconds=HOUR)
    assert len(ended) == 2  # of 4 GPU-hours each; a third would make 12
    assert made.is_over
    assert len(made.beyond) == 6


def test_nodes_that_have_gone_are_waited_for() -> None:
    trials = [config(gpus=16), config(gpus=1)]
    made = engine(trials, wait_for_nodes_s=60.0)
    made.nodes_are(FOUR[:2], MADE_OF)
    (small,) = played(made)
    assert small.config.gpus == 1
    assert made.next(60.0) is None
    made.nodes_are(FOUR, MADE_OF)
    assert isinstance(made.next(110.0), Start)


def test_nodes_that_have_gone_are_wanted_as_long_as_a_trial_waits_for_them() -> None:
    trials = [config(gpus=16), config(gpus=1)]
    made = engine(trials, wait_for_nodes_s=60.0)
    assert isinstance(made.next(0.0), Start)
    assert made.wanted() == []
    made.nodes_are(FOUR[:2], MADE_OF)
    (one,) = made.running
    if one.gpus == 16:
        made.ended(record(one, outcome=LOST), 1.0)
    assert made.wanted() == [{"CPU": 1.0}] * 16
    made.nodes_are(FOUR, MADE_OF)
    assert made.wanted() == []


def test_no_nodes_are_wanted_for_what_is_given_up_at_once_or_can_t_be_paid_for() -> None:
    for more in ({"wait_for_nodes_s": 0.0}, {"budget_gpu_hours": 0.001}):
        made = engine([config(gpus=16)], **more)
        made.nodes_are(FOUR[:2], MADE_OF)
        made.needs()
        assert made.wanted() == []


def test_what_the_nodes_left_can_never_hold_is_given_up_after_a_while() -> None:
    made = engine([config(gpus=16)], wait_for_nodes_s=60.0)
    made.nodes_are(FOUR[:2], MADE_OF)
    assert made.next(0.0) is None
    assert made.next(59.0) is None
    lost = made.next(61.0)
    assert isinstance(lost, TrialRecord)
    assert lost.outcome.status == "lost"
    assert "holds at most 8 ranks" in lost.outcome.message


def test_nodes_that_other_sweeps_have_are_waited_for_as_long_as_it_takes() -> None:
    made = engine([config(gpus=16), config(gpus=1)], wait_for_nodes_s=60.0)
    made.others_have(dict.fromkeys(MADE_OF, 100.0))
    assert [made.next(now) for now in (0.0, 61.0, 1e6)] == [None] * 3
    assert not made.is_over
    assert len(made.needs()) == 2
    made.nodes_are(FOUR[:2], MADE_OF)  # now two have gone, and are waited for from now on
    made.others_have({})
    small = made.next(1e6)
    assert isinstance(small, Start)
    made.ended(record(small.trial), 1e6 + 1)
    assert made.next(1e6 + 2) is None


def test_what_a_cap_never_allows_is_given_up_with_the_rule() -> None:
    (small, large) = sorted(played(engine([config(gpus=8), config(gpus=4)], max_nodes=1, wait_for_nodes_s=0.0)),
                            key=lambda final: final.config.gpus)  # fmt: skip
    assert (small.outcome.status, large.outcome.status) == ("completed", "lost")
    assert "max_nodes allows 1 node at a time" in large.outcome.message


def test_what_was_measured_before_the_driver_stopped_is_not_run_again() -> None:
    trials = [config(batch_size=size) for size in (8, 16, 32)]
    made = engine(trials)
    made.resumed([record(trials[0]), record(trials[1])])
    assert [final.config for final in played(made)] == trials[2:]


def test_who_goes_on_gives_no_retries_anew_and_counts_attempts_and_what_they_took() -> None:
    trial = config(gpus=4)
    made = engine([trial])
    attempt = dataclasses.replace(record(trial, outcome=LOST), started_at=0.0, ended_at=HOUR, blamed=("n0", "n1", "n2"))
    made.resumed([], [attempt, attempt], spent=8.0)
    assert made.spent().gpu_hours == 8
    first = made.next(0.0)
    assert isinstance(first, Start)
    assert [node for node, _ in first.seats] == ["n3"]  # the one that it was not lost on
    assert made.ended(record(trial, outcome=LOST), 1.0) is None
    assert isinstance(made.next(2.0), Start)
    final = made.ended(record(trial, outcome=LOST), 3.0)
    assert final
    assert (final.attempts, final.outcome.status) == (4, "lost")


def made_of(**changed: str) -> dict[str, NodeContents]:
    """What all nodes are made of, but for this."""
    return {name: dataclasses.replace(made, **changed) for name, made in MADE_OF.items()}  # type: ignore[arg-type]


def ran_after(
    before: list[TrialRecord], made: dict[str, NodeContents], trials: Sequence[TrialConfig]
) -> list[TrialConfig]:
    """What a sweep runs that goes on, on nodes that are made so."""
    ran: list[TrialConfig] = []
    going = engine(trials)
    going.resumed(before)
    assert going.asks_what_nodes_are_made_of, "until then nobody knows which of the earlier ends still say something"
    going.nodes_are(FOUR, made)
    played(going, end=ran.append)
    return ran


def test_after_an_edit_of_the_code_an_earlier_lack_of_memory_rules_out_nothing() -> None:
    witness, check, *others = [config(batch_size=size) for size in (64, 128, 256, 512)]
    repeat = dataclasses.replace(witness, repeat=1)
    before = played(engine([witness, check]), end=lambda _: TOO_LARGE)
    assert [one.outcome.granted[0].software for one in before] == ["sw", "sw"], "signed as it ended"
    assert repeat not in ran_after(before, MADE_OF, [repeat, *others])
    for elsewhere in (made_of(software="edited"), made_of(hardware="larger")):
        ran = ran_after(before, elsewhere, [repeat, *others])
        assert {trial.trial for trial in ran} == {trial.trial for trial in (repeat, *others)}


def test_a_lack_of_memory_with_other_files_of_the_same_name_rules_out_nothing() -> None:
    first = dataclasses.replace(config(gpus=2), data="/images")
    again = dataclasses.replace(first, repeat=1)
    before = played(engine([first]), end=lambda _: TOO_LARGE)
    assert ran_after(before, MADE_OF, [again]) == []
    assert ran_after(before, made_of(data={"/images": "00"}), [again]) == [again]  # type: ignore[arg-type]
    assert ran_after(before, made_of(data={}), [again]) == [again], "nobody knows"  # type: ignore[arg-type]


def test_on_unlike_nodes_a_lack_of_memory_speaks_of_those_that_are_as_its_own() -> None:
    trials = [config(batch_size=64, repeat=n) for n in range(4)]
    made = engine(trials)
    made.nodes_are(FOUR[:2], MADE_OF | {"n1": NodeContents("larger", "sw")})
    first, second = made.next(0.0), made.next(0.0)
    assert isinstance(first, Start)
    assert isinstance(second, Start)
    assert (first.seats[0][0], second.seats[0][0]) == ("n0", "n1")
    made.ended(record(first.trial, outcome=TOO_LARGE), 1.0)
    inferred = made.next(1.0)  # on the first node again
    assert isinstance(inferred, TrialRecord)
    assert (inferred.outcome.kind, inferred.outcome.inferred_from) == ("host memory", first.trial.trial)
    made.ended(record(second.trial), 2.0)
    made.nodes_are(FOUR[1:2], MADE_OF | {"n1": NodeContents("larger", "sw")})
    assert isinstance(made.next(2.0), Start)


def test_what_a_rank_says_that_it_ran_counts_before_what_its_node_said() -> None:
    """One that starts as a process of its own loads the files as they are by then."""
    trial, repeat = config(), config(repeat=1)
    own = dataclasses.replace(TOO_LARGE, granted=(Granted(rank=0, node="n0", hardware="hw", software="edited"),))
    before = played(engine([trial]), end=lambda _: own)
    assert ran_after(before, MADE_OF, [repeat]) == [repeat]
    assert ran_after(before, made_of(software="edited"), [repeat]) == []


def learning(size: int, gpus: int) -> TrialConfig:
    fields = {"protocol": "convergence", "epochs": 9, "data": "digits"}
    return dataclasses.replace(config(batch_size=size, gpus=gpus), **fields)  # type: ignore[arg-type]


def judging(trials: Sequence[TrialConfig], made: dict[str, NodeContents] = MADE_OF) -> Engine:
    going = engine(trials, rungs=Rungs(grace=1, reduction=3, epochs=9))
    going.nodes_are(FOUR, made)
    return going


def at_rung(going: Engine, top1: float) -> Judgement:
    """The next trial, as it comes to its first rung."""
    start = going.next(0.0)
    assert isinstance(start, Start)
    epoch = EpochRecord(epoch=1, images=1, loss=1.0, rate=0.1, train_s=1.0, top1=top1)
    return going.judge(start.trial, [epoch])


@pytest.mark.parametrize(
    ("made", "is_stopped"),
    [(MADE_OF, True), (made_of(software="edited"), False), (made_of(hardware="larger"), False), ({}, False)],
)
def test_who_stood_at_a_rung_with_other_code_or_on_other_nodes_stops_nobody(
    made: dict[str, NodeContents], is_stopped: bool
) -> None:
    first, second = learning(8, 1), learning(16, 1)
    arrivals = at_rung(judging([first]), 0.9).arrivals
    going = judging([second], made)
    going.resumed([], arrivals=[arrival(json.loads(json.dumps(messages.to_json(one)))) for one in arrivals])
    assert bool(at_rung(going, 0.1).why) == is_stopped


def test_a_trial_that_is_stopped_is_known_by_the_nodes_that_it_ran_on() -> None:
    going = judging([learning(8, 1)])
    assert going.asks_what_nodes_are_made_of
    at_rung(going, 0.1)
    (trial,) = going.running
    ended = going.ended(record(trial, outcome=TrialOutcome(status="pruned", kind="hopeless")), 1.0)
    assert ended
    row = rows_of.row(ended)
    assert (row["hardware"], row["software"], row["arrangement"]) == ("hw", "sw", "1x1")


def test_the_base_of_what_came_to_its_end_is_run_to_its_end_and_counts_once() -> None:
    """Without it the efficiency of what the search has kept would not be known."""
    best, base, many = learning(8, 1), learning(16, 1), learning(16, 4)
    going = judging([best, base, many])
    ran: list[str] = []
    counted: dict[str, TrialRecord] = {}
    while isinstance(start := going.next(0.0), Start):
        ran.append(start.trial.trial)
        top1 = 0.9 if start.trial == best else 0.1
        epochs = [EpochRecord(epoch=n, images=1, loss=1.0, rate=0.1, train_s=1.0, top1=top1) for n in range(1, 9)]
        why = going.judge(start.trial, epochs).why
        outcome = TrialOutcome(status="pruned", kind="hopeless", message=why) if why else None
        if final := going.ended(record(start.trial, outcome=outcome), 1.0):
            counted[final.config.trial] = final
    assert sorted(ran) == sorted([best.trial, base.trial, many.trial, base.trial])
    assert {one.outcome.status for one in counted.values()} == {"completed"}
    assert going.spared == {base.trial: many.trial}
    assert going.is_over


def test_what_is_retried_and_comes_to_its_end_has_its_base_run_again_too() -> None:
    """The large one was lost; its base had been stopped, since nothing needed it then."""
    base, other, many = learning(16, 1), learning(32, 1), learning(16, 4)
    stopped = TrialOutcome(status="pruned", kind="hopeless")
    going = judging([many])
    going.resumed([], kept=[dataclasses.replace(record(one, outcome=stopped), attempts=2) for one in (base, other)])
    assert [one.config for one in played(going)] == [many, base], "that one and no other"
    assert going.attempts[base.trial] == 3
    assert going.spared == {base.trial: many.trial}
    assert going.is_over


def test_a_ladder_s_trials_run_on_the_kind_of_node_that_it_goes_by_where_there_are_others() -> None:
    """Else what fits on one would be put beside what does not fit on another."""
    text = "{name: x, model: tiny, device: cpu, search: frontier, space: {batch_size: [8, 16, 32, 64], gpus: 1}}"
    planned = plan.plan(sweep_file.parse(text, "x"), "x", FOUR)
    made = Engine(
        lambda is_ruled_out: strategy(planned, is_ruled_out), Durations(lambda _: 10.0), Feasibility(), Cache()
    )
    made.nodes_are(FOUR, {name: NodeContents("large" if name == "n3" else "small", "sw") for name in MADE_OF})
    first = made.next(0.0)
    assert isinstance(first, Start)
    assert first.seats == (("n0", 1),), "any will do"
    large = Granted(rank=0, node="n3", hardware="large", software="sw")
    made.ended(record(first.trial, outcome=dataclasses.replace(TOO_LARGE, granted=(large,))), 10.0)
    second = made.next(10.0)
    assert isinstance(second, Start)
    assert second.seats == (("n3", 1),)
