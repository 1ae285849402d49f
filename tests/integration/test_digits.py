"""The data that needs no files: digits and random images."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.integration.input_sets import Sources, open_source
from tests.unit.planted_sets import Ring, refusal
from workers.contract.ranks import Fault, Infeasible
from workers.inputs.source import Source


def digits() -> dict[str, Any]:
    def passed(batches: Any) -> list[Any]:
        return [[np.asarray(values) for values in batch] for batch in batches]

    def source(rank: int, ranks: int, batch: int, **fields: Any) -> Source:
        ring = Ring(rank, ranks)
        return open_source("digits", ring, batch_size=batch, classes=10, image_size=16, **fields)

    one, two = source(0, 1, 100), [source(rank, 2, 50) for rank in range(2)]
    return {
        "counts": (one.train_images, one.validation_images),
        "one": passed(one.epoch(4)),
        "two": [passed(half.epoch(4)) for half in two],
        "next": passed(one.epoch(5)),
        "judged by two": [passed(half.validation()) for half in two],
        "stream": passed(itertools.islice(one.stream(), 30)),
        "too few": refusal(Infeasible, lambda: source(0, 2, 1000).epoch(0)),
        "classes": refusal(Fault, lambda: open_source("digits", Ring(0, 1), classes=9)),
    }


@pytest.fixture(scope="module")
def of_digits(sources: Sources) -> dict[str, Any]:
    return sources(digits)


def test_ranks_share_the_very_global_batches_of_one_rank(of_digits: dict[str, Any]) -> None:
    assert of_digits["counts"] == (1437, 360)
    assert len(of_digits["one"]) == len(of_digits["two"][0]) == 15
    for one, *halves in zip(of_digits["one"], *of_digits["two"], strict=True):
        images, labels, weights = (np.concatenate(values) for values in zip(*halves, strict=True))
        assert np.array_equal(one[0], images)
        assert np.array_equal(one[1], labels)
        np.testing.assert_allclose(one[2], weights / 2, rtol=1e-6)  # a mean over two ranks


def test_digits_come_once_an_epoch_in_another_order_each_time(of_digits: dict[str, Any]) -> None:
    one, after = ([image.tobytes() for batch in of_digits[name] for image in batch[0]] for name in ("one", "next"))
    assert len(set(one[:1437])) > 1400  # hardly any two are alike
    assert Counter(one[:1437]) == Counter(after[:1437])
    assert one[:1437] != after[:1437]
    weights = np.concatenate([batch[2] for batch in of_digits["one"]])
    assert (weights > 0).tolist() == [True] * 1437 + [False] * 63
    assert sum(batch[2].sum() for batch in of_digits["one"]) == pytest.approx(15)


def test_digits_are_rgb_bytes(of_digits: dict[str, Any]) -> None:
    images, labels, weights = of_digits["one"][0]
    assert (images.shape, images.dtype, labels.dtype, weights.dtype) == (
        (100, 16, 16, 3),
        np.uint8,
        np.int32,
        np.float32,
    )
    assert (images[..., 0] == images[..., 2]).all()
    assert images.min() == 0
    assert images.max() == 255
    assert set(labels) == set(range(10))


def test_digits_are_judged_once(of_digits: dict[str, Any]) -> None:
    batches = [batch for of_rank in of_digits["judged by two"] for batch in of_rank]
    weights = np.concatenate([batch[2] for batch in batches])
    assert sorted(set(weights)) == [0, 1]
    assert weights.sum() == 360
    assert len(of_digits["judged by two"][0]) == len(of_digits["judged by two"][1])


def test_a_stream_of_digits_has_only_full_batches(of_digits: dict[str, Any]) -> None:
    np.testing.assert_allclose([batch[2] for batch in of_digits["stream"]], 0.01, rtol=1e-6)


def test_digits_refuse_what_they_cannot_give(of_digits: dict[str, Any]) -> None:
    said = "digits have 1437 images for 2 ranks with a batch of 1000"
    assert of_digits["too few"] == ("batch larger than the data", said)
    assert of_digits["classes"] == ("label out of range", "digits have 10 classes, but got classes: 9")


def synthetic() -> Any:
    source = open_source("synthetic", Ring(1, 2), classes=10)
    batches = source.stream()
    first, second = next(batches), next(batches)
    assert all(a is b for a, b in zip(first, second, strict=True))
    other = next(open_source("synthetic", Ring(0, 2), classes=10).stream())
    refusals = refusal(Fault, lambda: source.epoch(0)), refusal(Fault, source.validation)
    return [np.asarray(values) for values in first], np.asarray(other[0]), refusals


def test_synthetic_data_is_one_random_batch_and_cannot_be_learnt(sources: Sources) -> None:
    (images, labels, weights), other, refusals = sources(synthetic)
    assert (images.shape, images.dtype, labels.dtype) == ((4, 8, 8, 3), np.uint8, np.int32)
    assert images.max() - images.min() > 200
    assert not np.array_equal(images, other)
    assert weights.tolist() == [0.25] * 4
    assert {kind for kind, _ in refusals} == {"nothing to learn"}
