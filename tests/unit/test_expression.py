"""Conditions: what Python would say to them where both know the sign, unknown where a value is missing, nothing else."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.spec.expression import ExpressionError, condition, parse

NAMES = ("batch_size", "gpus", "precision", "xla", "decode_threads", "env.NCCL_ALGO")
VALUES = {
    "batch_size": 64,
    "gpus": 8,
    "precision": "fp16",
    "xla": True,
    "decode_threads": "auto",
    "env.NCCL_ALGO": "1",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("batch_size * gpus <= 512", True),
        ("batch_size * gpus < 512", False),
        ("1 < gpus <= 8", True),
        ("1 < gpus < 8", False),
        ("precision == 'fp16'", True),
        ('precision != "fp16"', False),
        ("precision in ['fp16', 'bf16']", True),
        ("precision not in ['fp16', 'bf16']", False),
        ("gpus in (1, 2, 4, 8)", True),
        ("xla", True),
        ("not xla", False),
        ("xla == off", False),
        ("xla == true and gpus > 1", True),
        ("gpus > 8 or not (precision == 'fp32')", True),
        ("decode_threads == 'auto' or decode_threads <= 4", True),  # the second is not asked
        ("env.NCCL_ALGO == 1", True),  # a variable is text
        ("env.NCCL_ALGO == '1'", True),
        ("env.NCCL_ALGO < 2", True),
        ("log2(gpus) == 3", True),
        ("max(batch_size, gpus, 100) == 100 and min(gpus, 3) == 3", True),
        ("ceil(batch_size / 60) == 2 and floor(batch_size / 60) == 1 and abs(-gpus) == 8", True),
        ("batch_size % 7 == 1 and batch_size // 7 == 9 and 2 ** 3 == gpus", True),
        ("  gpus\n  > 1 ", True),
    ],
)
def test_a_condition_means_what_it_says(text: str, holds: bool) -> None:
    assert condition(text, NAMES).holds(VALUES) is holds


# ruff: noqa: E501
@pytest.mark.parametrize(
    ("text", "said", "column"),
    [
        ("batchsize > 3", "must be a known name (did you mean batch_size?), but got batchsize", 0),
        ("gpus > 1 and precision == fp16", "must be a known name (a text stands in quotes), but got fp16", 26),
        ("precision == 'fp16' or 'bf16'", "`or` must join conditions; several values follow `in`: precision in ['fp16', 'bf16'], but got 'bf16'", 23),
        ("gpus = 1", "must be written ==, but got =", 5),
        ("gpus > 1 && xla", "must be written and, but got &&", 9),
        ("gpus > 1 || xla", "must be written or, but got ||", 9),
        ("!xla", "must be written not, but got !", 0),
        ("gpus & xla", "must be written with and, but got gpus & xla", 0),
        ("gpus is 1", "must be compared with ==, but got gpus", 0),
        ("gpus", "must be a condition such as batch_size * gpus <= 8192, but got 8", 0),
        ("gpus + 1", "must be a condition such as batch_size * gpus <= 8192, but got gpus + 1", 0),
        ("", "must be a condition such as batch_size * gpus <= 8192, but got the end", 0),
        ("gpus > 'x", "must end with the quote that it begins with, but got 'x", 7),
        ("gpus in batch_size", "`in` must be followed by a list such as [1, 2], but got batch_size", 8),
        ("gpus == [1, 2]", "a list must follow `in`, but got [1, 2]", 8),
        ("min(gpus) > 1", "min must have 2 to 10 arguments, but got min(gpus)", 0),
        ("sqrt(gpus) > 1", "must be one of the functions min, max, abs, log2, ceil, floor, but got sqrt", 0),
        ("__import__('os') == 1", "must be one of the functions min, max, abs, log2, ceil, floor, but got __import__", 0),
        ("gpus.real > 1", "must be a known name (did you mean gpus?), but got gpus.real", 0),
        ("gpus > 1 if xla else xla", "must be made of names, numbers, texts, arithmetic, comparisons, and, or, not, min, max, abs, log2, ceil, floor, but got gpus > 1 if xla else xla", 0),
        ("gpus > 1e99", "must be a number of at most 2e+19, but got 1e99", 7),
        ("decode_threads < 4", "must be a number, but got auto", 0),
        ("xla == 'on'", "on and off must be compared with on or off, without quotes, but got 'on'", 7),
        ("gpus / (gpus - 8) > 1", "must not divide by zero, but got 8 / 0", 0),
        ("log2(gpus - 8) > 1", "must have a value, but got log2(0)", 0),
        ("(gpus - 9) ** 0.5 > 1", "must have a value, but got -1 ** 0.5", 0),
        ("9 ** 9 ** 9 > gpus", "must be a number of at most 2e+19, but got 9 ** 387420489", 0),
        ("'é' == precision or bacth_size > 1", "must be a known name (did you mean batch_size?), but got bacth_size", 20),
        ("-" * 900 + "gpus > 1", "must be nested less deeply, but got more than 40 levels", 0),
        ("gpus > 1 or " * 200, "must be at most 1000 characters, but got 2399", 1000),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_told_with_its_place(text: str, said: str, column: int) -> None:
    with pytest.raises(ExpressionError) as error:
        condition(text, NAMES).holds(VALUES)
    assert (str(error.value), error.value.column) == (said, column)


def test_the_caret_stands_under_the_place_in_a_long_text_too() -> None:
    text = "gpus > 1 and " * 20 + "gbus > 1 " + "and gpus > 1 " * 20
    for one in ("gpus > 1 and gbus > 1", text):
        with pytest.raises(ExpressionError) as error:
            parse(one, NAMES)
        line, caret = error.value.pointer.splitlines()
        assert line[caret.index("^") :].startswith("gbus > 1")
        assert len(line) < 110


def test_an_expression_knows_its_names_and_is_a_value() -> None:
    made = condition("env.NCCL_ALGO == 1 and gpus > 1 or true", NAMES)
    assert made.names == {"env.NCCL_ALGO", "gpus"}
    for same in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert same == made
        assert same.holds(VALUES)
    assert parse("batch_size / gpus", NAMES).value(VALUES) == 8


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gpus > 1", None),
        ("not gpus > 1", None),
        ("gpus + 1 > batch_size", None),
        ("gpus in [1, 2]", None),
        ("gpus == 1 or batch_size == 64", True),
        ("gpus == 1 or batch_size == 65", None),
        ("gpus == 1 and batch_size == 65", False),
        ("gpus == 1 and batch_size == 64", None),
    ],
)
@pytest.mark.parametrize("missing", [{}, {"gpus": None}, {"gpus": math.nan}, {"gpus": np.float64("nan")}])
def test_what_is_missing_is_unknown_and_does_not_hold(text: str, value: object, missing: dict[str, object]) -> None:
    made = condition(text, NAMES)
    assert made.value({"batch_size": 64, **missing}) is value
    assert made.holds({"batch_size": 64, **missing}) is bool(value)


def test_rows_of_a_table() -> None:
    frame = pd.DataFrame(
        {
            "gpus": [1, 2, 4, 8],
            "precision": ["fp16", "fp32", None, "fp16"],
            "top1": [0.5, np.nan, 0.9, 0.9],
            "xla": [True, False, True, True],
            "decode_threads": ["auto", "4", "8", "8"],
        },
        index=[3, 5, 7, 9],
    )

    def rows(text: str) -> list[int]:
        found = condition(text, frame.columns).rows(frame)
        assert found.dtype == bool
        return [int(at) for at in frame.index[found]]

    assert rows("precision == 'fp16' and gpus >= 4") == [9]
    assert rows("precision != 'fp16'") == [5]
    assert rows("top1 > 0.6") == rows("not top1 <= 0.6") == [7, 9]
    assert rows("xla and decode_threads >= 8") == [7, 9]  # where it is auto, it is no number
    assert rows("true") == [3, 5, 7, 9]
    with pytest.raises(ExpressionError, match="must be a number, but got fp16"):
        condition("precision > 16", frame.columns).rows(frame)
    assert condition("gpus > 1", frame.columns).rows(frame[:0]).empty


def arithmetic() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["gpus", "batch_size", "2", "3", "0.5", "-1"])
    sign = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    return st.recursive(leaf, lambda inner: st.builds(lambda a, op, b: f"({a} {op} {b})", inner, sign, inner))


def conditions() -> st.SearchStrategy[str]:
    compared = st.builds(
        lambda a, op, b: f"{a} {op} {b}",
        arithmetic(),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        arithmetic(),
    )
    return st.recursive(
        compared,
        lambda inner: st.one_of(
            st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["and", "or"]), inner),
            st.builds(lambda a: f"not ({a})", inner),
        ),
        max_leaves=4,
    )


@given(conditions(), st.integers(1, 64), st.integers(1, 2048))
def test_numbers_and_logic_are_python_s(text: str, gpus: int, batch_size: int) -> None:
    values = {"gpus": gpus, "batch_size": batch_size}
    try:
        found = condition(text, values).holds(values)
    except ExpressionError:
        return  # too deep, too long, too large, or a division by zero
    assert found is bool(eval(text, {}, values))


@given(st.text(max_size=60) | st.text("gpus<>=&|! ()[]'\"\\+-*/%.,0123456789eE:#\n", max_size=60))
def test_any_text_is_a_condition_or_an_error_with_a_place(text: str) -> None:
    error: ExpressionError | None = None
    try:
        condition(text, NAMES).holds(VALUES)
    except ExpressionError as raised:
        error = raised
    assert error is None or (0 <= error.column <= len(error.text) and error.pointer.count("\n") == 1)
