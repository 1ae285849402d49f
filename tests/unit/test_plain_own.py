"""A user's own data for ranks of any framework: its arrays as they come, and what is said of those that don't fit."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit import planted_sets
from workers.contract.ranks import Fault, Infeasible
from workers.inputs.plain import opening
from workers.inputs.source import Cores
from workers.strategies.ring import Solo

MINE = """
import numpy as np

def examples(shape=(4,), count=22):
    return np.arange(count * np.prod(shape), dtype=np.float32).reshape(count, *shape), np.arange(count) % 10

def data(rank, size, batch_size, split="train"):
    x, y = examples()
    x, y = (x[:6], y[:6]) if split == "validation" else (x[6:], y[6:])
    x, y = x[rank::size], y[rank::size]
    for n in range(0, len(x), batch_size):
        yield x[n : n + batch_size], y[n : n + batch_size]

class Tensor:
    def __array__(self, dtype=None, copy=None):
        return np.ones((4, 3), np.uint8)

def tensors(): yield Tensor(), np.arange(4)
def backwards(): yield examples()[0][3::-1], np.arange(4)
def words(): yield np.array(["a", "b"] * 2), np.arange(4)
def alone(): yield examples()[0][:4]
def one_hot(): yield examples()[0][:4], np.eye(4)
def wrong_label(): yield examples()[0][:4], np.full(4, 10)
def large(): yield examples()[0][:8], np.arange(8)
def unlike():
    yield examples()[0][:4], np.arange(4)
    yield examples((5,))[0][:4], np.arange(4)
def short_first():
    yield examples()[0][:3], np.arange(3)
    yield examples()[0][:4], np.arange(4)
def few(): yield examples()[0][:2], np.arange(2)
def nothing(): return None
def breaks():
    yield examples()[0][:4], np.arange(4)
    raise OSError("disk gone")
def shrinks(split, epoch):
    x, y = examples(count=16 if epoch else 20)
    for n in range(0, len(x), 4):
        yield x[n : n + 4], y[n : n + 4]
def same(split): yield examples()[0][:4], np.arange(4)
"""


class TwoRanks:
    """Rank r of two, that knows what the other one would have said: it has as much, and none of it is the same."""

    size, local_rank, local_size = 2, 0, 1

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def total(self, values: Any) -> Any:
        return values + values[::-1] if len(values) == 2 else values + np.roll(values, len(values) // 2) * 1.5


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def opened(name: str, ring: Any = None, **fields: Any) -> Any:
    return opening.open_source(planted_sets.config(f"mine:{name}", classes=10, **fields), ring or Solo(), Cores(0))


def test_a_stream_is_full_batches_pass_after_pass_as_the_user_gives_them() -> None:
    batches = list(itertools.islice(opened("data").stream(), 6))
    examples, labels, weights = (np.array(values) for values in zip(*batches, strict=True))
    assert (examples.shape, examples.dtype, labels.dtype) == ((6, 4, 4), np.float32, np.int32)
    assert labels.ravel().tolist() == [n % 10 for n in range(6, 22)] + [n % 10 for n in range(6, 14)]
    assert weights.tolist() == [[0.25] * 4] * 6


@pytest.mark.parametrize("rank", [0, 1])
def test_an_epoch_has_each_example_once_and_fillers_of_no_weight(rank: int) -> None:
    source = opened("data", TwoRanks(rank), protocol="convergence", batch_size=3)
    assert (source.train_images, source.validation_images) == (16, 6)
    given = list(source.epoch(1))
    weights = np.array([weights for _, _, weights in given])
    firsts = np.array([examples[:, 0] for examples, _, _ in given])
    assert firsts[weights > 0].tolist() == [4.0 * n for n in range(6 + rank, 22, 2)]
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    judged = list(source.validation())
    assert [weights.tolist() for _, _, weights in judged] == [[1, 1, 1]]


def test_whatever_turns_into_an_array_is_taken_and_can_be_turned_into_a_tensor() -> None:
    for name in ("tensors", "backwards"):
        examples, labels, _ = next(opened(name).stream())
        assert examples.flags["C_CONTIGUOUS"]
        assert examples.flags["WRITEABLE"]
        assert len(examples) == len(labels) == 4


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("words", "examples", "mine:words must give numbers as examples, in an array, but gave (4,) str"),
        ("alone", "not a batch", "mine:alone must give pairs (examples, labels), but gave (4, 4) float32"),
        ("one_hot", "labels", "must give a whole number as each label"),
        ("wrong_label", "label out of range", "mine:wrong_label must give labels from 0 to 9"),
        ("large", "batch size", "must give batches of batch_size (4) examples, a label each, but gave (8, 4) float32"),
        ("unlike", "unlike examples", "in one shape and type: (4,) float32, but gave (5,) float32"),
        ("short_first", "batch size", "but gave one of 3 before others"),
        ("nothing", "not batches", "mine:nothing must give an iterable of batches, but gave a NoneType"),
        ("breaks", "own code", "mine:breaks must run without an error, but raised OSError: disk gone"),
    ],
)
def test_what_does_not_fit_is_told(name: str, kind: str, said: str) -> None:
    found, message = planted_sets.refusal(Fault, lambda: list(itertools.islice(opened(name).stream(), 3)))
    assert found == kind
    assert said in message


def test_fewer_examples_than_a_batch_are_infeasible() -> None:
    said = "mine:few gave rank 0 2 examples for a batch of 4"
    assert planted_sets.refusal(Infeasible, lambda: opened("few").stream()) == ("batch larger than the data", said)


def test_a_pass_that_gives_other_examples_than_were_counted_is_told() -> None:
    source = opened("shrinks", protocol="convergence")
    kind, message = planted_sets.refusal(Fault, lambda: list(source.epoch(1)))
    assert kind == "data changes"
    assert "20 of train at this rank, but gave 16 in epoch 1" in message
