"""`sweep` in a process that notes, beside it, what the placement groups of its Ray hold, as Ray itself tells."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

EVERY_S = 0.1
NOTED = Path("held.json")
Samples = list[tuple[float, float]]  # when, and how many CPUs


def held(samples: Samples) -> float:
    """Return the CPU-seconds that they held together."""
    return sum(cpus * (after - at) for (at, cpus), (after, _) in pairwise(samples))


def _sample(samples: Samples, is_over: threading.Event) -> None:
    while not is_over.wait(EVERY_S):
        ray = sys.modules.get("ray")  # which a command loads when it wants to, and as it wants to
        with contextlib.suppress(Exception):  # it begins, or ends
            if ray and ray.is_initialized():
                there = [one for one in ray.util.placement_group_table().values() if one["state"] == "CREATED"]
                cpus = sum(part.get("CPU", 0.0) for one in there for part in one["bundles"].values())
                samples.append((time.time(), cpus))


if __name__ == "__main__":
    from sweeps.cli import main

    samples: Samples = []
    is_over = threading.Event()
    threading.Thread(target=_sample, args=(samples, is_over), daemon=True).start()
    code = main.main(sys.argv[1:])
    is_over.set()
    NOTED.write_text(json.dumps(samples))
    sys.exit(code)
