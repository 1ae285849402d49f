from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import hosts
from tests.cluster.launched import Laptop


@pytest.fixture(scope="module")
def laptop() -> Iterator[Laptop]:
    """Where a user sits who has called `ray up` on the shipped cluster.yaml: a head and two nodes."""
    if why := hosts.lacking():
        pytest.skip(why)
    with hosts.made(3) as (machines, folder):
        user = Laptop(machines, folder)
        with user.cluster():
            user.wait_for_nodes()
            yield user
