"""A Ray cluster to run a sweep on: that at an address, or one of our own on this machine. The nodes it has now."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeps.cluster import cleanup, head_watch, lease_actor, private_ray
from sweeps.cluster.environment import variable
from sweeps.cluster.site import Ask, Late
from sweeps.errors import RefusedError
from sweeps.record import ledger
from sweeps.scheduling.leases import LeaseTerms, Need
from sweeps.spec.arrangements import Node
from sweeps.text import addresses, caller
from workers.checks import node_checkup
from workers.contract import quota

LOOK_EVERY_S = 2.0
NODE_ANSWERS_SOON_S, NODE_ANSWERS_WITHIN_S = 15.0, 60.0  # Ray may have to start a process there first
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end supervisors; ranks have limits of their own
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # it would write down again and again what the ledger has
    "TUNE_MAX_PENDING_TRIALS_PG": "1024",  # the engine starts no trial that does not fit
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1e9",  # who waits for others' nodes has no trial: Tune would raise
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER": "1e9",  # the same on a cluster of `ray up`
    **private_ray.QUIET,
}


def _which() -> str:
    return f"  which, and why: {caller.command('doctor', '--cluster')}"


class Cluster:
    """The nodes of a Ray cluster that ranks may run on, as they come and go."""

    def __init__(self, is_our_own: bool) -> None:
        self._is_our_own = is_our_own
        self._member = lease_actor.Member()
        self._looked_at = -math.inf
        self._nodes: list[Node] = []
        self._ids: dict[str, str] = {}  # Ray's, by name, of those that are there
        self._all_ids: dict[str, str] = {}  # of those that have gone too

    @property
    def nodes(self) -> list[Node]:
        """As they were a moment ago."""
        if time.monotonic() - self._looked_at > LOOK_EVERY_S:
            alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            known = {node_id: name for name, node_id in self._ids.items()}
            taken = {known[node["NodeID"]] for node in alive if node["NodeID"] in known}
            named: dict[str, dict[str, Any]] = {}
            for node in alive:
                name = known.get(node["NodeID"]) or self._new_name(node, taken)
                named[name] = node
                taken.add(name)
            self._ids = {name: node["NodeID"] for name, node in named.items()}
            self._all_ids |= self._ids
            self._nodes = [_node(name, node) for name, node in sorted(named.items())]
            self._looked_at = time.monotonic()
        return self._nodes

    def look_again(self) -> None:
        self._looked_at = -math.inf

    def id(self, name: str) -> str:
        """Of a node that was chosen a moment ago, and may have gone since."""
        return self._all_ids[name]

    def name(self, node_id: str) -> str:
        """Of a node by Ray's id; empty if it has gone."""
        return next((name for name, known in self._ids.items() if known == node_id), "")

    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None:
        """Have a cluster that grows by itself grow to hold these at once."""
        if not self._is_our_own:
            self._member.want(bundles)

    def without(self, patterns: Sequence[str], late: Late) -> dict[str, list[str]]:
        return self._ask_nodes(node_checkup.without, patterns, late)

    def unset(self, variables: Sequence[str], late: Late) -> dict[str, list[str]]:
        return self._ask_nodes(node_checkup.unset, variables, late)

    def versions(self, packages: Sequence[str], late: Late) -> dict[str, list[str]]:
        return self._ask_nodes(node_checkup.versions, packages, late)

    def _ask_nodes(
        self, question: Callable[[Sequence[str]], list[str]], about: Sequence[str], late: Late
    ) -> dict[str, list[str]]:
        asked = {on(self.id(node.name), question).remote(about): node.name for node in self.nodes}
        _, missing = ray.wait([*asked], num_returns=len(asked), timeout=NODE_ANSWERS_SOON_S)
        if missing:
            late()
            rest = NODE_ANSWERS_WITHIN_S - NODE_ANSWERS_SOON_S
            _, missing = ray.wait([*asked], num_returns=len(asked), timeout=rest)
        if missing:
            those = ", ".join(sorted(asked[one] for one in missing))
            raise RefusedError(
                f"nodes must answer within {NODE_ANSWERS_WITHIN_S:.0f} s, but {those}: not yet\n{_which()}"
            )
        try:
            return dict(zip(asked.values(), ray.get([*asked]), strict=True))
        except ray.exceptions.RayError as error:
            raise RefusedError(f"every node must answer, but: {str(error).splitlines()[0]}\n{_which()}") from None

    @contextlib.contextmanager
    def shared(self, terms: LeaseTerms) -> Iterator[Ask | None]:
        if self._is_our_own:
            yield None
            return

        def ask(busy: dict[str, float], needs: Sequence[Need]) -> dict[str, float]:
            nodes = {node.name: node.gpus for node in self.nodes}
            ids = {name: self.id(name) for name in nodes}
            wanted = [tuple(frozenset(ids[name] for name in part & ids.keys()) for part in need) for need in needs]
            used = {ids[name]: seconds for name, seconds in busy.items() if name in ids}
            taken = self._member.ask(terms, used, wanted, {ids[name]: gpus for name, gpus in nodes.items()})
            return {name: taken[node] for name, node in ids.items() if node in taken}

        try:
            yield ask
        finally:
            self._member.leave()

    @contextlib.contextmanager
    def guarded(self, gone: Callable[[str], None]) -> Iterator[None]:
        head: str = ray.get_runtime_context().gcs_address
        with head_watch.guarded(head, functools.partial(private_ray.identity, head), gone):
            yield

    def close(self) -> None:
        """Let the cluster shrink again."""
        self._member.leave()

    @staticmethod
    def _new_name(node: dict[str, Any], taken: Collection[str]) -> str:
        """Its host's: a node that comes back is the one that it was. Another one on the host says which."""
        host: str = node["NodeManagerHostname"]
        return f"{host}/{node['NodeID'][:6]}" if host in taken else host


def on(node_id: str, call: Any) -> Any:
    """Return a function or a class for Ray to run on that very node, whatever runs there."""
    return ray.remote(call).options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))


def _node(name: str, node: dict[str, Any]) -> Node:
    labels, resources = node.get("Labels", {}), node["Resources"]
    kind = labels.get("ray.io/accelerator-type", "")
    return Node(name, int(resources["CPU"]), int(resources.get("GPU", 0)), kind)


@contextlib.contextmanager
def connected(address: str | None, cpus: int | None = None) -> Iterator[Cluster]:
    """Join the Ray cluster at `address`, or one on this machine that ends with the block and leaves no file."""
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what ends a trial is told by its outcome
    if address and address != "auto":
        _knock(address)
    with contextlib.ExitStack() as stack:
        here: dict[str, Any] = {"address": address}
        if not address:
            os.environ.update(private_ray.SELDOM)
            folder = stack.enter_context(cleanup.swept())
            cpus = cpus or quota.cores()
            here = {"address": "local", "num_cpus": cpus, "include_dashboard": False, **private_ray.files_in(folder)}
        try:
            with _this_machines():
                ray.init(**here, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            if other := private_ray.OTHER_VERSION.match(str(error)):
                raise RefusedError(_unlike(address, *other.groups())) from None
            if not isinstance(error, (ConnectionError, TimeoutError, ValueError)) and type(error) is not Exception:
                raise  # a bare one is Ray's of a node that does not start in time
            where = f"at {address}" if address and address != "auto" else "on this machine"
            elsewhere = "\n  if the cluster is elsewhere: --address cluster.yaml" if address == "auto" else ""
            raise RefusedError(f"Ray must answer {where}, but: {str(error).splitlines()[0]}{elsewhere}") from None
        stack.callback(ray.shutdown)
        if not address:
            private_ray.end_what_nobody_asks()
        private_ray.print_no_news()
        site = Cluster(is_our_own=not address)
        stack.callback(site.close)
        yield site


def _unlike(address: str | None, ray_there: str, python_there: str, ray_here: str, python_here: str) -> str:
    cluster = "its cluster" if address == "auto" else address
    return (
        "a driver and its cluster must have one version of Ray and of Python, to the last digit, but here is Ray"
        f" {ray_here} on Python {python_here}, and {cluster} has Ray {ray_there} on Python {python_there}\n"
        f"  make clean setup PYTHON=/path/to/python{python_there} on the side that is to change"
        f" (on the cluster {caller.current().ray_up} after it, which ends sweeps)"
    )


def _this_machines() -> contextlib.AbstractContextManager[None]:
    """For `auto` Ray would rather heed a variable, which is the user's and may be another cluster's. In a job it is the
    cluster's own."""
    return contextlib.nullcontext() if ledger.JOB in os.environ else variable(addresses.RAY, None)


def _knock(address: str) -> None:
    """Ray itself would wait most of a minute for a head that isn't there."""
    try:
        head_watch.connected(address).close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RefusedError(f"a Ray head must answer at HOST:PORT, but {address} gives: {why}") from None
