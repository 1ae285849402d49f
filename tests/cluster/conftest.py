from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.cluster import hosts
from tests.cluster.launched import Laptop, on_hosts


@pytest.fixture(scope="module")
def laptop() -> Iterator[Laptop]:
    if why := hosts.lacking():
        pytest.skip(why)
    with on_hosts(with_postgres=True) as user:
        yield user


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the head has logged last stands beside a failure: nothing of it is left when the cluster is down."""
    report = yield
    user = getattr(item, "funcargs", {}).get("laptop")
    if report.failed and isinstance(user, Laptop):
        try:
            logs = user.logs()
        except Exception as error:  # the head may be what failed: the failure itself is told all the same
            logs = f"can't be read: {error}"
        report.sections.append(("the head's logs", logs))
    return report
