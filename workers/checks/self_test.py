"""A node's quick self-test, and the judge of what it found. A slow node spoils a sweep without failing it.

Each figure is the best of many short rounds, and the rounds of all figures take turns over the whole test: whatever
else a node does only ever takes away from a round, and seldom from all of them. Nothing here uses a GPU:
`workers.checks.gpu_self_test` tests those, and its figures are judged here like the others.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from workers.contract import quota
from workers.contract.messages import Precision

MATRIX = 768
COPY_BYTES = 128 << 20  # more than a core's part of any cache
IMAGE_PX = (500, 375)
ROUND_S = 0.05
LEAST_ROUNDS = 3

# Products of one core tell its clock; of all cores at once, a processor that is throttled or shared. Each product is
# the work of one thread: threads that share a product wait for each other, and measure the system's whims.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

OF_A_GANG = "allreduce_mib_per_s"  # no node can tell it alone
FIGURES = {
    "core_gflops": ("matrix products on one core", "GFLOP/s"),
    "node_gflops": ("matrix products on all cores", "GFLOP/s"),
    "copy_gib_per_s": ("copying memory on one core", "GiB/s"),
    "decode_images_per_s": ("decoding JPEGs on one core", "images/s"),
    OF_A_GANG: ("adding up over the ranks", "MiB/s"),
}
OF_A_GPU = {
    **{f"gpu_{name}_tflops": (f"{name} matrix products", "TFLOP/s") for name in get_args(Precision)},
    "gpu_memory_gib_per_s": ("reading and writing device memory", "GiB/s"),
    "gpu_link_gib_per_s": ("copying from GPU to GPU", "GiB/s"),
}


def probe(seconds: float = 5.0) -> dict[str, float]:
    """Test this node, for about so long. In a process of its own: how many threads NumPy uses is settled when it is
    imported. Raises RuntimeError where the test can't be run."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "workers.checks.self_test", str(time.monotonic() + seconds)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise RuntimeError(f"this node's self-test failed: {last}")
    return dict(json.loads(ran.stdout))


def slow(
    now: Mapping[str, float],
    peers: Sequence[Mapping[str, float]],
    before: Sequence[Mapping[str, float]],
    tolerance: float = 0.10,
) -> list[str]:
    """Return what is more than `tolerance` below the median of a node's peers, or of its own earlier tests. Pure."""
    found = []
    for name, value in now.items():
        what, unit = (FIGURES | OF_A_GPU).get(name, (name, ""))
        for others, whose in ((peers, "peer"), (before, "earlier test")):
            known = [other[name] for other in others if name in other]
            usual = statistics.median(known) if known else 0.0
            if value < (1 - tolerance) * usual:
                those = f"its one {whose}" if len(known) == 1 else f"the median of its {len(known)} {whose}s"
                found.append(f"{what}: {value:.4g} {unit}, {1 - value / usual:.0%} below {those} ({usual:.4g})")
    return found


def measure(until: float) -> dict[str, float]:
    """Return the figures of this node, by the monotonic clock until then. NumPy must have one thread."""
    cores = quota.cores()
    with ThreadPoolExecutor(cores) as threads:
        multiply, *others = _multipliers(cores)
        rounds = {
            "core_gflops": multiply,
            "node_gflops": lambda: sum(threads.map(lambda one: one(), (multiply, *others))),
            "copy_gib_per_s": _copy(),
            "decode_images_per_s": _decode(),
        }
        best = dict.fromkeys(rounds, 0.0)
        done = 0
        while done < LEAST_ROUNDS or time.monotonic() < until:
            for name, play in rounds.items():
                best[name] = max(best[name], play())
            done += 1
    return best


def per_second(work: Callable[[], object]) -> float:
    """How often a second it is done, over a round."""
    began = now = time.perf_counter()
    done = 0
    while now < began + ROUND_S:
        work()
        done += 1
        now = time.perf_counter()
    return done / (now - began)


def _multipliers(count: int) -> list[Callable[[], float]]:
    """Each multiplies the same matrices into one of its own."""
    import numpy as np

    left, right = np.random.default_rng(0).random((2, MATRIX, MATRIX), dtype=np.float32)

    def multiplier() -> Callable[[], float]:
        product = np.empty_like(left)
        return lambda: per_second(lambda: np.matmul(left, right, out=product)) * 2 * MATRIX**3 / 1e9

    return [multiplier() for _ in range(count)]


def _copy() -> Callable[[], float]:
    import numpy as np

    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    target[:] = 2  # so that its pages are there
    return lambda: per_second(lambda: np.copyto(target, source)) * COPY_BYTES / 2**30


def _decode() -> Callable[[], float]:
    import numpy as np
    from PIL import Image

    from workers.inputs.drawn_images import Painter

    image = Painter(*IMAGE_PX, seed=0).jpeg(0, np.random.default_rng(0))
    return lambda: per_second(lambda: Image.open(io.BytesIO(image)).load())


if __name__ == "__main__":
    print(json.dumps(measure(until=float(sys.argv[1]))))
