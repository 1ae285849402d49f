"""Why a trial can't run on a simulated cluster, in the words of a real rank. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.simulator import learning, model
from workers.contract.messages import Status, TrialConfig

if TYPE_CHECKING:
    from sweeps.simulator.cluster import SimulatedCluster

Finding = tuple[Status, str, str]  # and its kind and message


def why(config: TrialConfig, cluster: SimulatedCluster, local: int) -> Finding | None:
    """Return what a real rank would say; None where it would train."""
    return _precision(config, cluster) or _memory(config, cluster, local) or _data(config) or _rate(config)


def _precision(config: TrialConfig, cluster: SimulatedCluster) -> Finding | None:
    from workers.contract.ranks import Infeasible
    from workers.frameworks import precision

    on_gpu = config.device == "gpu"
    native = precision.native_on_gpu(cluster.kind.capability) if on_gpu else precision.native_on_cpu(set())
    try:
        precision.require(config, native)
    except Infeasible as finding:
        return "infeasible", finding.kind, str(finding)
    return None


def _memory(config: TrialConfig, cluster: SimulatedCluster, local: int) -> Finding | None:
    needed_gib = model.memory_gib(config)
    if config.device == "gpu":
        kind, whose, limit_gib = "device memory", "a GPU", model.USABLE * cluster.kind.gpu_gib
    else:
        share_gib = model.HOST_SHARE * cluster.kind.memory_gib / local
        kind, whose, limit_gib = "host memory", "a rank", config.worker_memory_gib or share_gib
    if needed_gib <= limit_gib:
        return None
    return "infeasible", kind, f"{needed_gib:.2f} GiB are needed, but {whose} has {limit_gib:.2f} GiB to give"


def _data(config: TrialConfig) -> Finding | None:
    images, _ = learning.images(config)
    if config.data == "synthetic" or config.global_batch <= images:
        return None
    asked = f"{config.gpus} ranks with a batch of {config.batch_size}"
    return "infeasible", "batch larger than the data", f"{config.data} has {images} images for {asked}"


def _rate(config: TrialConfig) -> Finding | None:
    if config.protocol != "convergence" or learning.rate_ratio(config) <= learning.DIVERGES:
        return None
    return "failed", "diverged", "the loss is nan; lower lr_schedule, or warm up longer"
