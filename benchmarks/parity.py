"""What the sweep costs the training: images/s of a trial of ours over the same loop under plain horovodrun.

Two ranks, JPEG input, the network and settings of the demo. Ours and plain alternate, in turn first, each with
nothing else running: Ray is started for ours and gone before plain starts. One ratio a pair; the figure is the
median, with the 95% interval of the mean of the ratios' logarithms.

    python benchmarks/parity.py [PAIRS]
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from verdicts import conclude

from sweeps import analysis, ledger, plan, spec
from workers import contract

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SWEEP = """
name: parity
model: tiny
data: {data}
device: cpu
image_size: 64
classes: 10
space: {{batch_size: 64, gpus: 2, decode_threads: 2}}
repeats: 1
steps: {{warmup: 20, measured: 250}}
"""


def ours(planned: plan.Plan, text: str) -> float:
    from sweeps import runner

    with runner.cluster(None) as nodes:
        book = ledger.create(planned, text)
        assert runner.run(planned, book, nodes, [])
    (trial,) = ledger.read(book.facts.name).trials
    assert trial.outcome.measurement, trial.outcome
    return trial.outcome.measurement.images_per_s


def plain(planned: plan.Plan, folder: Path) -> float:
    (folder / "config.json").write_text(json.dumps(contract.to_json(planned.trials[0])))
    command = [
        BIN / "horovodrun",
        "-np",
        "2",
        sys.executable,
        HERE / "plain.py",
        folder / "config.json",
        folder / "rate",
    ]
    quiet = os.environ | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    ran = subprocess.run(list(map(str, command)), env=quiet, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"plain horovodrun did not run:\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
    return float((folder / "rate").read_text())


def main(pairs: int) -> int:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make = [
            BIN / "sweep",
            "data",
            "make",
            folder / "data",
            "--images",
            "512",
            "--size",
            "160x120",
            "--classes",
            "10",
        ]
        subprocess.run(list(map(str, make)), check=True, capture_output=True)
        os.environ["SWEEP_RESULTS"] = name
        text = SWEEP.format(data=folder / "data")
        planned = plan.plan(spec.parse(text, "parity"))
        print(f"{'images/s':<10}{'ours':>10}{'plain':>10}{'ratio':>9}")
        for pair in range(pairs):
            if pair % 2:
                reference, mine = plain(planned, folder), ours(planned, text)
            else:
                mine, reference = ours(planned, text), plain(planned, folder)
            ratios.append(mine / reference)
            print(f"pair {pair + 1:<5}{mine:>10,.0f}{reference:>10,.0f}{mine / reference:>9.3f}", flush=True)
    logarithms = [math.log(ratio) for ratio in ratios]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, half))
    print(f"ratio, median {statistics.median(ratios):.3f}, 95% interval {low:.3f} to {high:.3f}")
    return conclude(
        "parity",
        figures={"ratio": statistics.median(ratios), "low": low, "high": high},
        bounds={"ratio": ">= 0.99"},
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
