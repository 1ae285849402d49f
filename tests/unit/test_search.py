"""Every search keeps the same promises; each finds what was planted."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling import search
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.search import Strategy
from sweeps.spec import plan
from sweeps.spec.keys import SweepSpec
from sweeps.spec.sweep_file import parse
from tests.examples import examples
from tests.unit.records import record
from workers.contract.messages import Granted, TrialConfig, TrialOutcome

Answer = Callable[[TrialConfig], TrialRecord]

LOST = TrialOutcome(status="lost", kind="node lost")
SPACE = """
  batch_size: {log2: [32, 2048]}
  gpus: [1, 2, 4, 8, 16, 32]
  precision: [fp32, tf32, fp16, bf16]
  xla: [off, on]
  compression: {values: [none, fp16], when: gpus > 1}
"""
SMALL = """
  batch_size: {log2: [128, 2048]}
  gpus: [1, 4, 16]
  precision: [fp32, fp16]
  compression: {values: [none, fp16], when: gpus > 1}
"""
SEARCHES = {
    "grid": "grid",
    "random": "{method: random, trials: 20}",
    "tpe": "{method: tpe, trials: 20}",
    "tpe of two": "{method: tpe, trials: 20, goal: [images_per_s, gpu_hours_per_epoch]}",
    "frontier": "frontier",
}


def study(how: str, space: str = SMALL, seed: int = 0, **more: object) -> SweepSpec:
    lines = [f"{key}: {value}" for key, value in more.items()]
    text = f"name: x\nmodel: resnet50\ndevice: gpu\nseed: {seed}\nsearch: {how}\nspace: {space}\n"
    return parse(text + "\n".join(lines), "x.yaml")


def large(seed: int = 0, trials: int = 96, goal: str = "images_per_s") -> SweepSpec:
    return study(f"{{method: tpe, trials: {trials}, goal: {goal}}}", SPACE, seed)


def begun(spec: SweepSpec, is_ruled_out: Callable[[TrialConfig], bool] = lambda _: False) -> Strategy:
    return search.strategy(plan.plan(spec), is_ruled_out)


def rate(at: TrialConfig) -> float:
    """A smooth peak at 512 images on 8 GPUs; the formats and settings multiply."""
    peak = math.exp(-(((math.log2(at.batch_size) - 9) / 3) ** 2) - ((math.log2(at.gpus) - 3) / 1.5) ** 2)
    formats = {"fp32": 1.0, "tf32": 1.5, "fp16": 2.0, "bf16": 1.8}[at.precision] * (1.15 if at.xla else 1.0)
    return 1000 * peak * formats * (1.1 if at.compression == "fp16" else 1.0)


def measured(at: TrialConfig) -> TrialRecord:
    return record(at, rate(at))


def short(at: TrialConfig) -> TrialRecord:
    return record(at, outcome=TrialOutcome(status="infeasible", kind="device memory", message="short of 3 GiB"))


def run(
    strategy: Strategy,
    answer: Answer = measured,
    until: int = 10_000,
    told: Callable[[TrialRecord], None] | None = None,
) -> list[TrialRecord]:
    """Run what is proposed, one trial after the other, as long as there is any."""
    records: list[TrialRecord] = []
    waiting: list[TrialConfig] = []
    while len(records) < until:
        waiting += strategy.propose()
        if not waiting:
            assert strategy.is_over
            break
        records.append(answer(waiting.pop(0)))
        if told:
            told(records[-1])
        strategy.tell(records[-1])
    return records


def ids(records: list[TrialRecord]) -> list[str]:
    return [each.config.trial for each in records]


@pytest.mark.parametrize("how", SEARCHES.values(), ids=SEARCHES)
class TestEverySearch:
    def test_proposes_no_trial_twice_and_as_many_as_it_said(self, how: str) -> None:
        strategy = begun(study(how, repeats=1))
        records = run(strategy)
        assert len(set(ids(records))) == len(records) <= strategy.total
        assert strategy.propose() == []
        if how != "frontier":
            assert len(records) == strategy.total

    def test_does_the_same_for_a_seed_and_an_order_of_outcomes(self, how: str) -> None:
        first, again = (ids(run(begun(study(how, seed=3)))) for _ in range(2))
        assert first == again

    def test_keeps_to_conditions_and_constraints(self, how: str) -> None:
        for each in run(begun(study(how, where="batch_size * gpus <= 4096", repeats=1))):
            assert each.config.global_batch <= 4096
            assert each.config.gpus > 1 or each.config.compression == "none"

    def test_goes_on_where_it_stopped(self, how: str) -> None:
        """Told of the first trials again, after a restart, it proposes others, and as many as were left."""
        spec = study(how)
        whole, before = run(begun(spec)), run(begun(spec), until=17)
        resumed = begun(spec)
        for each in before:
            resumed.tell(each)
        after = run(resumed)
        assert not set(ids(before)) & set(ids(after))
        assert len(before) + len(after) == len(whole)
        if "tpe" not in how:
            assert set(ids(before)) | set(ids(after)) == set(ids(whole))

    def test_ends_though_everything_fails(self, how: str) -> None:
        strategy = begun(study(how))
        records = run(strategy, lambda at: record(at, outcome=LOST))
        assert strategy.is_over
        assert len(set(ids(records))) == len(records)


@pytest.mark.parametrize("how", ["grid", "{method: random, trials: 20}", "{method: tpe, trials: 20}"])
def test_every_cell_is_run_as_often_as_it_is_to_be(how: str) -> None:
    records = run(begun(study(how, repeats=3)))
    assert set(Counter(each.config.cell for each in records).values()) == {3}


def test_asha_runs_what_is_planned() -> None:
    text = """
name: x
model: tiny
data: digits
device: cpu
protocol: convergence
epochs: 9
search: {method: asha, trials: 5}
repeats: 1
space: {batch_size: {log2: [8, 512]}, gpus: 1}
"""
    planned = plan.plan(parse(text, "x.yaml"))
    assert [at.trial for at in search.strategy(planned, lambda _: False).propose()] == [
        at.trial for at in planned.trials
    ]
    assert len(planned.trials) == 5


# frontier


def limits(ladders: list[list[TrialConfig]], drawn: random.Random) -> dict[str, int]:
    """The largest batch that fits, for each combination: one of its points, or none."""
    return {combination(row[0]): drawn.choice([0, *(cell.batch_size for cell in row)]) for row in ladders}


def combination(at: TrialConfig) -> str:
    return f"{at.gpus} {at.precision} {at.xla} {at.compression}"


def largest(records: list[TrialRecord]) -> dict[str, int]:
    found = {combination(each.config): 0 for each in records}
    for each in records:
        if each.outcome.status == "completed":
            found[combination(each.config)] = max(found[combination(each.config)], each.config.batch_size)
    return found


@given(st.integers(0, 10_000), st.integers(2, 40))
@examples(20)
def test_a_frontier_is_exact_and_costs_a_bisection(seed: int, points: int) -> None:
    drawn = random.Random(seed)
    batches = sorted(drawn.sample(range(1, 4096), points))
    spec = study("frontier", f"{{batch_size: {drawn.sample(batches, points)}, gpus: [1, 4], precision: [fp32, fp16]}}")
    planted = limits(plan.ladders(spec), drawn)
    records = run(begun(spec), lambda at: measured(at) if at.batch_size <= planted[combination(at)] else short(at))
    assert largest(records) == planted
    most = math.ceil(math.log2(points)) + 1
    assert max(Counter(combination(each.config) for each in records).values()) <= most


def test_combinations_are_looked_at_at_the_same_time() -> None:
    strategy = begun(study("frontier"))
    ladders = plan.ladders(study("frontier"))
    assert len(strategy.propose()) == len(ladders) == 2 + 2 * 4
    assert strategy.propose() == [], "one trial of each is awaited"


def test_constraints_shorten_a_ladder() -> None:
    spec = study("frontier", where="batch_size * gpus <= 4096")
    assert {row[0].gpus: row[-1].batch_size for row in plan.ladders(spec)} == {1: 2048, 4: 1024, 16: 256}
    found = largest(run(begun(spec)))
    assert {key.split()[0]: batch for key, batch in found.items()} == {"1": 2048, "4": 1024, "16": 256}


def planted_gib(at: TrialConfig) -> float:
    return at.batch_size * (0.02 if at.precision in ("fp16", "bf16") else 0.04) + 0.3 * (at.gpus > 1)


def test_what_is_inferred_is_never_tried_and_the_frontier_is_the_same() -> None:
    feasibility = Feasibility()

    def answer(at: TrialConfig) -> TrialRecord:
        if inference := feasibility.inferred(at):
            return record(at, outcome=inference)
        return measured(at) if planted_gib(at) <= 16 else short(at)

    spec = study("frontier", SPACE)
    records = run(begun(spec), answer, told=feasibility.tell)
    expected = {
        combination(row[0]): max((cell.batch_size for cell in row if planted_gib(cell) <= 16), default=0)
        for row in plan.ladders(spec)
    }
    assert largest(records) == expected
    ran = sum(not each.outcome.inferred_from for each in records)
    assert ran < 0.75 * len(records), "the 2- to 32-GPU combinations learn from the smaller"


def test_a_batch_that_fails_is_tried_once_more() -> None:
    spec = study("frontier", "{batch_size: {log2: [1, 64]}, gpus: 1}")
    tried: list[tuple[int, int]] = []

    def answer(at: TrialConfig) -> TrialRecord:
        tried.append((at.batch_size, at.repeat))
        return record(at, outcome=LOST) if (at.batch_size, at.repeat) in ((8, 0), (32, 0), (32, 1)) else measured(at)

    assert largest(run(begun(spec), answer)) == {"1 fp32 False none": 8}
    assert tried == [(8, 0), (8, 1), (32, 0), (32, 1)], "the second time it is left"


def test_a_frontier_goes_up_again_when_an_inference_falls() -> None:
    strategy = begun(study("frontier", "{batch_size: [8, 16, 32], gpus: 1}"))
    (middle,) = strategy.propose()
    strategy.tell(record(middle, outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64")))
    (below,) = strategy.propose()
    strategy.tell(measured(below))
    assert strategy.is_over
    strategy.tell(measured(middle))
    (above,) = strategy.propose()
    assert [at.batch_size for at in (middle, below, above)] == [16, 8, 32]


def test_a_larger_batch_that_fits_overrules_a_smaller_that_did_not() -> None:
    strategy = begun(study("frontier", "{batch_size: [8, 16, 32], gpus: 1}"))
    small, middle, large = plan.ladders(study("frontier", "{batch_size: [8, 16, 32], gpus: 1}"))[0]
    strategy.tell(short(small))
    strategy.tell(measured(middle))
    assert strategy.propose() == [large]


def made_with(each: TrialRecord, software: str = "", hardware: str = "") -> TrialRecord:
    granted = tuple(Granted(rank=n, node="n", software=software, hardware=hardware) for n in range(each.config.gpus))
    return dataclasses.replace(each, outcome=dataclasses.replace(each.outcome, granted=granted))


LADDER = study("frontier", "{batch_size: {log2: [32, 2048]}, gpus: 1}")


def test_what_an_earlier_code_had_no_memory_for_is_tried_again_with_the_code_of_now() -> None:
    before = begun(LADDER)
    (first,) = before.propose()
    old = made_with(short(first), "old")
    resumed = begun(LADDER)
    resumed.tell(old)

    def answer(at: TrialConfig) -> TrialRecord:
        return made_with(measured(at) if at.batch_size <= 1024 else short(at), "new")

    records = run(resumed, answer)
    assert largest(records) == {"1 fp32 False none": 1024}
    assert {each.config.batch_size for each in records if each.outcome.status == "infeasible"} == {2048}
    assert first.trial not in ids(records), "the old code's finding stays in the ledger as it is"
    assert len(records) + 1 == resumed.total


def test_a_ladder_that_has_come_to_its_end_stays_as_it_is() -> None:
    done = run(begun(LADDER), lambda at: made_with(measured(at) if at.batch_size <= 128 else short(at), "old"))
    resumed = begun(LADDER)
    for each in done:
        resumed.tell(each)
    assert resumed.propose() == []
    assert resumed.is_over


def test_what_fits_on_one_kind_of_gpu_and_what_does_not_on_another_are_never_put_together() -> None:
    strategy = begun(LADDER)
    asked = []
    for hardware in ("small", "large", "small", "small", "large"):
        (trial,) = strategy.propose()
        asked.append((trial.batch_size, trial.repeat, strategy.hardware(trial)))
        fits = trial.batch_size <= {"small": 64, "large": 1024}[hardware]
        strategy.tell(made_with(measured(trial) if fits else short(trial), hardware=hardware))
    assert asked == [
        (256, 0, ""),
        (64, 0, "small"),  # runs on a large one all the same, and fits
        (512, 0, "large"),  # what did not fit on the small one says nothing here
        (64, 1, "small"),  # there it is not known yet
        (128, 0, "small"),
    ]


@given(st.lists(st.sampled_from(["small", "large", "odd"]), min_size=60, max_size=60))
@examples(30)
def test_a_ladder_ends_however_its_trials_fall_on_unlike_nodes(falls: list[str]) -> None:
    limit = {"small": 64, "large": 1024, "odd": 16}
    kinds = iter(falls)

    def answer(at: TrialConfig) -> TrialRecord:
        hardware = next(kinds)
        return made_with(measured(at) if at.batch_size <= limit[hardware] else short(at), hardware=hardware)

    records = run(begun(LADDER), answer)
    assert len(set(ids(records))) == len(records)


def test_what_was_inferred_counts_with_what_it_was_inferred_from() -> None:
    spec = study("frontier", "{batch_size: {log2: [32, 2048]}, gpus: [1, 2]}")
    strategy = begun(spec)
    one, two = sorted(strategy.propose(), key=lambda at: at.gpus)
    strategy.tell(made_with(short(one), "new"))
    outcome = TrialOutcome(status="infeasible", kind="device memory", inferred_from=one.trial)
    strategy.tell(record(two, outcome=outcome))
    below, other = strategy.propose()
    strategy.tell(made_with(measured(other), "new"))
    assert (below.batch_size, other.batch_size) == (64, 64)
    (above,) = strategy.propose()
    assert above.batch_size == 128, "between what fits and what was inferred not to"


# tpe


def test_after_an_edit_cells_are_drawn_by_what_the_code_of_now_has_measured() -> None:
    cells = list(plan.grid(large()))
    usual = statistics.fmean(map(rate, cells))

    def gain(seed: int, code: str) -> float:
        """How much better than by chance the next cells are, once those that were out have ended with this code."""
        resumed = begun(large(seed, trials=400))
        for cell in random.Random(seed).sample(cells, 100):
            resumed.tell(made_with(measured(cell), "old"))
        for out in resumed.propose():
            resumed.tell(made_with(record(out, 100.0), code))
        return statistics.fmean(map(rate, resumed.propose())) / usual

    assert statistics.fmean(gain(seed, "old") for seed in range(3)) > 2
    assert statistics.fmean(gain(seed, "new") for seed in range(3)) < 1.6


def test_networks_are_compared_although_the_code_of_those_of_one_s_own_differs() -> None:
    text = "{name: x, model: [tiny, 'a:net', 'b:net'], device: cpu, search: {method: tpe, trials: 12}, space: "
    spec = parse(text + "{batch_size: [8, 16, 32, 64], gpus: 1}}", "x.yaml")
    strategy = begun(spec)
    records = run(strategy, lambda at: made_with(record(at, at.batch_size), f"software of {at.model}"))
    assert isinstance(strategy, search.Parzen)
    told = [trial.values for trial in strategy._study.trials if trial.values]
    assert len(told) == len(records) == 12


def test_frameworks_are_compared_although_the_software_of_their_ranks_always_differs() -> None:
    text = "{name: x, model: %s, device: cpu, search: {method: tpe, trials: 8}, space: {batch_size: [8, 16, 32, 64],"
    for model in ("tiny", "a:net"):
        strategy = begun(parse(text % model + " gpus: 1, framework: [tensorflow, torch]}}", "x.yaml"))
        records = run(strategy, lambda at: made_with(record(at, at.batch_size), f"software of {at.framework}"))
        assert isinstance(strategy, search.Parzen)
        told = [trial.values for trial in strategy._study.trials if trial.values]
        assert len(told) == len(records) == 8


def test_repeats_on_unlike_nodes_are_not_averaged() -> None:
    spec = study("{method: tpe, trials: 12}", repeats=2)
    strategy = begun(spec)
    one, other = strategy.propose()[:2]
    assert one.cell == other.cell
    strategy.tell(made_with(record(one, 100.0), hardware="v100"))
    strategy.tell(made_with(record(other, 50.0), hardware="p100"))
    assert isinstance(strategy, search.Parzen)
    assert [told.values for told in strategy._study.trials if told.values] == [[50.0]]


def trials_to(figure: float, spec: SweepSpec) -> int:
    """How many trials it takes to come to a figure; more than there are if it does not."""
    strategy, waiting = begun(spec), list[TrialConfig]()
    for n in range(1, strategy.total + 1):
        waiting += strategy.propose()
        at = waiting.pop(0)
        if rate(at) >= figure:
            return n
        strategy.tell(measured(at))
    return strategy.total + 1


def test_the_planted_best_cell_takes_a_quarter_of_the_trials_that_it_takes_by_chance() -> None:
    """One of 616 cells is the best: drawn at random, it comes after 308 at the median."""
    rates = [rate(cell) for cell in plan.grid(large())]
    assert (len(rates), rates.count(max(rates))) == (616, 1)
    taken = [trials_to(max(rates), large(seed)) for seed in range(5)]
    assert statistics.median(taken) <= 308 / 4


def test_of_two_goals_the_front_is_found() -> None:
    """More GPUs are faster and dearer: the front has a cell for each count. 96 trials at random find two at most."""

    def answer(at: TrialConfig) -> TrialRecord:
        bell = math.exp(-(((math.log2(at.gpus) - 3) / 1.5) ** 2))
        return record(at, rate(at) / bell * at.gpus**0.85)

    def front(records: list[TrialRecord]) -> set[tuple[object, ...]]:
        table = analysis.frame([rows.row(each) for each in records])
        best = analysis.pareto(table, ["images_per_s"], ["gpu_hours_per_epoch"])
        return set(best[["batch_size", "gpus", "precision", "xla", "compression"]].itertuples(index=False))

    planted = front([answer(cell) for cell in plan.grid(large())])
    assert len(planted) == 6
    found = [
        len(planted & front(run(begun(large(seed, trials=72, goal="[images_per_s, gpu_hours_per_epoch]")), answer)))
        for seed in range(2)
    ]
    assert min(found) >= 4


def test_a_continuous_axis_is_searched() -> None:
    space = "{batch_size: 32, gpus: 2, fusion_mib: {loguniform: [1, 1024]}, response_cache: {uniform: [0, 4096]}}"

    def figure(at: TrialConfig) -> float:
        return 100 - (math.log2(at.fusion_mib) - 6) ** 2 - (at.response_cache / 1000 - 1) ** 2

    best = []
    for seed in range(3):
        records = run(begun(study("{method: tpe, trials: 60}", space, seed)), lambda at: record(at, figure(at)))
        assert all(type(each.config.response_cache) is int for each in records)
        best.append(max(figure(each.config) for each in records))
    assert statistics.median(best) > 99.9


def test_a_setting_that_only_some_cells_have_is_searched_where_it_applies() -> None:
    space = """{batch_size: 32, gpus: 1, optimizer: [sgd, lars, adamw], momentum: [0.5, 0.8, 0.9, 0.95],
      trust: {values: [0.0001, 0.001, 0.01, 0.1], when: "optimizer == 'lars'"},
      beta2: {values: [0.9, 0.99, 0.999], when: "optimizer == 'adamw'"}}"""

    def figure(at: TrialConfig) -> float:
        return {"sgd": 50.0, "adamw": 60 + at.beta2, "lars": 90 - abs(math.log10(at.trust) + 2)}[
            at.optimizer
        ] + at.momentum

    records = run(begun(study("{method: tpe, trials: 25}", space)), lambda at: record(at, figure(at)))
    assert max(figure(each.config) for each in records) == pytest.approx(90.95)


def test_what_is_ruled_out_is_never_proposed_and_the_best_that_fits_is_found() -> None:
    feasibility = Feasibility()
    spec = large()
    strategy = begun(spec, feasibility.is_ruled_out)
    waiting: list[TrialConfig] = []
    infeasible, best = 0, 0.0
    while True:
        proposed = strategy.propose()
        assert not any(feasibility.is_ruled_out(at) for at in proposed)
        waiting += proposed
        if not waiting:
            break
        at = waiting.pop(0)
        fits = planted_gib(at) <= 8
        infeasible += not fits
        best = max(best, rate(at) * fits)
        feasibility.tell(measured(at) if fits else short(at))
        strategy.tell(measured(at) if fits else short(at))
    assert best == max(rate(cell) for cell in plan.grid(spec) if planted_gib(cell) <= 8)
    assert infeasible <= 32, "half of the cells don't fit: 48 by chance"


def test_a_space_smaller_than_the_trials_asked_for_is_run_whole() -> None:
    spec = study("{method: tpe, trials: 50}", "{batch_size: [8, 16, 32], gpus: [1, 2], xla: [off, on]}")
    strategy = begun(spec)
    assert {each.config.cell for each in run(strategy)} == {cell.cell for cell in plan.grid(spec)}
    assert strategy.total == 12


def test_cells_that_no_draw_hits_are_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "DRAWS", 0)
    monkeypatch.setattr(plan, "VAIN_DRAWS", 0)
    spec = study("{method: tpe, trials: 50}")
    assert {each.config.cell for each in run(begun(spec))} == {cell.cell for cell in plan.grid(spec)}


def test_the_missing_repeats_of_a_cell_come_first() -> None:
    spec = study("{method: tpe, trials: 12}", repeats=3)
    before = run(begun(spec), until=4)
    resumed = begun(spec)
    for each in before:
        resumed.tell(each)
    assert resumed.propose()[:2] == [
        at for at in plan.repeats_of(spec, before[3].config) if at.repeat > before[3].config.repeat
    ]


def test_what_was_measured_before_is_learned_from() -> None:
    """The first trials of a sweep that goes on are no longer drawn at random."""
    cells = list(plan.grid(large()))
    gains = []
    for seed in range(5):
        resumed = begun(large(seed, trials=400))
        for cell in random.Random(seed).sample(cells, 150):
            resumed.tell(measured(cell))
        gains.append(statistics.fmean(map(rate, resumed.propose())) / statistics.fmean(map(rate, cells)))
    assert min(gains) > 2


def test_few_cells_are_out_at_a_time() -> None:
    strategy = begun(large(trials=400))
    first = strategy.propose()
    assert len(first) == search.STARTUP
    for each in first:
        strategy.tell(measured(each))
    first = strategy.propose()
    assert len(first) == search.MOST_OUT
    assert strategy.propose() == []
    strategy.tell(measured(first[0]))
    assert len(strategy.propose()) == 1


def test_optuna_is_quiet(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    run(begun(study("{method: tpe, trials: 20}")))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
