"""What a decode thread gets done: images/s of our inputs against libjpeg-turbo alone and against a plain tf.data map.

One thread each, the same 500 × 375 JPEGs, in this one run and in turns of a second. Ours, TensorFlow's and the one for
ranks of other frameworks, read, shuffle, crop, resize to 224 × 224, flip, batch and count; the plain tf.data reads,
decodes, resizes and batches; libjpeg-turbo (by way of simplejpeg) only decodes, from memory. A round gives one ratio to
each; the figures are their geometric means with 95% intervals.

    python benchmarks/input.py [SECONDS]
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import simplejpeg

from sweeps import analysis
from sweeps.spec import plan, sweep_file
from verdicts import conclude
from workers.contract.messages import TrialConfig
from workers.inputs import dataset, opening
from workers.inputs.plain import opening as plain_opening
from workers.inputs.source import Source
from workers.strategies.ring import Solo

TURN_S, CURVE_POINT_S = 1.0, 3.0
WARM_BATCHES = 5
SWEEP = "{{name: input, model: resnet50, data: {data}, device: cpu, repeats: 1, space: {{batch_size: 64, gpus: 1}}}}"

OURS, PLAIN, TURBO, TFDATA = "ours", "ours, no framework", "libjpeg-turbo", "plain tf.data"
RATIOS = {  # by what their figures are called
    "over_turbo": (OURS, TURBO),
    "over_tfdata": (OURS, TFDATA),
    "plain_over_turbo": (PLAIN, TURBO),
}

OPENINGS = (opening.open_source, plain_opening.open_source)

Turn = Callable[[float], float]  # images a second in so many seconds


def rate(batches: Iterator[Any], images: int, seconds: float) -> float:
    for _ in range(WARM_BATCHES):
        next(batches)
    start, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        next(batches)
        done += images
    return done / passed


def ours(config: TrialConfig, threads: int, open_source: Callable[..., Source] = opening.open_source) -> Turn:
    asked = dataclasses.replace(config, decode_threads=threads)

    def turn(seconds: float) -> float:
        source = open_source(asked, Solo(), opening.cores_here(asked, 1))
        return rate(source.stream(), config.batch_size, seconds)

    return turn


def plain_tfdata(config: TrialConfig) -> Turn:
    """Return what one writes first: the plainest loop over the data."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def decode(record: Any) -> tuple[Any, Any]:
        fields = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(fields["image/encoded"], channels=3)
        return tf.image.resize(image, (config.image_size, config.image_size)), fields["image/class/label"]

    def turn(seconds: float) -> float:
        files = sorted(str(path) for path in Path(config.data).glob("train-*"))
        data = tf.data.TFRecordDataset(files).repeat().map(decode, num_parallel_calls=1)
        data = data.batch(config.batch_size).prefetch(2)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = 1
        options.threading.max_intra_op_parallelism = 1
        return rate(iter(data.with_options(options)), config.batch_size, seconds)

    return turn


def libjpeg_turbo(config: TrialConfig) -> Turn:
    tf = dataset.tensorflow()
    records = tf.data.TFRecordDataset(sorted(str(path) for path in Path(config.data).glob("train-*")))
    examples = [tf.train.Example.FromString(record.numpy()) for record in records]
    jpegs = [example.features.feature["image/encoded"].bytes_list.value[0] for example in examples]

    def turn(seconds: float) -> float:
        start, done = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds:
            for jpeg in jpegs[:32]:
                simplejpeg.decode_jpeg(jpeg, fastdct=True, fastupsample=True)
            jpegs[:] = jpegs[32:] + jpegs[:32]
            done += 32
        return done / passed

    return turn


def geometric_mean(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean, between the two ends of its 95% interval."""
    logarithms = [math.log(ratio) for ratio in ratios]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, mean, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, 0, half))
    return low, mean, high


def main(seconds: float) -> int:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        recipe = dataset.Recipe(images=512, shards=4, width_px=500, height_px=375, classes=1000, seed=0)
        with contextlib.redirect_stderr(io.StringIO()):
            print(dataset.make(Path(folder), recipe))
        (config,) = plan.plan(sweep_file.parse(SWEEP.format(data=folder), "input")).trials
        ways = {
            OURS: ours(config, 1),
            PLAIN: ours(config, 1, plain_opening.open_source),
            TURBO: libjpeg_turbo(config),
            TFDATA: plain_tfdata(config),
        }
        print(f"{'images/s, one thread':<22}" + "".join(f"{name:>20}" for name in ways) + f"{'ratios':>24}")
        rounds: list[dict[str, float]] = []
        until = time.monotonic() + seconds
        while len(rounds) < 3 or time.monotonic() < until:
            order = sorted(ways, reverse=len(rounds) % 2 == 1)
            rates = {name: ways[name](TURN_S) for name in order}
            rounds.append(rates)
            ratios = "".join(f"{rates[one] / rates[other]:>8.3f}" for one, other in RATIOS.values())
            print(f"{'round ' + str(len(rounds)):<22}" + "".join(f"{rates[name]:>20,.0f}" for name in ways) + ratios)
        medians = {name: statistics.median(rates[name] for rates in rounds) for name in ways}
        print(f"{'median':<22}" + "".join(f"{medians[name]:>20,.0f}" for name in ways))

        cores = psutil.cpu_count(logical=False) or 1
        print(
            f"\n{cores} cores\n{'':<10}{OURS:>20}{'':>10}{PLAIN:>20}\n{'threads':<10}"
            + 2 * f"{'images/s':>20}{'each':>10}"
        )
        for threads in sorted({2**n for n in range(2 * cores) if 2**n <= 2 * cores} | {cores, 2 * cores}):
            found = [ours(config, threads, open_source)(CURVE_POINT_S) for open_source in OPENINGS]
            print(f"{threads:<10}" + "".join(f"{each:>20,.0f}{each / threads:>10,.0f}" for each in found), flush=True)

    figures = {
        "images_per_s": medians[OURS],
        "plain_images_per_s": medians[PLAIN],
        "turbo_images_per_s": medians[TURBO],
        "tfdata_images_per_s": medians[TFDATA],
        "rounds": len(rounds),
    }
    for figure, (one, other) in RATIOS.items():
        low, mean, high = geometric_mean([rates[one] / rates[other] for rates in rounds])
        print(f"{one} / {other}: {mean:.3f}, 95% interval {low:.3f} to {high:.3f}")
        figures |= {figure: mean, f"{figure}_low": low, f"{figure}_high": high}
    bounds = {"over_turbo": ">= 0.7", "over_tfdata": ">= 1.2", "plain_over_turbo": ">= 0.7"}
    return conclude("input", figures, bounds=bounds)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60))
