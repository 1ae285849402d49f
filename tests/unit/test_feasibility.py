"""What is inferred from a trial that ran out of memory, on planted limits."""

from __future__ import annotations

import dataclasses
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Fingerprints
from sweeps.scheduling.feasibility import FIELDS, MOST_CHECKS, WEIGHTLESS, Feasibility
from tests.unit.records import config, record
from workers.contract.messages import Granted, TrialConfig, TrialOutcome

BASE = config()
GIB_PER_IMAGE, GIB_OF_A_RING, GIB = 0.05, 0.2, 16.0


def trial(batch_size: int = 8, gpus: int = 1, **fields: object) -> TrialConfig:
    return dataclasses.replace(BASE, batch_size=batch_size, gpus=gpus, **fields)  # type: ignore[arg-type]


def short(at: TrialConfig, kind: str = "device memory") -> TrialRecord:
    return record(at, outcome=TrialOutcome(status="infeasible", kind=kind, message="asked for 3 GiB"))


def completed(at: TrialConfig) -> TrialRecord:
    return record(at, outcome=TrialOutcome(status="completed"))


def learned(*records: TrialRecord, **how: object) -> Feasibility:
    feasibility = Feasibility(**how)  # type: ignore[arg-type]
    for one in records:
        feasibility.tell(one)
    return feasibility


def run(trials: list[TrialConfig], needs: object, seed: int = 0) -> tuple[dict[str, TrialOutcome], int]:
    """The outcomes of trials that run out of memory where `needs` says so, one after the other, and how many ran."""
    feasibility, ended, attempts = Feasibility(seed), {}, 0
    waiting = list(trials)
    while waiting:
        at = waiting.pop(0)
        if inference := feasibility.inferred(at):
            ended[at.trial] = inference
            feasibility.tell(record(at, outcome=ended[at.trial]))
        else:
            attempts += 1
            one = short(at) if needs(at) > GIB else completed(at)  # type: ignore[operator]
            ended[at.trial] = one.outcome
            feasibility.tell(one)
        waiting += feasibility.freed()
    return ended, attempts


def planted(at: TrialConfig) -> float:
    return at.batch_size * GIB_PER_IMAGE + GIB_OF_A_RING * (at.gpus > 1)


def test_more_of_the_batch_and_more_gpus_are_ruled_out_and_nothing_else() -> None:
    feasibility = learned(short(trial(256, 4)))
    assert feasibility.is_ruled_out(trial(256, 8))
    assert feasibility.is_ruled_out(trial(512, 4))
    assert not feasibility.is_ruled_out(trial(128, 32))
    assert not feasibility.is_ruled_out(trial(1024, 2)), "what was short may have been the ring's buffers"


@pytest.mark.parametrize(
    ("witness", "other", "is_ruled_out"),
    [
        ((1, "pack"), (8, "spread"), True),
        ((4, "pack"), (8, "pack"), True),
        ((4, "pack"), (8, "spread"), False),
        ((8, "2x4"), (16, "4x4"), True),
        ((8, "2x4"), (16, "2x8"), True),
        ((8, "2x4"), (8, "4x2"), False),
        ((8, "2x4"), (8, "pack"), False),
    ],
)
def test_a_witness_holds_where_no_node_has_fewer_ranks(
    witness: tuple[int, str], other: tuple[int, str], is_ruled_out: bool
) -> None:
    (gpus, placement), (more, elsewhere) = witness, other
    feasibility = learned(short(trial(64, gpus, placement=placement)))
    assert feasibility.is_ruled_out(trial(64, more, placement=elsewhere)) == is_ruled_out


@pytest.mark.parametrize(
    "unlike",
    [{"precision": "fp16"}, {"model": "resnet50"}, {"xla": True}, {"optimizer": "adamw"}, {"env": {"A": "1"}}],
)
def test_another_that_may_need_less_is_not_ruled_out(unlike: dict[str, object]) -> None:
    assert not learned(short(trial(64))).is_ruled_out(trial(128, **unlike))


@pytest.mark.parametrize("like", [{"lr_schedule": "0.4"}, {"momentum": 0.5}, {"seed": 7}, {"decode_threads": 8}])
def test_another_that_needs_as_much_of_the_device_is_ruled_out(like: dict[str, object]) -> None:
    assert learned(short(trial(64))).is_ruled_out(trial(64, **like))


def test_every_field_is_either_weightless_or_must_be_equal() -> None:
    assert set(FIELDS) > WEIGHTLESS


def test_host_memory_depends_on_what_feeds_the_trial() -> None:
    feasibility = learned(short(trial(64, data="/images"), "host memory"))
    assert feasibility.is_ruled_out(trial(128, data="/images"))
    assert not feasibility.is_ruled_out(trial(128, data="/images", decode_threads=8))
    assert not feasibility.is_ruled_out(trial(64, 2, data="/images")), "two ranks share a node's decode threads"
    assert learned(short(trial(64), "host memory")).is_ruled_out(trial(64, 2))


def test_neighbours_that_use_host_memory_too_leave_only_the_cell_s_own_repeats() -> None:
    feasibility = learned(short(trial(64, isolation="shared"), "host memory"))
    assert feasibility.is_ruled_out(trial(64, isolation="shared", repeat=1))
    assert not feasibility.is_ruled_out(trial(128, isolation="shared"))
    limited = learned(short(trial(64, isolation="shared", worker_memory_gib=4.0), "host memory"))
    assert limited.is_ruled_out(trial(128, isolation="shared", worker_memory_gib=4.0))


def there(of: TrialRecord, *hardware: str, software: str = "sw", data_files: str = "") -> TrialRecord:
    """The record with a rank on each of these nodes."""
    places = [
        Granted(rank=rank, node=name, hardware=name, software=software, data_files=data_files)
        for rank, name in enumerate(hardware)
    ]
    return dataclasses.replace(of, outcome=dataclasses.replace(of.outcome, granted=tuple(places)))


def test_on_unlike_nodes_together_only_the_cell_s_own_repeats_are_ruled_out() -> None:
    feasibility, both = learned(there(short(trial(64, 2)), "large", "small")), ("large*1x1+small*1x1", "sw", "")
    assert feasibility.is_ruled_out(trial(64, 2, repeat=1), both)
    assert not feasibility.is_ruled_out(trial(128, 2), both)


@pytest.mark.parametrize("unlike", [("other", "sw", "ff"), ("hw", "edited", "ff"), ("hw", "sw", "00"), ("", "", "")])
def test_a_witness_of_other_nodes_other_code_or_other_data_rules_out_nothing_here(unlike: Fingerprints) -> None:
    witness = there(short(trial(64, data="/images"), "host memory"), "hw", data_files="ff")
    feasibility = learned(witness)
    for at in (trial(64, data="/images", repeat=1), trial(128, data="/images")):
        assert feasibility.is_ruled_out(at, ("hw", "sw", "ff"))
        assert not feasibility.is_ruled_out(at, unlike)
        assert feasibility.inferred(at, unlike) is None


def test_what_fits_with_other_code_refutes_no_witness() -> None:
    feasibility = learned(there(short(trial(64)), "hw"), there(completed(trial(300)), "hw", software="edited"))
    assert feasibility.is_ruled_out(trial(300), ("hw", "sw", ""))
    feasibility.tell(there(completed(trial(300)), "hw"))
    assert not feasibility.is_ruled_out(trial(300), ("hw", "sw", ""))


def test_what_was_inferred_stands_as_long_as_its_own_witness_does() -> None:
    inferred = record(trial(128), outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64"))
    feasibility = learned(there(short(trial(64)), "hw"), inferred)
    feasibility.tell(there(completed(trial(256)), "hw", software="edited"))
    assert feasibility.freed() == []
    feasibility.tell(there(completed(trial(256)), "hw"))
    assert [at.trial for at in feasibility.freed()] == [trial(128).trial]


def test_any_infeasible_cell_costs_one_attempt() -> None:
    feasibility = learned(short(trial(64), "precision not supported here"))
    inference = feasibility.inferred(trial(64, repeat=2))
    assert inference is not None
    assert (inference.status, inference.kind) == ("infeasible", "precision not supported here")
    assert (inference.message, inference.inferred_from) == ("asked for 3 GiB", trial(64).trial)
    assert inference.why == f"precision not supported here (inferred from {trial(64).trial}): asked for 3 GiB"
    assert not feasibility.is_ruled_out(trial(128))


def test_failures_say_nothing_of_memory() -> None:
    failed = TrialOutcome(status="failed", kind="killed", message="killed by signal 9")
    assert not learned(record(trial(64), outcome=failed)).is_ruled_out(trial(64, repeat=1))


def test_an_inference_is_no_witness() -> None:
    feasibility = learned(
        record(trial(64), outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64"))
    )
    assert not feasibility.is_ruled_out(trial(128))


def test_the_first_that_is_ruled_out_by_another_cell_runs_all_the_same() -> None:
    feasibility = learned(short(trial(64)))
    assert feasibility.inferred(trial(64, repeat=1)) is not None, "a repeat is no check"
    assert feasibility.inferred(trial(128)) is None
    assert feasibility.inferred(trial(128)) is None, "the same check again, after its node was lost"
    assert feasibility.inferred(trial(128, repeat=1)) is not None


def test_what_ran_anyway_counts_as_a_check() -> None:
    feasibility = learned(short(trial(64)), short(trial(128)))
    assert sum(feasibility.inferred(trial(n)) is None for n in range(200, 208)) <= 2
    assert feasibility.inferred(trial(128, repeat=1)) is not None


@given(st.integers(0, 1000))
def test_a_sweep_has_from_one_to_three_checks(seed: int) -> None:
    feasibility = learned(short(trial(64)), seed=seed)
    checks = sum(feasibility.inferred(trial(n)) is None for n in range(65, 165))
    assert 1 <= checks <= MOST_CHECKS


def test_one_cell_in_eight_is_checked_until_there_are_three() -> None:
    """The second check comes after seven cells at the mean, give or take: a mean of 200 draws is within 1.5 of it."""
    waits = []
    for seed in range(200):
        feasibility = learned(short(trial(64)), seed=seed)
        checks = [n for n in range(65, 200) if feasibility.inferred(trial(n)) is None]
        waits.append(checks[1] - checks[0])
    assert sum(waits) / len(waits) == pytest.approx(8, abs=1.5)


def test_a_check_that_completes_refutes_its_witness_and_frees_what_that_had_ruled_out() -> None:
    feasibility = learned(short(trial(64)), short(trial(512)))
    for at in (trial(128), trial(256, 4), trial(1024)):
        feasibility.tell(
            record(at, outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64"))
        )
    assert feasibility.freed() == []
    feasibility.tell(completed(trial(300)))
    assert {at.trial for at in feasibility.freed()} == {trial(128).trial, trial(256, 4).trial}
    assert feasibility.freed() == [], "each once"
    assert not feasibility.is_ruled_out(trial(400))
    assert feasibility.is_ruled_out(trial(1024)), "by the witness that stands"


def test_a_witness_that_comes_after_its_refutation_never_stands() -> None:
    feasibility = learned(completed(trial(300)), short(trial(64)))
    assert not feasibility.is_ruled_out(trial(128))
    assert feasibility.freed() == []
    feasibility.tell(
        record(trial(128), outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64"))
    )
    assert [at.trial for at in feasibility.freed()] == [trial(128).trial]


@given(st.permutations(range(6)))
def test_the_order_of_the_news_does_not_matter(order: list[int]) -> None:
    news = [
        short(trial(64)),
        short(trial(512)),
        completed(trial(300)),
        completed(trial(32, 8)),
        short(trial(16, 32)),
        record(trial(400), outcome=TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64")),
    ]
    feasibility = learned(*(news[n] for n in order))
    assert [at.trial for at in feasibility.freed()] == [trial(400).trial]
    ruled_out = {(b, g) for b in (8, 16, 64, 512) for g in (1, 8, 32) if feasibility.is_ruled_out(trial(b, g))}
    assert ruled_out == {(16, 32), (64, 32), (512, 1), (512, 8), (512, 32)}


def grid(seed: int) -> list[TrialConfig]:
    cells = [(batch, gpus) for batch in (32, 64, 128, 256, 512, 1024, 2048) for gpus in (1, 2, 4, 8, 16, 32)]
    rounds = [random.Random(seed).sample(cells, len(cells)) for _ in range(3)]
    return [trial(*cell, repeat=n) for n, cells in enumerate(rounds) for cell in cells]


@pytest.mark.parametrize("seed", range(5))
def test_planted_limits_are_found_at_a_fraction_of_the_attempts(seed: int) -> None:
    """54 of 126 trials run out of memory: 18 cells of more than 316 images, three times. In a random order some run
    before a smaller one has shown it."""
    ended, attempts = run(grid(seed), planted, seed)
    for at in grid(seed):
        assert (ended[at.trial].status == "infeasible") == (planted(at) > GIB)
    assert attempts - 72 <= 10


@pytest.mark.parametrize("seed", range(5))
def test_where_memory_is_not_monotone_a_check_sets_right_what_was_inferred(seed: int) -> None:
    """A flaky cell: 64 images fail on one GPU although 2048 fit. The first check refutes it, and all is measured."""
    flaky = trial(64)
    ended, _ = run(
        [flaky, *(at for at in grid(seed) if at.trial != flaky.trial)],
        lambda at: 20.0 if at.trial == flaky.trial else 1.0,
    )
    assert not any(each.inferred_from for each in ended.values())
    assert [name for name, each in ended.items() if each.status != "completed"] == [flaky.trial]


def test_a_question_costs_no_more_where_much_is_known() -> None:
    waiting = [
        trial(batch, gpus, seed=seed) for batch in range(8, 408, 8) for gpus in (1, 2, 4, 8) for seed in range(10)
    ]

    def spent(known: int) -> float:
        told = (short(trial(300 + n, 2, xla=True, precision="fp16")) for n in range(known))
        feasibility = learned(*told, short(trial(200)))
        began = time.process_time()
        for at in waiting:
            feasibility.inferred(at)
        return time.process_time() - began

    assert spent(200) < 5 * spent(10)
