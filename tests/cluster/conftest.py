from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster import hosts
from tests.cluster.launched import Laptop

JOINED_WITHIN_S = 150


@pytest.fixture(scope="session")
def laptop() -> Iterator[Laptop]:
    """Where a user sits who has called `ray up` on the shipped cluster.yaml: a head and two nodes."""
    if why := hosts.lacking():
        pytest.skip(why)
    with hosts.made(3) as (machines, folder):
        user = Laptop(machines, folder)
        with user.cluster():
            give_up = time.monotonic() + JOINED_WITHIN_S
            while len(user.nodes()) < len(machines):
                assert time.monotonic() < give_up, user.nodes()
                time.sleep(2)
            yield user
