"""A trial's gang on a cluster that is not there: the interface of `workers.launch.gang.Group`, answered at once.

Noise is drawn from the cluster's seed and the trial's name, and so is what befalls it: the same trial comes out the
same, and another attempt at it meets a fate of its own.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

from sweeps.record.rows import SIMULATED
from sweeps.simulator import infeasible, trial_time
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.simulator.measuring import Measuring, TrialNodes
from sweeps.spec.arrangements import Seats
from workers.contract.messages import (
    WITHOUT_JPEGS,
    EpochRecord,
    Granted,
    Measurement,
    Progress,
    Status,
    TrialConfig,
    TrialOutcome,
    report_like,
)

if TYPE_CHECKING:
    from workers.measure.steady import Known

ENTRY = "simulated"
STOPPED = TrialOutcome(status="cancelled", kind="stopped")
KILLED: tuple[Status, str, str] = ("failed", "killed", "killed by signal 9 (SIGKILL)")
MOST_SHOWN = 10_000  # trials of which it is kept what those before had shown
A_RANK = 0.5  # of what befalls trials takes one rank; the rest takes a node


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a trial ends, how long after its start, and the epochs on the way, each with its time."""

    outcome: TrialOutcome
    after_s: float
    epochs: tuple[tuple[float, EpochRecord], ...] = ()


_shown: dict[tuple[str, SimulatedCluster, tuple[int, ...], int], Known] = {}


class SimulatedGroup:
    """The ranks of one trial at a time, on the seats given."""

    def __init__(self, cluster: SimulatedCluster, seats: Seats) -> None:
        self._cluster, self._seats = cluster, seats
        self._ended = Ended(STOPPED, 0.0)
        self.progress = Progress("start", 0)

    def probe(
        self, paths: object, every_s: float, config: TrialConfig, frameworks: object = ()
    ) -> list[dict[str, Any]]:
        """Nodes that aren't there are as fast as their peers."""
        return []

    def start(
        self,
        config: TrialConfig,
        paths: object = None,
        entry: str = ENTRY,
        at: float = 0.0,
        attempt: int = 0,
        folder: str = "",
    ) -> None:
        """`at` is the wall clock to pretend; `attempt` counts the ones before that were lost."""
        self._ended = ended(config, self._cluster, self._seats, at, attempt)

    @property
    def took_s(self) -> float:
        """Virtual seconds from the start to the end."""
        return self._ended.after_s

    @property
    def timeline(self) -> tuple[tuple[float, EpochRecord], ...]:
        """The epochs on the way, each with the virtual seconds from the start to its end."""
        return self._ended.epochs

    def wait(self, timeout_s: float = 0.0) -> TrialOutcome:
        return self._ended.outcome

    def has_come_on(self) -> bool:
        """Say no: it leaves no checkpoints."""
        return False

    def stop(self) -> None:
        """Stop it: what has not been told yet never happens."""
        granted = self._ended.outcome.granted
        self._ended = Ended(dataclasses.replace(STOPPED, granted=granted), 0.0)

    def close(self) -> None:
        self.stop()


def ended(config: TrialConfig, cluster: SimulatedCluster, seats: Seats, at: float = 0.0, attempt: int = 0) -> Ended:
    """One attempt at a trial, from its start to its end."""
    places = [(name, local) for name, ranks in seats for local in range(ranks)]
    on_gpu = config.device == "gpu"
    granted = tuple(
        Granted(
            rank=rank,
            node=name,
            gpu=str(local) if on_gpu else "",
            hardware=cluster.hardware,
            software=SIMULATED,
            data_files="" if config.data in WITHOUT_JPEGS else SIMULATED,
        )
        for rank, (name, local) in enumerate(places)
    )
    launch_s = trial_time.LAUNCH_S[config.device]
    ranks = tuple(ranks for _, ranks in seats)
    if found := infeasible.why(config, cluster, max(ranks)):
        status, kind, message = found
        outcome = TrialOutcome(status=status, kind=kind, message=message, rank=0, step=0, granted=granted)
        return Ended(outcome, launch_s + trial_time.build_s(config))

    used = dict(seats)
    cores = min(node.cpus for node in cluster.nodes if node.name in used)
    trial_nodes = TrialNodes(kind=cluster.kind, ranks=ranks, cores=cores, noise=cluster.noise)
    measuring, fate = _measuring(config, cluster, trial_nodes, at + launch_s, attempt)
    epochs: list[tuple[float, EpochRecord]] = []
    if config.protocol == "convergence":
        report, ended_at, epochs = measuring.convergence()
    else:
        report, ended_at = measuring.throughput(_earlier(config, cluster, trial_nodes))
    after_s, passed = ended_at - at, tuple((then - at, epoch) for then, epoch in epochs)
    if fate.random() < cluster.loss:
        lost_s = fate.uniform(launch_s, after_s)
        return Ended(_lost(granted, fate), lost_s, tuple(one for one in passed if one[0] < lost_s))
    reports = tuple(report_like(report, {"rank": place.rank}) for place in granted)
    return Ended(
        TrialOutcome(status="completed", measurement=Measurement(ranks=reports), granted=granted), after_s, passed
    )


def _measuring(
    config: TrialConfig, cluster: SimulatedCluster, trial_nodes: TrialNodes, entered_at: float, attempt: int
) -> tuple[Measuring, random.Random]:
    """Return an attempt at a trial, and what decides over it."""
    fate = random.Random(f"{cluster.seed} {config.trial} {attempt}")
    return Measuring(config, trial_nodes, entered_at, seed=fate.getrandbits(64)), fate


def _earlier(config: TrialConfig, cluster: SimulatedCluster, trial_nodes: TrialNodes) -> Known | None:
    """Return what the cell's repeats before this one have shown: of each one it is worked out once."""
    if not config.repeat:
        return None
    last = dataclasses.replace(config, repeat=config.repeat - 1)
    asked = config.trial, cluster, trial_nodes.ranks, trial_nodes.cores  # all else of the nodes is the cluster's
    if asked not in _shown:
        if len(_shown) == MOST_SHOWN:
            _shown.clear()
        before, _ = _measuring(last, cluster, trial_nodes, 0.0, attempt=0)
        _shown[asked] = before.learnt(_earlier(last, cluster, trial_nodes))
    return _shown[asked]


def _lost(granted: tuple[Granted, ...], fate: random.Random) -> TrialOutcome:
    victim = fate.choice(granted)
    status: Status
    if fate.random() < A_RANK:
        status, kind, message = KILLED
    else:
        status, kind, message = "lost", "node lost", f"{victim.node} is gone"
    return TrialOutcome(status=status, kind=kind, message=message, rank=victim.rank, step=1, granted=granted)
