"""Ray's private names, but for Tune's: what Ray has no public way to. The rest of the project uses public Ray only.

tests/integration/test_private_names.py goes through them on the Ray that is installed, and says in words what breaks
where one has changed. What Tune keeps to itself is in `private_tune`, which loads Tune: a cluster's check-up and the
actor on its head need none of it. What Ray's own servers on a node are changed by is in scripts/loopback.

The Ray that pyproject.toml pins, 2.60.0, was the newest that pip offered in November 2026, so no newer one has been
tried. To try one: pin it, `make setup`, and run that test. It names each name that is gone or takes something else,
each function of Ray's that reads otherwise than the one that was read here, and what breaks by it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from sweeps.text import addresses

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

HEAD = "node:__internal_head__"  # a resource that no other node has
# What Ray adds to a job's log.
OWN_LINES = re.compile(r"^(\S+ \S+\s+INFO job_manager\.py|Running entrypoint for job).*\n", re.MULTILINE)
NO_AGENT_YET = "No available agent to submit job"  # in its refusal of a job, while its head is starting
# In its refusal of a driver: the versions of the cluster and of the driver.
OTHER_VERSION = re.compile(r"^Version mismatch: .*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)", re.DOTALL)
NO_SUCH_JOB = "does not exist"  # in its answer about a job that there is not

# Variables of the environment that Ray reads and its documentation does not name. Of every driver:
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_worker_niceness": "0",  # else ranks yield to everything: Ray starts its workers at 15
}
# A Ray of our own shares its cores with the ranks that it measures: it reports what nobody reads less often.
SELDOM = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": "5",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    "LOG_NAME_UPDATE_INTERVAL_S": "3600",  # nobody reads what workers print
}
JOB_ENDS_WITHIN_S = "RAY_JOB_STOP_WAIT_TIME_S"
VARIABLES = {*QUIET, *SELDOM, JOB_ENDS_WITHIN_S}


def files_in(folder: str) -> dict[str, str]:
    """Return what to tell `ray.init` so that a Ray of our own keeps all its files in this folder."""
    return {"_temp_dir": folder}


def identity(head: str) -> object:
    """Return what tells the cluster with this head from any other; raises `OSError` where none answers."""
    import ray
    from ray import _raylet

    try:
        return _raylet.GcsClient(address=head).cluster_id  # type: ignore[attr-defined]
    except ray.exceptions.RpcError as error:
        raise OSError(str(error)) from None


def ended_drivers() -> set[str]:
    """Return the jobs whose drivers have ended, on the cluster that this process is connected to: Ray knows of a driver
    that was killed at once."""
    from ray._private import state

    return {job["JobID"] for job in state.jobs() if job["IsDead"]}


def print_no_news() -> None:
    """Keep Ray from printing its news of nodes and retries in this process."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


def end_what_nobody_asks() -> None:
    """End those processes of a Ray of our own that publish log files, scale nodes and serve pages: they take a
    hundredth of a core, and nobody hears them here."""
    from ray._private import worker

    node = worker._global_node
    for end in (node.kill_log_monitor, node.kill_monitor, node.kill_dashboard):
        end(check_alive=False)


def proxy_to(url: str) -> str | None:
    """Return the proxy that the environment names for a URL; none leads to this machine itself, where tunnels begin."""
    from requests import utils

    chosen = None if addresses.is_loopback(url) else utils.select_proxy(url, utils.get_environ_proxies(url))
    return utils.prepend_scheme_if_needed(chosen, "http") if chosen else None


def client_of(url: str, within_s: float) -> JobSubmissionClient:
    """Return a client that waits so long for each answer, and follows a log the way that its questions go.

    Ray's own would wait for ever behind a link that is gone; it asks through the environment's proxy, also what is on
    this machine, and follows past every proxy."""
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.WARNING)  # it tells of each upload

    proxy = proxy_to(url)
    way = {"http": proxy, "https": proxy, "all": None}  # in place of what the environment says

    class Limited(JobSubmissionClient):
        def _do_request(self, method: str, endpoint: str, **about: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": within_s, "proxies": way, **about})

        async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
            import aiohttp

            async with aiohttp.ClientSession(headers=self._headers) as session:
                line = await session.ws_connect(f"{url.rstrip('/')}/api/jobs/{job_id}/logs/tail", proxy=proxy)
                async for said in line:
                    if said.type == aiohttp.WSMsgType.TEXT:
                        yield said.data

    return Limited(url)


def version_there(client: JobSubmissionClient) -> str | None:
    """Return the version of Ray on a client's cluster."""
    theirs: str | None = client._server_ray_version
    return theirs
