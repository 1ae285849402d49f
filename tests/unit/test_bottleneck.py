"""What limits a trial or a cell, on planted step times and shares with known answers."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis
from sweeps.analysis import overview
from sweeps.record import bottleneck, rows
from sweeps.record.bottleneck import Part, Share, Shares
from tests.unit import planted
from tests.unit.records import config, record, report
from workers.contract import messages
from workers.contract.messages import ROUNDS, Measurement, TrialConfig, Without
from workers.measure import step_shares, student_t

NOTHING = Share(0.0, 0.0)


def trial(**fields: object) -> TrialConfig:
    return dataclasses.replace(config(gpus=2), **{"data": "images", "explain": True} | fields)  # type: ignore[arg-type]


def measured(*ranks: dict[Without, list[list[float]]]) -> Measurement:
    """A measurement with these step times of each rank, in rounds, with a part or without."""
    reports = (
        dataclasses.replace(
            report(n, 10, [10.0]), without_ms={part: tuple(map(tuple, rounds)) for part, rounds in times.items()}
        )
        for n, times in enumerate(ranks)
    )
    return Measurement(ranks=tuple(reports))


def shares(*parts: tuple[float, float]) -> Shares:
    """Make shares of input, communication and computing."""
    return Shares(**{part: Share(*told) for part, told in zip(bottleneck.NAMES, parts, strict=True)})


def constant(**ms: float) -> dict[Without, list[list[float]]]:
    names: dict[str, Without] = {name: name for name in get_args(Without)}
    return {names[part]: [[time, time]] * ROUNDS for part, time in ms.items()}


def test_a_share_is_what_a_step_loses_when_the_part_is_taken_away() -> None:
    found = bottleneck.shares(measured(*[constant(nothing=10, input=6, comm=9, both=5, compute=1)] * 2), trial())
    assert found
    assert (found.input.value, found.comm.value, found.compute.value) == pytest.approx((0.4, 0.1, 0.5))
    assert found.overlap.value == pytest.approx(0)
    assert found.input.half_width == pytest.approx(0)


def test_what_a_reduction_takes_alone_and_a_step_does_not_lose_with_it_is_overlap() -> None:
    """8 ms of computing and 4 of reduction, of which 2 stick out."""
    found = bottleneck.shares(measured(*[constant(nothing=10, comm=8, compute=4)] * 2), trial(data="synthetic"))
    assert found
    assert (found.comm.value, found.compute.value, found.overlap.value) == pytest.approx((0.2, 0.8, 0.2))
    assert found.overlap.half_width == pytest.approx(0)


def test_what_hides_behind_a_wait_for_input_is_no_overlap() -> None:
    """Input of 10 ms beside 4 ms of computing and then 2 of reduction: taking the reduction away saves nothing, but
    none of it runs beside the computing."""
    planted_ms = constant(nothing=10, input=6, comm=10, both=4, compute=2)
    found = bottleneck.shares(measured(planted_ms, planted_ms), trial())
    assert found
    assert (found.input.value, found.comm.value, found.compute.value) == pytest.approx((0.4, 0.0, 0.4))
    assert found.overlap.value == pytest.approx(0)


def stepping(
    rng: np.random.Generator, ranks: int, jitter: float, hidden_ms: float, *, has_input: bool
) -> list[dict[Without, list[list[float]]]]:
    """What each rank's clock shows of 100 ms of computing, 80 before its gradients are there and 20 to apply them, each
    of a length of its own at each rank and step, and 30 ms of reduction, of which so much runs beside the computing."""

    def drawn(mean_ms: float, steps: int) -> np.ndarray[Any, Any]:
        sigma = jitter * math.sqrt(mean_ms * 100) / mean_ms  # of both parts together: `jitter` of 100 ms
        return mean_ms * rng.lognormal(-(sigma**2) / 2, sigma, (ranks, steps))

    def block(part: Without) -> np.ndarray[Any, Any]:
        computes, reduces = part != "compute", part not in ("comm", "both")
        steps = step_shares.SETTLING + step_shares.FEWEST
        backward, update = (drawn(ms, steps) * computes for ms in (80.0, 20.0))
        ends = [np.zeros(ranks)]  # at a barrier
        for n in range(steps):
            there = ends[-1] + backward[:, n]
            out_ms = 30.0 - hidden_ms * computes
            ends.append((there.max() + out_ms if reduces else there) + update[:, n])
        return np.diff(ends, axis=0).T[:, step_shares.SETTLING :]

    blocks: list[Without] = ["nothing", "comm", *(["input", "both"] if has_input else []), "compute"]  # type: ignore[list-item]
    rounds = {part: [block(part) for _ in range(ROUNDS)] for part in blocks}
    return [{part: [times[rank].tolist() for times in rounds[part]] for part in blocks} for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "jitter", "hidden_ms", "has_input"),
    [(2, 0.1, 20.0, False), (4, 0.05, 20.0, True), (8, 0.01, 0.0, False), (8, 0.1, 0.0, False), (8, 0.1, 20.0, False)],
)
def test_ranks_that_jitter_leave_overlap_as_it_is(ranks: int, jitter: float, hidden_ms: float, has_input: bool) -> None:
    """The mean of many trials is the planted share to within what they scatter, and their intervals hold it."""
    rng = np.random.default_rng(5)
    asked = trial(data="images" if has_input else "synthetic", gpus=ranks)
    told, whole_ms = [], []
    for _ in range(300):
        times = stepping(rng, ranks, jitter, hidden_ms, has_input=has_input)
        found = bottleneck.shares(measured(*times), asked)
        assert found
        told.append((found.overlap.value, found.overlap.half_width))
        whole_ms += bottleneck.together([of["nothing"] for of in times])
    value, half = np.array(told).T
    planted_share = hidden_ms / np.mean(whole_ms)
    assert abs(value.mean() - planted_share) < 3.5 * value.std() / math.sqrt(len(value))
    assert np.mean(abs(value - planted_share) <= half) >= 0.92


def test_the_slowest_rank_counts() -> None:
    found = bottleneck.shares(
        measured(constant(nothing=10, comm=2), constant(nothing=10, comm=5)), trial(data="synthetic")
    )
    assert found
    assert found.comm.value == pytest.approx(0.5)


@pytest.mark.parametrize("slower", [1.0, 1.2], ids=["equal", "one a fifth slower"])
@pytest.mark.parametrize("ranks", [1, 4, 32])
def test_many_noisy_ranks_leave_shares_as_they_are(ranks: int, slower: float) -> None:
    """Steps of 100 ms, 30 of which are reduction, at 3% spread: of 32 equal means one is 1.8% too long by chance."""
    rng = np.random.default_rng([7, ranks])
    alone_ms = np.full(ranks, 70.0)
    alone_ms[-1] *= slower
    whole_ms = 30.0 + alone_ms.max()

    def noise(*shape: int) -> np.ndarray[Any, Any]:
        return 1 + 0.03 * rng.standard_normal(shape)

    told, covered = [], 0
    for _ in range(200):
        whole = np.broadcast_to(whole_ms * noise(1, ROUNDS, 2), (ranks, ROUNDS, 2))  # all ranks end a step together
        comm = alone_ms[:, None, None] * noise(ranks, ROUNDS, 2)
        times: list[dict[Without, list[list[float]]]] = [
            {"nothing": of.tolist(), "comm": without.tolist()} for of, without in zip(whole, comm, strict=True)
        ]
        found = bottleneck.shares(measured(*times), trial(data="synthetic", gpus=max(ranks, 2)))
        assert found
        assert found.compute.value == pytest.approx(1 - found.comm.value)
        told.append(found.comm.value)
        covered += abs(found.comm.value - 30 / whole_ms) <= found.comm.half_width
    assert np.mean(told) == pytest.approx(30 / whole_ms, abs=0.003)
    assert 0.9 <= covered / len(told) <= 0.99


def test_what_a_round_shares_falls_out_however_the_machine_drifts() -> None:
    paces = [1.0, 1.3, 0.9, 1.7, 1.1, 2.0]
    drifting: dict[Without, list[list[float]]] = {
        "nothing": [[10 * pace, 12 * pace] for pace in paces], "comm": [[8 * pace, 9 * pace] for pace in paces]
    }  # fmt: skip
    found = bottleneck.shares(measured(drifting, drifting), trial(data="synthetic"))
    assert found
    assert found.comm.value == pytest.approx(1 - 8.5 / 11)
    assert found.comm.half_width == pytest.approx(0, abs=1e-9)


def test_the_interval_is_what_the_rounds_differ_by() -> None:
    """Whole steps of 10 ms; without communication 4, 5, 6, …: residuals of −0.1, 0, 0.1, with a deviation of √0.8."""
    alone: dict[Without, list[list[float]]] = {
        "nothing": [[10.0, 10.0]] * 6, "comm": [[4.0], [5.0], [6.0], [6.0], [5.0], [4.0]]
    }  # fmt: skip
    found = bottleneck.shares(measured(alone, alone), trial(data="synthetic"))
    assert found
    assert found.comm.value == pytest.approx(0.5)
    assert found.comm.half_width == pytest.approx(2.5706 * 0.1 * math.sqrt(4 / 5) / math.sqrt(6), rel=1e-3)
    assert found.compute.half_width == found.comm.half_width


def test_the_interval_covers_the_truth() -> None:
    """Steps of 15% spread under a drift of 3% a round: 95 of 100 intervals hold the planted share."""
    rng = np.random.default_rng(12)
    asked, covered = trial(data="synthetic"), 0
    for _ in range(1000):
        pace = 1 + 0.03 * np.arange(ROUNDS)
        times: dict[Without, list[list[float]]] = {
            part: (ms * pace[:, None] * rng.lognormal(-(0.15**2) / 2, 0.15, (ROUNDS, 2))).tolist()
            for part, ms in (("nothing", 10.0), ("comm", 7.0))
        }
        found = bottleneck.shares(measured(times), asked)
        assert found
        covered += abs(found.comm.value - 0.3) <= found.comm.half_width
    assert 930 <= covered <= 970


def test_a_rank_alone_on_synthetic_data_only_computes() -> None:
    found = bottleneck.shares(measured({}), trial(gpus=1, data="synthetic"))
    assert found == Shares(input=NOTHING, comm=NOTHING, compute=Share(1, 0))
    assert bottleneck.sentence(bottleneck.verdict(found), 1) == "compute-bound: 100% of a step is computing"


def test_nothing_is_said_of_what_was_not_looked_for() -> None:
    assert bottleneck.shares(measured({}, {}), trial()) is None
    assert bottleneck.shares(measured({}), trial(gpus=1, data="synthetic", explain=False)) is None
    assert rows.limited_by(record(trial(explain=False))) == ""


def test_rounds_survive_their_json() -> None:
    (told,) = measured(constant(nothing=10.25, comm=5.5)).ranks
    assert messages.rank_report(json.loads(json.dumps(messages.to_json(told)))) == told


@pytest.mark.parametrize(
    ("found", "part", "words"),
    [
        # a wait that is above a twentieth for sure, and leaves the other behind, is named
        (shares((0.41, 0.03), (0.05, 0.03), (0.54, 0.03)), "input",
         "input-bound: 41% ± 3% of a step waits for 4 decode threads; 7 to 8 would do"),
        (shares((0.2, 0.03), (0.35, 0.03), (0.45, 0.03)), "comm",
         "communication-bound: 35% ± 3% of a step is reduction over 8 ranks"),
        # its interval may be wide, as long as it leaves both
        (shares((0.5, 0.35), (0.0, 0.1), (0.5, 0.35)), "input",
         "input-bound: 50% ± 35% of a step waits for 4 decode threads; 5 to 27 would do"),
        # one number where both ends come to the same, and no most where it may be nearly all
        (shares((0.41, 0.01), (0.05, 0.03), (0.54, 0.01)), "input",
         "input-bound: 41% ± 1% of a step waits for 4 decode threads; 7 would do"),
        (shares((0.8, 0.2), (0.0, 0.1), (0.2, 0.2)), "input",
         "input-bound: 80% ± 20% of a step waits for 4 decode threads; 10 or more would do"),
        # computing is named where no wait can be a tenth
        (shares((0.02, 0.03), (0.04, 0.03), (0.94, 0.03)), "compute",
         "compute-bound: 94% ± 3% of a step is computing"),
        (shares((-0.01, 0.03), (-0.02, 0.03), (1.03, 0.03)), "compute",
         "compute-bound: 103% ± 3% of a step is computing"),
        (shares((0.0, 0.0), (0.02, 0.01), (0.98, 0.01)), "compute",
         "compute-bound: 98% ± 1% of a step is computing"),
        # what touches zero is open: of the two examples the one that names its other part too
        (shares((0.11, 0.11), (0.08, 0.09), (0.81, 0.11)), None,
         "open: input 11% ± 11%, communication 8% ± 9%; more repeats or steps would tell"),
        (shares((0.1, 0.17), (0.0, 0.02), (0.9, 0.17)), None,
         "open: input 10% ± 17%; more repeats or steps would tell"),
        # two that both leave zero but not each other
        (shares((0.3, 0.04), (0.28, 0.04), (0.42, 0.04)), None,
         "open: input 30% ± 4%, communication 28% ± 4%; more repeats or steps would tell"),
        (shares((0.3, 0.04), (0.3, 0.04), (0.4, 0.04)), None,
         "open: input 30% ± 4%, communication 30% ± 4%; more repeats or steps would tell"),
        # an interval that touches the other's is not clear of it, whatever the two have in common
        (shares((0.34, 0.04), (0.27, 0.04), (0.39, 0.04)), None,
         "open: input 34% ± 4%, communication 27% ± 4%; more repeats or steps would tell"),
        # computing must leave both waits behind, and not only the larger one
        (shares((0.01, 0.0), (0.0, 0.095), (0.1, 0.05)), None,
         "open: computing 10% ± 5%, input 1%, communication 0% ± 10%; more repeats or steps would tell"),
        # a wait that may be a tenth keeps computing from being named, and one below it from being named itself
        (shares((0.08, 0.04), (0.0, 0.01), (0.92, 0.04)), None,
         "open: input 8% ± 4%; more repeats or steps would tell"),
        (shares((0.02, 0.15), (-0.05, 0.01), (1.0, 0.15)), None,
         "open: input 2% ± 15%; more repeats or steps would tell"),
        # no wait is a tenth, but computing is not sure either
        (shares((0.05, 0.02), (0.01, 0.02), (0.3, 0.5)), None,
         "open: computing 30% ± 50%, input 5% ± 2%, communication 1% ± 2%; more repeats or steps would tell"),
        # without an interval nothing is sure
        (shares((0.6, math.nan), (0.1, math.nan), (0.3, math.nan)), None,
         "open: input 60%, communication 10%; more repeats or steps would tell"),
        # leaving zero is not enough to have something changed for: the whole interval is above a twentieth
        (shares((0.11, 0.105), (0.0, 0.0), (0.89, 0.105)), None,
         "open: input 11% ± 10%; more repeats or steps would tell"),
        # rounding must not make an interval touch zero that does not
        (shares((0.112, 0.108), (0.0, 0.0), (0.888, 0.108)), None,
         "open: input 11.2% ± 10.8%; more repeats or steps would tell"),
        (shares((0.11, 0.061), (0.0, 0.0), (0.89, 0.061)), None,
         "open: input 11% ± 6%; more repeats or steps would tell"),
        (shares((0.11, 0.059), (0.0, 0.0), (0.89, 0.059)), "input",
         "input-bound: 11% ± 6% of a step waits for 4 decode threads; 5 would do"),
    ],
)  # fmt: skip
def test_a_part_is_named_only_when_its_interval_says_so(found: Shares, part: Part | None, words: str) -> None:
    verdict = bottleneck.verdict(found)
    assert verdict.part == part
    assert bottleneck.sentence(verdict, ranks=8, decode_threads=4) == words


SHARE = st.builds(Share, st.floats(-0.5, 1.5), st.floats(0, 1))
SHARES = st.builds(Shares, input=SHARE, comm=SHARE, compute=SHARE)


@given(SHARES)
def test_what_is_named_is_some_of_a_step_for_sure_and_leaves_the_next_part_behind(found: Shares) -> None:
    verdict = bottleneck.verdict(found)
    waits: dict[Part, Share] = {"input": found.input, "comm": found.comm}
    if verdict.part is None:
        assert verdict.shares
        assert bottleneck.in_short(verdict).startswith("open: ")
    elif verdict.part == "compute":
        assert max(wait.value + wait.half_width for wait in waits.values()) < bottleneck.CLEARLY
        assert found.compute.value - found.compute.half_width > 0
        assert all(found.compute.low > wait.high for wait in waits.values())
    else:
        named, other = waits.pop(verdict.part), *waits.values()
        assert named.value - named.half_width >= bottleneck.CLEARLY / 2
        assert named.low > other.high


@pytest.mark.parametrize("correlation", [-1.0, 0.0, 0.9])
@pytest.mark.parametrize("repeats", [3, 6])
def test_of_two_waits_that_are_equal_one_is_seldom_named_however_they_go_together(
    repeats: int, correlation: float
) -> None:
    """Repeats wait now for input and now for reduction, or for both alike: 1 in 20 is named at most. Taken for
    independent, 1 in 8 of those that go against each other would be."""
    rng, half = np.random.default_rng(6), student_t.quantile(repeats - 1) / math.sqrt(repeats)
    one, other = rng.standard_normal((2, 5_000, repeats))
    input_, comm = 0.3 + 0.02 * np.array([one, correlation * one + math.sqrt(1 - correlation**2) * other])
    named = 0
    for i, c in zip(input_, comm, strict=True):
        waits = [Share(float(of.mean()), float(half * of.std(ddof=1))) for of in (i, c)]
        named += bottleneck.verdict(Shares(input=waits[0], comm=waits[1], compute=Share(0.4, 0.0))).part is not None
    assert named / len(input_) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(input_))


@given(SHARES, st.floats(1.01, 100))
def test_less_evidence_never_names_a_part(found: Shares, wider: float) -> None:
    """Wider intervals take a name away, and never give one or another."""
    less = Shares(**{part: Share(one.value, wider * one.half_width) for part, one in vars(found).items()})
    assert bottleneck.verdict(less).part in (None, bottleneck.verdict(found).part)


def test_input_that_nothing_decodes_is_called_input() -> None:
    found = bottleneck.verdict(shares((0.5, 0.01), (0, 0), (0.5, 0.01)))
    assert bottleneck.sentence(found, ranks=1) == "input-bound: 50% ± 1% of a step waits for its input"


def cell(*trials: tuple[tuple[float, float], ...]) -> pd.Series:
    """Make a cell of repeats with these shares of input, communication and computing."""
    told = [
        planted.trial(
            100.0, gpus=2, repeat=n,
            **{f"{part}_share": value for part, (value, _) in zip(bottleneck.NAMES, parts, strict=True)},
            **{f"{part}_share_ci": half for part, (_, half) in zip(bottleneck.NAMES, parts, strict=True)},
        )
        for n, parts in enumerate(trials)
    ]  # fmt: skip
    return analysis.cells(planted.frame(told)).iloc[0]


def verdict_of(found: pd.Series) -> str:
    verdict = bottleneck.of_cell(found)
    return bottleneck.in_short(verdict) if verdict else ""


def test_a_cell_of_one_trial_says_what_the_trial_says() -> None:
    assert verdict_of(cell(((0.4, 0.05), (0.0, 0.02), (0.6, 0.05)))) == "input 40% ± 5%"
    assert verdict_of(cell(((0.11, 0.11), (0.08, 0.09), (0.8, 0.1)))) == "open: input 11% ± 11%, communication 8% ± 9%"


def test_repeats_that_agree_say_more_than_one_trial() -> None:
    one = ((0.13, 0.13), (0.0, 0.05), (0.87, 0.13))
    assert verdict_of(cell(one)) == "open: input 13% ± 13%"
    assert verdict_of(cell(one, one, one)) == "input 13% ± 8%"  # 13 / √3: that they are equal to the digit is luck


def test_repeats_that_differ_more_than_their_rounds_say_less() -> None:
    found = cell(*(((value, 0.01), (0.0, 0.01), (1 - value, 0.01)) for value in (0.1, 0.3, 0.5)))
    assert found["input_share"] == pytest.approx(0.3)
    assert found["input_share_ci"] == pytest.approx(4.3027 * 0.2 / math.sqrt(3), rel=1e-3)
    assert verdict_of(found) == "open: input 30% ± 50%"


def test_overlap_has_its_interval_in_a_row_and_over_the_repeats_of_a_cell() -> None:
    asked = trial(data="synthetic", explain=True)
    told = measured(*[constant(nothing=10, comm=8) | {"compute": [[4.0], [5.0], [6.0], [6.0], [5.0], [4.0]]}] * 2)
    made = record(asked)
    repeats = [
        rows.row(
            dataclasses.replace(
                made,
                config=dataclasses.replace(asked, repeat=n),
                outcome=dataclasses.replace(made.outcome, measurement=told),
            )
        )
        for n in range(3)
    ]
    own = 2.5706 * 0.1 * math.sqrt(4 / 5) / math.sqrt(6)
    assert (repeats[0]["overlap_share"], repeats[0]["overlap_share_ci"]) == pytest.approx((0.3, own), rel=1e-3)
    found = analysis.cells(planted.frame(repeats)).iloc[0]
    assert (found["overlap_share"], found["overlap_share_ci"]) == pytest.approx((0.3, own / math.sqrt(3)), rel=1e-3)
    assert bottleneck.overlapped(bottleneck.share_of(found, "overlap")) == "30% ± 5%"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Share(0.3, 0.05), "30% ± 5%"),
        (Share(0.04, 0.05), "open: 4% ± 5%"),
        (Share(-0.04, 0.05), "open: -4% ± 5%"),
        (Share(-0.1, 0.05), "-10% ± 5%"),
        (Share(0.3, math.nan), "open: 30%"),
        (NOTHING, "0%"),
        (Share(math.nan, math.nan), "–"),
    ],
)
def test_an_overlap_is_named_only_when_its_interval_leaves_zero(share: Share, words: str) -> None:
    assert bottleneck.overlapped(share) == words


def test_a_cell_that_nobody_looked_at_has_no_verdict() -> None:
    assert bottleneck.of_cell(analysis.cells(planted.frame(planted.trial(100.0))).iloc[0]) is None


@pytest.mark.parametrize(("level", "repeats", "least"), [(0, 3, 0.95), (1, 3, 0.95), (2, 3, 0.94), (4, 5, 0.94)])
def test_the_pooled_interval_covers_whatever_trials_differ_by(level: float, repeats: int, least: float) -> None:
    """`level` is the deviation between trials, in standard errors of one."""
    from workers.measure.student_t import quantile

    rng = np.random.default_rng(3)
    drawn = rng.standard_normal((20_000, repeats, ROUNDS)) * math.sqrt(ROUNDS)
    drawn += level * rng.standard_normal((20_000, repeats, 1))
    trials = drawn.mean(2)
    own = quantile(ROUNDS - 1) * drawn.std(2, ddof=1) / math.sqrt(ROUNDS)
    n = np.full(20_000, repeats)
    between = analysis.half_width(trials.std(1, ddof=1), n)
    half = analysis.pooled(between, np.sqrt((own**2).sum(1)), n)
    assert np.mean(abs(trials.mean(1)) <= half) >= least


def test_console_tag_and_report_say_the_same_of_a_trial() -> None:
    asked = trial()
    told = measured(*[constant(nothing=10, input=6, comm=9.5, both=5.5)] * 2)
    made = dataclasses.replace(record(asked), outcome=dataclasses.replace(record(asked).outcome, measurement=told))
    row = rows.row(made)
    assert row["limited_by"] == "input-bound: 40% of a step waits for its input"
    found = bottleneck.of_cell(analysis.cells(planted.frame(row)).iloc[0])
    assert found
    assert bottleneck.sentence(found, 2) == row["limited_by"]
    assert overview.limited_by(analysis.cells(planted.frame(row))) == [bottleneck.in_short(found)]


@given(st.integers(0, 2000), st.sampled_from([["comm"], ["input"], ["comm", "input", "both"]]))
def test_looking_costs_a_quarter_of_the_steps_or_the_shortest_rounds(steps: int, parts: list[Without]) -> None:
    shortest = {1: 31, 3: 67}[len(parts)]
    cost = step_shares.cost(steps, parts)
    assert cost <= max(steps / 4, shortest)
    assert (cost == 0) == (steps < 16 * len(parts))
    if cost:
        assert ROUNDS * step_shares.block(steps, parts) >= 12


def test_rounds_mirror_each_other() -> None:
    parts: list[Without] = ["comm", "input", "both"]
    assert step_shares.order(0, parts) == ["nothing", "comm", "input", "both"]
    assert step_shares.order(1, parts) == ["both", "input", "comm", "nothing"]
