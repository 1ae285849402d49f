"""Ray's logs reach the size at which they are rotated; what a driver has said is read whole all the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clusters import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(240)]

AT_BYTES, KEPT = 4096, 2
LINES = 1000  # ten times as many bytes
READS = """
import json, sys
from sweeps.cluster import connection, job_log, job_traces, private_ray, ray_jobs
from tests.integration.clusters import eventually

url, script = sys.argv[1:]
with connection.client(url) as client:
    ray_jobs._start(client, "talks", ["python", "-c", script], {})
    assert eventually(lambda: client.get_job_status("talks") in job_traces.ENDED)
    fetched = private_ray.OWN_LINES.sub("", client.get_job_logs("talks")).splitlines()
    print(json.dumps([fetched, [*job_log.follow(client, "talks")]]))
"""
SCRIPT = f"for n in range({LINES}): print('line', n, 'of what a driver says')"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One that rotates its logs early, by the variables that scripts/node sets."""
    node = (Path(__file__).parents[2] / "scripts/node").read_text()
    assert {"RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"} <= {*re.findall(r"\bRAY_ROTATION_\w+", node)}
    made = Cluster(2, takes_jobs=True, RAY_ROTATION_MAX_BYTES=str(AT_BYTES), RAY_ROTATION_BACKUP_COUNT=str(KEPT))
    yield made
    made.close()


def test_a_drivers_log_is_read_whole_where_logs_are_rotated(cluster: Cluster) -> None:
    run = [sys.executable, "-c", READS, cluster.jobs, SCRIPT]  # Ray in a process remembers the first token it saw
    told = subprocess.run(run, env=os.environ | cluster.environment, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stderr
    fetched, tailed = json.loads(told.stdout.splitlines()[-1])
    assert fetched == [f"line {n} of what a driver says" for n in range(LINES)]
    assert tailed == fetched


def test_rays_own_logs_are_rotated_and_no_more_are_kept_than_were_asked_for(cluster: Cluster) -> None:
    old = [path.name for path in cluster.logs() if re.search(r"\.\d+$", path.name)]
    assert old, "none has reached its size"
    assert max(int(name.rpartition(".")[2]) for name in old) <= KEPT
