"""One contract for both rings: the solo ring, and Horovod's over two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.gangs import gang
from workers.contract import messages
from workers.contract.ranks import Seat, Voice
from workers.strategies.horovod import joined
from workers.strategies.ring import ReducingRing


def check(config: messages.TrialConfig, seat: Seat, voice: Voice) -> None:
    """Runs in every rank: what a training loop relies on."""
    import keras
    import tensorflow as tf

    with joined(seat) as ring:
        assert (ring.rank, ring.size) == (seat.rank, seat.size)
        averages(ring, tf)
        totals(ring)
        spreads(ring, keras)
        ring.barrier()
    voice.beat("finish")
    voice.say("failed", kind="checked", message="all holds")


def averages(ring: ReducingRing, tf: Any) -> None:
    mean = sum(range(1, ring.size + 1)) / ring.size
    mine = [tf.fill([3], float(ring.rank + 1)), tf.constant(10.0 * (ring.rank + 1))]
    for average in (ring.average, tf.function(ring.average, autograph=False)):
        first, second = average(mine)
        assert first.numpy().tolist() == [mean] * 3
        assert second.numpy() == 10 * mean


def totals(ring: ReducingRing) -> None:
    for kind in (np.int64, np.float64):
        assert ring.total(np.array([1, ring.rank], kind)).tolist() == [ring.size, sum(range(ring.size))]


def spreads(ring: ReducingRing, keras: Any) -> None:
    variables = [keras.Variable([float(ring.rank)] * 2), keras.Variable(float(ring.rank))]
    ring.spread(variables)
    assert [variable.numpy().tolist() for variable in variables] == [[0.0, 0.0], 0.0]


@pytest.mark.parametrize("size", [1, 2])
def test_the_ring_contract_holds(fork_server: Any, size: int, tmp_path: Path) -> None:
    ends = gang(size, tmp_path, entry="tests.integration.test_ring:check")
    assert [(end.kind, end.message) for end in ends] == [("checked", "all holds")] * size
