"""What the sweep costs the training: images/s of a trial of ours over the same loop under plain horovodrun.

Two ranks each, JPEG input, the demo's network. Both gangs train in this one run, in turns of two seconds: while
one's turn lasts, every process of the other is stopped (SIGSTOP), for ours the driver, Ray and the keepers too.
So a drift of the machine touches both, and neither pays for the other. A turn's rate is that of the steps that
lie wholly in it, less its first moments. One ratio a pair of turns; the figure is their geometric mean with its
95% interval.

    python benchmarks/parity.py [PAIRS]
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import odometer
import ours
import psutil
from verdicts import conclude

from sweeps import analysis, plan, spec
from workers import contract, train
from workers.rank import Seat, Voice

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TURN_S, SETTLE_S = 2.0, 0.4
SWEEP = """
name: parity
model: tiny
data: {data}
device: cpu
image_size: 64
classes: 10
space: {{batch_size: 64, gpus: 2, decode_threads: 2}}
repeats: 1
steps: {{warmup: 20, measured: 1000000}}
"""


class CountedVoice(Voice):
    """A rank's voice that notes each step where this benchmark reads it, as the plain loop does."""

    def __init__(self, voice: Voice, noted: odometer.Odometer) -> None:
        super().__init__(voice._channel, voice._beat)
        self._noted = noted

    def beat(self, phase: contract.Phase, step: int = 0) -> None:
        super().beat(phase, step)
        if phase == "step":
            self._noted.note(step)


def counted(config: contract.TrialConfig, seat: Seat, voice: Voice) -> None:
    """What our ranks run: the product's loop, counted."""
    train.run(config, seat, CountedVoice(voice, odometer.Odometer(Path(os.environ["PARITY_FOLDER"]), seat.rank)))


def sweep(folder: Path) -> None:
    """Our side, as a process of its own: one endless trial."""
    ours.swept((folder / "parity.yaml").read_text(), entry="parity:counted")


class Side:
    """One of the two gangs, with all its processes."""

    def __init__(self, folder: Path, command: list[object], **variables: str) -> None:
        self.folder = folder
        folder.mkdir()
        environment = {
            "PARITY_FOLDER": str(folder),
            "SWEEP_RESULTS": str(folder),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command], env=os.environ | environment | variables, stdout=log, stderr=log
            )

    def wait_for_steps(self, steps: int) -> None:
        until = time.monotonic() + 120
        while odometer.read(self.folder)[0] < steps:
            if time.monotonic() > until or self._process.poll() is not None:
                sys.exit(f"it did not train:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        parent = psutil.Process(self._process.pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def turn(self) -> float:
        """Steps a second while everything of this side runs."""
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        first, began = odometer.read(self.folder)
        time.sleep(TURN_S)
        last, ended = odometer.read(self.folder)
        self.signal(signal.SIGSTOP)
        return (last - first) / (ended - began)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()


def main(pairs: int) -> int:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [BIN / "sweep", "data", "make", folder / "data", "--images", 512, "--size", "160x120", "--classes", 10]
        subprocess.run([str(part) for part in made], check=True, capture_output=True)
        text = SWEEP.format(data=folder / "data")
        (folder / "parity.yaml").write_text(text)
        (trial,) = plan.plan(spec.parse(text, "parity")).trials
        (folder / "config.json").write_text(json.dumps(contract.to_json(trial)))
        mine = Side(folder / "ours", [sys.executable, __file__, "sweep", folder])
        mine.wait_for_steps(50)
        mine.signal(signal.SIGSTOP)
        arguments = [HERE / "plain.py", folder / "config.json", folder / "plain"]
        launch = [BIN / "horovodrun", "-np", 2, sys.executable, *arguments]
        plain = Side(folder / "plain", launch, TMPDIR=str(folder))  # TensorFlow leaves files there
        plain.wait_for_steps(50)
        plain.signal(signal.SIGSTOP)
        print(f"{'images/s':<10}{'ours':>10}{'plain':>10}{'ratio':>9}")
        for pair in range(pairs):
            rates = {side: side.turn() * trial.global_batch for side in ((mine, plain) if pair % 2 else (plain, mine))}
            ratios.append(rates[mine] / rates[plain])
            print(f"pair {pair + 1:<5}{rates[mine]:>10,.0f}{rates[plain]:>10,.0f}{ratios[-1]:>9.3f}", flush=True)
        plain.end()
        mine.end()
    logarithms = [math.log(ratio) for ratio in ratios]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, ratio, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, 0, half))
    print(f"ratio {ratio:.3f}, 95% interval {low:.3f} to {high:.3f}, median {statistics.median(ratios):.3f}")
    return conclude("parity", figures={"ratio": ratio, "low": low, "high": high}, bounds={"ratio": ">= 0.99"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["sweep"]:
        sweep(Path(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
