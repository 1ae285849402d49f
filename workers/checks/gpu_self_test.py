"""The quick self-test of a node's GPUs: one slow GPU holds up every gang that it is in.

Of each GPU matrix products in the precisions that it computes natively, reading and writing its memory, and copying to
the next GPU of the gang. As in `self_test` each figure is the best of short rounds that take turns. It runs in a
process of its own, whose end gives all device memory back, and takes some seconds for TensorFlow to start and about
one for each GPU.

    python -m workers.checks.gpu_self_test SECONDS-FOR-EACH
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workers.checks.self_test import LEAST_ROUNDS, ROUND_S
from workers.contract.messages import Precision
from workers.frameworks import precision
from workers.node import gpus

MATRIX = 8192
COPY_BYTES = 512 << 20  # more than any GPU's cache
PATIENCE_S = 180.0

Round = Callable[[], float]


def probe(node: str, on_node: Sequence[str], seconds: float = 1.0, now: Callable[[], float] = time.time) -> list[Any]:
    """Test these GPUs of a node, each for about so long; one test for each GPU and each link, to be judged by its kind.

    Where that can't be done the one test says why in `trouble`: a sweep goes on without. Slices of a GPU are left out,
    since a process sees one of them only.
    """
    tested = [name for name in on_node if not gpus.is_slice(name)]
    if not tested:
        return []
    search = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **gpus.environment(tested), "PYTHONPATH": search, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "workers.checks.gpu_self_test", str(seconds)]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return [_trouble(node, now(), f"no answer within {PATIENCE_S:g} s")]
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        return [_trouble(node, now(), last)]
    return tests(node, now(), tested, json.loads(ran.stdout.splitlines()[-1]))


def tests(node: str, at: float, names: Sequence[str], measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the judge takes: of each GPU its figures, its peers those of its model; of each link, by itself.

    A link's peers are the links of other nodes between the same two: within a node some pairs have NVLink and some not.
    Pure.
    """
    found = []
    for n, (name, one) in enumerate(zip(names, measured, strict=True)):
        figures = dict(one["figures"])
        link = figures.pop("gpu_link_gib_per_s", None)
        found.append({"node": f"{node} GPU {name}", "kind": one["model"], "at": at, "figures": figures})
        if link is not None:
            pair = f"{name}→{names[(n + 1) % len(names)]}"
            kind, link_figures = f"{one['model']} {pair}", {"gpu_link_gib_per_s": link}
            found.append({"node": f"{node} GPU {pair}", "kind": kind, "at": at, "figures": link_figures})
    return found


def _trouble(node: str, at: float, why: str) -> dict[str, Any]:
    return {"node": f"{node}'s GPUs", "at": at, "figures": {}, "trouble": why}


def measure(
    devices: Sequence[str],
    formats: Sequence[Precision],
    seconds: float,
    matrix: int = MATRIX,
    copy_bytes: int = COPY_BYTES,
) -> Iterator[dict[str, float]]:
    """Yield the figures of each device, and of its link to the next one where there are several."""
    for n, device in enumerate(devices):
        rounds = {f"gpu_{name}_tflops": _products(device, name, matrix) for name in formats}
        rounds["gpu_memory_gib_per_s"] = _memory(device, copy_bytes)
        if len(devices) > 1:
            rounds["gpu_link_gib_per_s"] = _link(device, devices[(n + 1) % len(devices)], copy_bytes)
        best = dict.fromkeys(rounds, 0.0)
        done, until = 0, time.monotonic() + seconds
        while done < LEAST_ROUNDS or time.monotonic() < until:
            for name, play in rounds.items():
                best[name] = max(best[name], play())
            done += 1
        yield best


def _products(device: str, name: Precision, matrix: int) -> Round:
    """Multiply a matrix by itself over and over; teraflops. It is scaled so that the products keep their size."""
    import tensorflow as tf

    kind = {"fp16": tf.float16, "bf16": tf.bfloat16}.get(name, tf.float32)
    with tf.device(device):
        left = tf.cast(tf.random.stateless_normal([matrix, matrix], [0, 0]) / matrix**0.5, kind)

    def multiplied(times: int) -> None:
        tf.config.experimental.enable_tensor_float_32_execution(name == "tf32")
        with tf.device(device):
            product = left
            for _ in range(times):
                product = tf.matmul(left, product)
            _wait_for(product[0, 0])

    rate = paced(multiplied)
    return lambda: rate() * 2 * matrix**3 / 1e12


def _memory(device: str, copy_bytes: int) -> Round:
    """Read a tensor and write its negative; GiB of both together."""
    import tensorflow as tf

    with tf.device(device):
        source = tf.ones([copy_bytes // 4])

    def copied(times: int) -> None:
        with tf.device(device):
            for _ in range(times):
                target = tf.negative(source)
            _wait_for(target[0])

    rate = paced(copied)
    return lambda: rate() * 2 * copy_bytes / 2**30


def _link(device: str, following: str, copy_bytes: int) -> Round:
    """Copy a tensor from one device to the next; GiB."""
    import tensorflow as tf

    with tf.device(device):
        source = tf.ones([copy_bytes // 4])

    def sent(times: int) -> None:
        for _ in range(times):
            with tf.device(device):
                fresh = tf.identity(source)  # of the same bytes; TensorFlow keeps a copy of one that it has sent before
            with tf.device(following):
                target = tf.identity(fresh)
        with tf.device(following):
            _wait_for(target[0])

    rate = paced(sent)
    return lambda: rate() * copy_bytes / 2**30


def _wait_for(number: Any) -> None:
    """Work of a GPU is only queued; what it ends in is known when it is done."""
    number.numpy()


def paced(work: Callable[[int], object]) -> Round:
    """Return what tells how often a second it is done, over a round: so many times in a row that waiting for the last
    costs next to nothing. What only the first time takes is not in it."""
    times = 0

    def play() -> float:
        nonlocal times
        if not times:
            work(1)
            times = 1
        while True:
            began = time.perf_counter()
            work(times)
            took = time.perf_counter() - began
            if took >= ROUND_S:
                return times / took
            times *= 2

    return play


def main(seconds: float) -> None:
    """Print the figures and the model of each GPU that this process sees, in CUDA's order."""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    for gpu in physical:
        tf.config.experimental.set_memory_growth(gpu, True)
    details = [tf.config.experimental.get_device_details(gpu) for gpu in physical]
    if not details:
        raise SystemExit("TensorFlow must see the node's GPUs, but sees none: sweep doctor")
    formats = precision.native_on_gpu(min(one["compute_capability"] for one in details))
    devices = [device.name for device in tf.config.list_logical_devices("GPU")]
    measured = measure(devices, formats, seconds)
    models = [one["device_name"] for one in details]
    print(json.dumps([{"model": model, "figures": figures} for model, figures in zip(models, measured, strict=True)]))


if __name__ == "__main__":
    main(float(sys.argv[1]))
