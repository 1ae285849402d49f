"""A driver that meters trials until its input ends, on a Ray of its own: what the dashboard is tested with.

python -m tests.integration.metered PORT FOLDER
"""

from __future__ import annotations

import select
import sys
from types import SimpleNamespace

import ray

from sweeps.cluster import private_ray
from sweeps.run.metrics import Meter
from sweeps.spec.arrangements import Node
from tests.unit.records import record
from tests.unit.test_metrics import gpu, launched

SWEEP, NODES, GPUS = "one", 2, 4  # of each node


def main(port: int, folder: str) -> None:
    ray.init("local", include_dashboard=False, _metrics_export_port=port, **private_ray.files_in(folder))
    engine = SimpleNamespace(
        nodes=[Node(f"node{n}", 8, GPUS, "") for n in range(NODES)],
        seated=[SimpleNamespace(trial=gpu(3))],
    )
    meter = Meter(SimpleNamespace(name=SWEEP), engine)  # type: ignore[arg-type]
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        meter.ended(launched(record(gpu(2)), 0.5))
        meter.passed()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
