"""The one who keeps a cluster's `Commons`, an actor on its head that every sweep's driver asks.

It is there as long as a sweep is. If it is lost, Ray starts it anew, and within seconds the drivers have told it what
is in use; only whose clock stood where is forgotten. Plain values go to and fro: the drivers' programs may differ.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import ray
from ray._private import state

from sweeps.errors import RefusedError
from sweeps.sharing import Commons, Need, Terms

NAME, NAMESPACE = "commons", "sweeps"
ON_THE_HEAD = {"node:__internal_head__": 0.001}
ANSWERS_WITHIN_S = 60.0
REVIEW_EVERY_S = 2.0
TOLD_WITHIN_S = 10.0  # by every driver what it uses, once the actor is lost and back

# The nodes that others have, and in how many seconds each is expected to be free; asked with those that the sweep
# uses, likewise, what its next starts need, and the GPUs of each node that is there.
Ask = Callable[[Mapping[str, float], Sequence[Need], Mapping[str, int]], Mapping[str, float]]


class Steward:
    def __init__(self) -> None:
        is_back = ray.get_runtime_context().was_current_actor_reconstructed
        self._commons = Commons(opens_at=time.monotonic() + TOLD_WITHIN_S if is_back else 0.0)
        self._reviewed_at = 0.0

    def ask(
        self,
        job: str,
        terms: tuple[float, int | None],
        busy: dict[str, float],
        needs: list[list[list[str]]],
        nodes: dict[str, int],
    ) -> dict[str, float]:
        now = time.monotonic()
        if now - self._reviewed_at > REVIEW_EVERY_S:
            self._reviewed_at = now
            self._forget_the_dead()
        wanted = [tuple(frozenset(part) for part in need) for need in needs]
        return self._commons.ask(job, Terms(*terms), busy, wanted, nodes, now)

    def release(self, job: str) -> bool:
        """Of a sweep that is over. Is another there?"""
        self._forget_the_dead()
        return self._commons.release(job)

    def _forget_the_dead(self) -> None:
        """Ray knows at once of a driver that was killed; what ran for it has ended."""
        dead = {job["JobID"] for job in state.jobs() if job["IsDead"]}
        for job in dead & self._commons.leases.keys():
            self._commons.release(job)


@contextlib.contextmanager
def joined(terms: Terms) -> Iterator[Ask]:
    """Share the cluster that this process is connected to, until the block ends. Raises `RefusedError` if nobody
    answers at first; later on, what was answered last holds."""
    job = ray.get_runtime_context().get_job_id()
    steward: ray.actor.ActorHandle[Steward] | None = None
    last: Mapping[str, float] | None = None

    def ask(busy: Mapping[str, float], needs: Sequence[Need], nodes: Mapping[str, int]) -> Mapping[str, float]:
        nonlocal steward, last
        wanted = [[sorted(part) for part in need] for need in needs]
        for is_last_try in (False, True):  # the one we knew may have gone with the last of the others
            try:
                steward = steward or _steward()
                call = steward.ask.remote(job, (terms.priority, terms.max_nodes), dict(busy), wanted, dict(nodes))
                last = ray.get(call, timeout=ANSWERS_WITHIN_S)
                break
            except (ray.exceptions.RayError, ValueError) as error:
                steward = None
                if is_last_try and last is None:
                    raise RefusedError(
                        "the head must answer how sweeps share the cluster (is this project installed there, in the "
                        f"same version?), but {str(error).strip().splitlines()[-1]}"
                    ) from None
        assert last is not None
        return last

    try:
        yield ask
    finally:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            if steward and not ray.get(steward.release.remote(job), timeout=ANSWERS_WITHIN_S):
                ray.kill(steward)


def _steward() -> ray.actor.ActorHandle[Steward]:
    """The one that is there, or the first."""
    return (
        ray.remote(Steward)
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
