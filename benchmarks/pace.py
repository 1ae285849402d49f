"""How fast this machine is at the moment: one fixed computation on every core at once, for some seconds.

`run` times it before and after each benchmark. A virtual machine whose host is busy, or whose clock was lowered, looks
idle from inside; here it shows. A unit is a product of matrices that a core's own cache holds, and a copy of what no
cache holds. Each core has a process of its own, so that they share what cores of this machine do share.

    python benchmarks/pace.py [SECONDS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

SECONDS = 5
SIZE = 384  # of the matrices
COPIED_MIB = 64
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measured(seconds: int = SECONDS) -> tuple[float, ...]:
    """Milliseconds that a unit takes, mean over the cores, second by second."""
    cores = sorted(os.sched_getaffinity(0))
    commands = [[sys.executable, __file__, str(seconds), str(core)] for core in cores]
    running = [
        subprocess.Popen(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    found = [json.loads(process.communicate()[0]) for process in running]
    return tuple(round(statistics.fmean(of_all), 3) for of_all in zip(*found, strict=True))


def on_core(seconds: int, core: int) -> list[float]:
    import numpy as np

    os.sched_setaffinity(0, {core})
    rng = np.random.default_rng(0)
    one, other = (rng.random((SIZE, SIZE), np.float32) for _ in range(2))
    source = np.ones(COPIED_MIB << 20, np.uint8)
    target = source.copy()
    found = []
    for _ in range(seconds):
        began, units = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < 1:
            one @ other
            np.copyto(target, source)
            units += 1
        found.append(1e3 * took / units)
    return found


if __name__ == "__main__":
    asked = [int(word) for word in sys.argv[1:]]
    print(json.dumps(on_core(*asked) if len(asked) == 2 else measured(*asked)))
