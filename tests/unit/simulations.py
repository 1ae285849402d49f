"""Trials for a simulated cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

from sweeps.simulator.cluster import SimulatedCluster, parse
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import arrangements
from tests.unit.records import config
from workers.contract.messages import IMAGE_SIZES, Model, TrialConfig, TrialOutcome

FOUR_BY_FOUR = parse("nodes=4,gpus=4,gpu=v100")


def trial(model: Model = "resnet50", batch_size: int = 128, gpus: int = 1, **fields: Any) -> TrialConfig:
    """A throughput trial on GPUs, at the network's published size."""
    given = {"precision": "fp16", "image_size": IMAGE_SIZES[model][1], "classes": 1000} | fields
    plain = config(batch_size=batch_size, gpus=gpus)
    return dataclasses.replace(plain, model=model, device="gpu", **given)


def learning(data: str = "data/imagenet", **fields: Any) -> TrialConfig:
    """A convergence trial of ninety epochs, its learning rate as it should be."""
    given = {"batch_size": 256, "epochs": 90, "evaluate_every": 1, "lr_schedule": "0.1 warmup=5 scale=linear"} | fields
    return dataclasses.replace(trial("resnet50_v1.5"), protocol="convergence", data=data, **given)


def seats(config: TrialConfig, cluster: SimulatedCluster) -> arrangements.Seats:
    found = arrangements.place(config, cluster.nodes, arrangements.idle(cluster.nodes))
    assert found
    return found


def outcome(config: TrialConfig, cluster: SimulatedCluster = FOUR_BY_FOUR, **fields: Any) -> TrialOutcome:
    group = SimulatedGroup(cluster, seats(config, cluster))
    group.start(config, **fields)
    ended = group.wait()
    assert ended
    return ended
