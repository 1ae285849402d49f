"""Learning-rate schedules: what a text means, what the rates are, and every mistake in our words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import schedules
from workers.contract.rule import RuleError
from workers.contract.schedules import Cosine, Piecewise, Poly, Schedule, Step, parse

STAIRS = "0.4;10;0.04;60;0.004"
RUN = {"epochs": 90, "global_batch": 256}

positive = st.floats(1e-6, 1e6)
epochs = st.floats(0, 90)


@st.composite
def piecewise(draw: st.DrawFn) -> Piecewise:
    ends = tuple(sorted(draw(st.sets(positive, max_size=4))))
    return Piecewise(tuple(draw(positive) for _ in range(len(ends) + 1)), ends)


@st.composite
def falling(draw: st.DrawFn, form: type[Cosine | Poly], **options: st.SearchStrategy[float]) -> Cosine | Poly:
    rate = draw(positive)
    end = draw(st.floats(0, rate, exclude_max=True))
    return form(rate, end=end, **{name: draw(option) for name, option in options.items()})


shapes = st.one_of(
    piecewise(),
    falling(Cosine),
    falling(Poly, power=st.floats(0.1, 10)),
    st.builds(Step, positive, positive, st.floats(0.01, 0.99)),
)


@st.composite
def schedule(draw: st.DrawFn) -> Schedule:
    scale = draw(st.sampled_from(schedules.SCALES))
    base = schedules.BASE if scale == "none" else draw(st.integers(1, schedules.LARGEST_BASE))
    return Schedule(draw(shapes), draw(st.just(0.0) | positive), scale, base)


# ---- the text


@given(schedule())
def test_a_schedule_survives_its_text(made: Schedule) -> None:
    assert parse(str(made)) == made
    assert hash(parse(str(made))) == hash(made)
    assert str(parse(str(made))) == str(made)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (STAIRS, STAIRS),
        ("0.40; 10.0 ;4e-2", "0.4;10;0.04"),
        ("constant: 0.1", "0.1"),
        (" .1 ", "0.1"),
        ("cosine:0.4  end=0", "cosine: 0.4"),
        ("poly : 0.4 power=2 end=1e-3", "poly: 0.4 end=0.001"),
        ("step: 0.1 factor = 0.5 every=30", "step: 0.1 factor=0.5"),
        ("0.4 scale=linear warmup=5.0 base=256", "0.4 warmup=5 scale=linear"),
        ("cosine: 0.4 base=512 scale=sqrt", "cosine: 0.4 scale=sqrt base=512"),
        ("0.4 scale=none warmup=0", "0.4"),
    ],
)
def test_texts_that_mean_the_same_have_one_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(text) == parse(canonical)


def test_schedules_are_equal_by_what_they_hold() -> None:
    assert {parse("constant: 0.1"), parse("0.1"), Schedule(Piecewise((0.1,)))} == {parse("0.1 warmup=0")}
    assert parse("cosine: 0.4") != parse("poly: 0.4")
    assert parse("0.4") != parse("0.4 warmup=1")


# ---- the rates


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [(0, 0.4), (math.nextafter(10, 0), 0.4), (10, 0.04), (math.nextafter(60, 0), 0.04), (60, 0.004), (90, 0.004)],
)
def test_rates_by_epoch_are_exact_at_their_boundaries(epoch: float, rate: float) -> None:
    assert parse(STAIRS).rate(epoch, **RUN) == rate


def test_a_constant_is_the_same_throughout() -> None:
    assert {parse("0.1").rate(epoch, **RUN) for epoch in (0, 0.5, 45, 90)} == {0.1}


@pytest.mark.parametrize(
    ("text", "middle"),
    [("cosine: 0.4", 0.2), ("poly: 0.4", 0.1), ("poly: 0.4 power=1", 0.2), ("cosine: 0.4 end=0.1", 0.25)],
)
def test_a_falling_schedule_goes_exactly_from_its_rate_to_its_end(text: str, middle: float) -> None:
    made = parse(text)
    assert isinstance(made.shape, (Cosine, Poly))
    assert (made.rate(0, **RUN), made.rate(90, **RUN)) == (0.4, made.shape.end)
    assert made.rate(45, **RUN) == pytest.approx(middle)


@given(st.one_of(falling(Cosine), falling(Poly, power=st.floats(0.1, 10))), epochs, epochs)
def test_a_falling_schedule_never_rises_nor_leaves_its_ends(shape: Cosine | Poly, one: float, other: float) -> None:
    early, late = (Schedule(shape).rate(epoch, **RUN) for epoch in sorted((one, other)))
    slack = 1e-12 * shape.rate
    assert shape.rate + slack >= early
    assert early + slack >= late
    assert late + slack >= shape.end


def test_steps_are_taken_after_so_many_epochs_each() -> None:
    made = parse("step: 0.8 every=30 factor=0.5")
    assert [made.rate(epoch, **RUN) for epoch in (0, 29.9, 30, 59.9, 60, 90)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.1]


# ---- warm-up


@given(schedule(), epochs, epochs)
def test_warm_up_never_falls_and_starts_from_zero(made: Schedule, one: float, other: float) -> None:
    early, late = sorted((min(one, made.warmup), min(other, made.warmup)))
    assert made.rate(early, **RUN) <= made.rate(late, **RUN)
    assert made.rate(0, **RUN) == 0 or made.warmup == 0


@given(schedule())
def test_warm_up_is_linear_to_the_schedules_own_rate(made: Schedule) -> None:
    warm = dataclasses.replace(made, warmup=5, scale="none", base=schedules.BASE)
    own = made.shape.at(5, 5, 90)
    assert [warm.rate(epoch, **RUN) for epoch in (0, 1.25, 2.5, 5)] == pytest.approx([0, own / 4, own / 2, own])


def test_warm_up_leads_to_the_piece_in_which_it_ends() -> None:
    made = parse("0.4;3;0.1 warmup=5")
    assert [made.rate(epoch, **RUN) for epoch in (0, 2.5, 5, 6)] == [0, 0.05, 0.1, 0.1]


def test_rates_by_epoch_and_steps_keep_their_epochs_after_warm_up() -> None:
    assert parse(f"{STAIRS} warmup=5").rate(10, **RUN) == 0.04
    assert parse("step: 0.8 factor=0.5 warmup=5").rate(30, **RUN) == 0.4


@pytest.mark.parametrize("form", ["cosine", "poly"])
def test_a_falling_schedule_runs_over_the_epochs_that_remain_after_warm_up(form: str) -> None:
    warm, cold = parse(f"{form}: 0.4 warmup=10"), parse(f"{form}: 0.4")
    assert warm.rate(10, **RUN) == 0.4
    assert warm.rate(10 + 20, 90, 256) == cold.rate(20, 80, 256)
    assert warm.rate(90, **RUN) == 0


def test_a_run_can_be_nothing_but_warm_up() -> None:
    assert [parse("cosine: 0.4 warmup=90").rate(epoch, **RUN) for epoch in (0, 45, 90)] == [0, 0.2, 0.4]


# ---- scale


@given(shapes, epochs, st.integers(1, 1 << 16), st.sampled_from([64, 256, 512]))
def test_scale_multiplies_the_whole_schedule(shape: Any, epoch: float, global_batch: int, base: int) -> None:
    plain = Schedule(shape, warmup=5).rate(epoch, 90, global_batch)
    linear = Schedule(shape, warmup=5, scale="linear", base=base).rate(epoch, 90, global_batch)
    root = Schedule(shape, warmup=5, scale="sqrt", base=base).rate(epoch, 90, global_batch)
    assert linear == pytest.approx(plain * global_batch / base)
    assert root == pytest.approx(plain * math.sqrt(global_batch / base))


def test_an_unscaled_schedule_does_not_look_at_the_batch() -> None:
    assert parse(STAIRS).rate(10, 90, 1) == parse(STAIRS).rate(10, 90, 8192) == 0.04


@pytest.mark.parametrize("scale", ["linear", "sqrt"])
def test_scale_leaves_the_rates_at_the_base_batch(scale: str) -> None:
    assert parse(f"{STAIRS} scale={scale} base=512").rate(10, 90, 512) == 0.04


# ---- the curve


def test_a_curve_is_sampled_in_the_middle_of_equal_parts() -> None:
    assert schedules.curve(parse("0.4;45;0.04"), 90, 256, 2) == [0.4, 0.04]
    assert schedules.curve(parse("poly: 1 power=1"), 10, 256, 5) == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])
    assert schedules.curve(parse("0.1"), 10, 256, 0) == []


# ---- mistakes

HOLE = "every semicolon must stand between a rate and an epoch"
RATE = "a rate must be a finite number more than 0"
EPOCH = "an epoch must be a finite number more than 0"
WARMUP = "warmup must be a finite number of epochs of 0 or more"
BASE = "base must be a whole number from 1 to 1000000000"
UNUSED = "base must come with scale=linear or scale=sqrt"
SCALE = "scale must be one of none, linear, sqrt"
FORM = "a form must be one of constant, cosine, poly, step"
COLON = "a form must have a colon before its rate"


@pytest.mark.parametrize(
    ("text", "rule", "got"),
    [
        ("", "a schedule must hold a rate", "an empty text"),
        (" \n", "a schedule must hold a rate", "an empty text"),
        ("0.4;;0.04", HOLE, "0.4;;0.04"),
        ("0.4;10;", HOLE, "0.4;10;"),
        (";10;0.4", HOLE, ";10;0.4"),
        ("0.4;10; warmup=5", HOLE, "0.4;10;"),
        ("0.4;10;0.04;60", "a schedule must end with a rate, not with an epoch", "0.4;10;0.04;60"),
        ("0.4;60;0.04;10;0.004", "epochs must increase", "10 after 60"),
        ("0.4;10;0.04;10;0.004", "epochs must increase", "10 after 10"),
        ("0.4;0;0.04", EPOCH, "0"),
        ("0.4;-1;0.04", EPOCH, "-1"),
        ("0.4;nan;0.04", EPOCH, "nan"),
        ("0.4;ten;0.04", EPOCH, "ten"),
        ("-0.4", RATE, "-0.4"),
        ("0", RATE, "0"),
        ("0.4;10;0", RATE, "0"),
        ("nan", RATE, "nan"),
        ("inf", RATE, "inf"),
        ("1e999", RATE, "inf"),
        ("0,4", RATE, "0,4"),
        ("0.4 0.2", RATE, "0.4 0.2"),
        ("1_000", RATE, "1_000"),
        ("warmup=5", RATE, "warmup=5"),
        ("cosine:", RATE, "nothing"),
        ("cosine: 0", RATE, "0"),
        ("step: -1", RATE, "-1"),
        ("cosine: 0.4;10;0.04", RATE, "0.4;10;0.04"),
        ("cosine 0.4", COLON, "cosine 0.4"),
        ("cosin: 0.4", f"{FORM} (did you mean cosine?)", "cosin"),
        ("Constant: 0.4", f"{FORM} (did you mean constant?)", "Constant"),
        ("exponential: 0.4", FORM, "exponential"),
        (": 0.4", FORM, "nothing"),
        ("0.4 warmpu=5", "an option must be one of warmup, scale, base (did you mean warmup?)", "warmpu=5"),
        ("poly: 0.4 foo=5", "an option must be one of power, end, warmup, scale, base", "foo=5"),
        ("cosine: 0.4 rate=1", "an option must be one of end, warmup, scale, base", "rate=1"),
        ("cosine: 0.4 power=2", "power must follow poly", "power=2 after cosine: 0.4"),
        ("0.4 end=0", "end must follow cosine or poly", "end=0 after 0.4"),
        ("poly: 0.4 every=30", "every must follow step", "every=30 after poly: 0.4"),
        ("0.4 warmup=5 warmup=6", "warmup must be given once", "warmup=6 too"),
        ("0.4 warmup=-5", WARMUP, "-5"),
        ("0.4 warmup=nan", WARMUP, "nan"),
        ("0.4 warmup=1e999", WARMUP, "inf"),
        ("0.4 warmup=", WARMUP, "nothing"),
        ("0.4 warmup=5 linear", WARMUP, "5 linear"),
        ("0.4 scale=cubic", SCALE, "cubic"),
        ("0.4 scale=", SCALE, "nothing"),
        ("0.4 scale=linear base=0", BASE, "0"),
        ("0.4 scale=linear base=-1", BASE, "-1"),
        ("0.4 scale=linear base=1.5", BASE, "1.5"),
        ("0.4 scale=linear base=1e10", BASE, "10000000000"),
        ("0.4 base=256", UNUSED, "base=256"),
        ("0.4 scale=none base=512", UNUSED, "base=512"),
        ("cosine: 0.4 end=-1", "end must be a finite number of 0 or more", "-1"),
        ("cosine: 0.4 end=0.5", "end must be less than the rate it falls from", "0.5 after 0.4"),
        ("poly: 0.4 power=0", "power must be a finite number more than 0", "0"),
        ("step: 0.4 every=0", "every must be a finite number of epochs more than 0", "0"),
        ("step: 0.4 factor=10", "factor must be a number between 0 and 1", "10"),
        ("step: 0.4 factor=a", "factor must be a number between 0 and 1", "a"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_rule_and_the_value(text: str, rule: str, got: str) -> None:
    with pytest.raises(RuleError) as refused:
        parse(text)
    assert (refused.value.rule, refused.value.got) == (rule, got)
    assert str(refused.value) == f"{rule}, but got {got}"


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: Schedule(Piecewise((0.1,)), base=512), UNUSED),
        (lambda: Schedule(Piecewise((0.1,)), warmup=math.nan), WARMUP),
        (lambda: Piecewise((0.1, 0.2)), "a schedule must end with a rate, not with an epoch"),
        (lambda: Cosine(math.nan), RATE),
    ],
)
def test_a_value_that_no_text_could_give_is_refused_alike(build: Any, rule: str) -> None:
    with pytest.raises(RuleError) as refused:
        build()
    assert refused.value.rule == rule


NUMBERS = ["0.4", "10", "5", "0", "-1", "nan", "-", "."]
SIGNS = [";", ":", "=", " ", " "]
WORDS = ["constant", *schedules.FORMS, *schedules.RULES, "linear"]


@given(
    st.lists(st.sampled_from(NUMBERS) | st.sampled_from(SIGNS) | st.sampled_from(WORDS), max_size=12).map("".join)
    | st.text()
)
def test_any_text_is_a_schedule_or_a_schedule_error(text: str) -> None:
    try:
        made = parse(text)
    except RuleError:
        return
    assert parse(str(made)) == made
