"""How long each part of a simulated trial takes, and the whole. Pure.

Launching, building and reporting are assumed: nothing published says them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeps.simulator import infeasible, learning, model
from sweeps.spec import arrangements
from workers.contract.messages import CALM_STEPS, LENT, TrialConfig

if TYPE_CHECKING:
    from sweeps.simulator.cluster import SimulatedCluster

LAUNCH_S = {"gpu": 6.0, "cpu": 1.0}
BUILD_S = {"gpu": 12.0, "cpu": 2.0}  # tracing; on a GPU, trying out convolutions too
XLA_BUILDS = 3.0  # times as long
REPORT_S = 1.0
JUDGING = 3.0  # times as fast as training
FIRST_LOOKS = 1.05  # of the steps after which a steady trial may stop, until it is looked at and does


OF_A_SCRIPT_S = 60.0


def build_s(config: TrialConfig) -> float:
    return BUILD_S[config.device] * (XLA_BUILDS if config.xla else 1.0)


def epoch_s(config: TrialConfig, step_ms: float) -> float:
    return math.ceil(learning.images(config)[0] / config.global_batch) * step_ms / 1e3


def judging_s(config: TrialConfig, step_ms: float) -> float:
    return learning.images(config)[1] / config.global_batch * step_ms / 1e3 / JUDGING


def expected_s(config: TrialConfig, cluster: SimulatedCluster) -> float:
    """Of a whole trial, without noise; as if on one node, where the cluster can't hold it. Of a user's own program
    nothing is known before it has run."""
    if config.own_code:
        return OF_A_SCRIPT_S
    ranks = arrangements.arrangement(config, cluster.nodes) or (config.gpus,)
    step_ms = model.step(config, cluster.kind, ranks, cluster.nodes[0].cpus).step_ms
    around_s = LAUNCH_S[config.device] + build_s(config)
    if infeasible.why(config, cluster, max(ranks)):
        return around_s
    around_s += REPORT_S
    if config.protocol == "convergence":
        epochs = learning.epochs_needed(config)
        validated = math.ceil(epochs / config.evaluate_every)
        return around_s + epochs * epoch_s(config, step_ms) + validated * judging_s(config, step_ms)
    steps = config.steps
    if not config.measured_steps:
        is_first = config.repeat % (1 + LENT) == 0  # of those that live on what one long window has shown
        window = max(config.min_window, CALM_STEPS) if is_first else config.min_window
        steps = min(steps, round(FIRST_LOOKS * (config.warmup_steps + window)))
    if config.explain:
        from workers.measure import step_shares

        steps += step_shares.cost(steps, step_shares.parts(config, config.gpus))
    return around_s + steps * step_ms / 1e3
