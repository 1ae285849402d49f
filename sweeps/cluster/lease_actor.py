"""The one who keeps a cluster's `Leases` and asks it to grow, an actor on its head that every sweep's driver asks.

It is there as long as a sweep is: once it has said that nobody is left it takes nobody in, so that none joins one that
is about to be killed. If it is lost, Ray starts it anew, and within seconds the drivers have told it what is in use;
only whose clock stood where is forgotten. Plain values go to and fro: the drivers' programs may differ.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.autoscaler import sdk

from sweeps.cluster import private_ray
from sweeps.errors import RefusedError
from sweeps.scheduling.leases import Leases, LeaseTerms, Need

NAME, NAMESPACE = "commons", "sweeps"  # as drivers of other versions look for it too
ON_THE_HEAD = {private_ray.HEAD: 0.001}
ANSWERS_WITHIN_S = 60.0
REVIEW_EVERY_S = 5.0
REPORTED_WITHIN_S = 10.0  # by every driver what it uses, once the actor is lost and back


class LeaseActorOverError(Exception):
    """It has said that nobody is left: the next one is to be asked."""


class LeaseActor:
    def __init__(self) -> None:
        self._is_over = False
        is_back = ray.get_runtime_context().was_current_actor_reconstructed
        self._opens_at = time.monotonic() + REPORTED_WITHIN_S if is_back else 0.0
        self._leases = Leases(self._opens_at)
        self._wanted: dict[str, list[dict[str, float]]] = {}  # by job
        self._asked_for: list[dict[str, float]] | None = None  # of the autoscaler; what others have asked is not known
        threading.Thread(target=_look_after, daemon=True).start()

    def ask(
        self,
        job: str,
        terms: tuple[float, int | None],
        busy: dict[str, float],
        needs: list[list[list[str]]],
        nodes: dict[str, int],
    ) -> dict[str, float]:
        self._stay()
        wanted = [tuple(frozenset(part) for part in need) for need in needs]
        return self._leases.ask(job, LeaseTerms(*terms), busy, wanted, nodes, time.monotonic())

    def want(self, job: str, bundles: list[dict[str, float]]) -> None:
        """Have a cluster that grows by itself hold the sum of what its sweeps want, as long as they live."""
        self._stay()
        self._wanted[job] = bundles
        self._tell_the_autoscaler()

    def release(self, job: str) -> bool:
        """Of a sweep that is over. Is another there?"""
        self._wanted.pop(job, None)
        self._leases.release(job)
        return self.review()

    def review(self) -> bool:
        """Forget who has died: Ray knows at once of a driver that was killed; what ran for it has ended. Is anyone
        left?"""
        for job in private_ray.ended_drivers():
            self._wanted.pop(job, None)
            if job in self._leases.by_sweep:
                self._leases.release(job)
        self._tell_the_autoscaler()
        is_needed = bool(self._wanted or self._leases.by_sweep or time.monotonic() < self._opens_at)
        self._is_over = self._is_over or not is_needed
        return not self._is_over

    def _stay(self) -> None:
        """Whoever was told that nobody is left kills it: what it would take now would be lost with it."""
        if self._is_over:
            raise LeaseActorOverError

    def _tell_the_autoscaler(self) -> None:
        """Make its one request, which stands until there is another, whoever made it and whether they live: so once for
        each change. It is kept on the head, whose end is this actor's too; the next actor knows of none, and makes its
        own at once."""
        wanted = [bundle for bundles in self._wanted.values() for bundle in bundles]
        if wanted != self._asked_for and time.monotonic() >= self._opens_at:
            sdk.request_resources(bundles=wanted)
            self._asked_for = wanted


def _look_after() -> None:
    """In the actor, beside its calls: nobody may be left who would call it."""
    while True:
        time.sleep(REVIEW_EVERY_S)
        with contextlib.suppress(Exception):  # whatever it is, the next look must come
            me: ray.actor.ActorHandle[LeaseActor] = ray.get_actor(NAME, NAMESPACE)
            if not ray.get(me.review.remote()):
                ray.kill(me)


class Member:
    """This process as one of those who share the cluster that it is connected to."""

    def __init__(self) -> None:
        self._job = ray.get_runtime_context().get_job_id()
        self._lease_actor: ray.actor.ActorHandle[LeaseActor] | None = None
        self._wanted: list[dict[str, float]] | None = None  # since it has told so, which may not have got there
        self._last: Mapping[str, float] | None = None  # that was answered

    def ask(
        self, terms: LeaseTerms, busy: Mapping[str, float], needs: Sequence[Need], nodes: Mapping[str, int]
    ) -> Mapping[str, float]:
        """Return the nodes that others have, and in how many seconds each is expected to be free; asked with those that
        the sweep uses, likewise, what its next starts need, and the GPUs of each node that is there. Raises
        `RefusedError` if nobody answers at first; later on, what was answered last holds."""
        wanted = [[sorted(part) for part in need] for need in needs]
        arguments = (self._job, (terms.priority, terms.max_nodes), dict(busy), wanted, dict(nodes))
        try:
            if self._wanted is not None:
                self.want(self._wanted)  # which one that was lost has forgotten
            self._last = self._answer(lambda lease_actor: lease_actor.ask.remote(*arguments))
        except RefusedError:
            if self._last is None:
                raise
        assert self._last is not None
        return self._last

    def want(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Have a cluster that grows by itself hold these at once, until this process ends or wants others."""
        self._wanted = [dict(bundle) for bundle in bundles]
        self._answer(lambda lease_actor: lease_actor.want.remote(self._job, self._wanted))

    def leave(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            if self._lease_actor and not ray.get(self._lease_actor.release.remote(self._job), timeout=ANSWERS_WITHIN_S):
                ray.kill(self._lease_actor)
        self._lease_actor, self._wanted = None, None

    def _answer(self, call: Callable[[ray.actor.ActorHandle[LeaseActor]], ray.ObjectRef[Any]], tries: int = 2) -> Any:
        """Ask the actor; the one we knew may have gone with the last of the others, so there is a second try."""
        try:
            self._lease_actor = self._lease_actor or _lease_actor()
            return ray.get(call(self._lease_actor), timeout=ANSWERS_WITHIN_S)
        except (ray.exceptions.RayError, AttributeError, ValueError) as error:
            if isinstance(error, LeaseActorOverError) and self._lease_actor:
                ray.kill(self._lease_actor)  # whoever was told so may have died before it could
            self._lease_actor = None
            if tries > 1:
                return self._answer(call, tries - 1)
            raise RefusedError(
                "the head must answer how sweeps share the cluster (is this project installed there, in the "
                f"same version?), but {str(error).strip().splitlines()[-1]}"
            ) from None


def _lease_actor() -> ray.actor.ActorHandle[LeaseActor]:
    """Return the actor that is there, or the first."""
    return (
        ray.remote(LeaseActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            resources=ON_THE_HEAD,
            max_restarts=-1,
            max_task_retries=1,
        )
        .remote()
    )
