"""What the sweep costs the training: images/s as a trial reports it, over the best plain loop under plain horovodrun.

Two ranks each, JPEG input, the demo's network, as an ordinary user: nobody may raise its priority, and the niceness of
all ranks is read back and equal. Ours is a sweep in the default mode; its figure is the `images_per_s` that its ledger
holds. Both train in this one run, in turns: a trial of ours from its launch to its result, then the plain loop from its
launch until it has trained for about as long as that trial's window. Each turn is a gang of its own on either side: how
fast a gang trains has much of its launch in it, and one that trained throughout would lend its luck to every ratio.
While the plain loop trains, every process of ours is stopped (SIGSTOP): the driver, Ray and the keepers too. A trial is
held against the mean of the plain turns before and behind it, so that a drift of the machine touches both alike. The
figures are the median ratio, and the ratios' geometric mean with its 95% interval.

    python benchmarks/parity.py [TRIALS]
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import shutil
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

from sweeps import analysis, ledger, plan, spec
from workers import contract

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
WARM_STEPS = 50
SHORTEST_TURN_S = 2.0
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
SWEEP = """
name: parity
model: tiny
data: {data}
device: cpu
image_size: 64
classes: 10
space: {{batch_size: 32, gpus: 2, decode_threads: 2}}
repeats: {trials}
probe_every_min: 0
"""


def as_an_ordinary_user() -> None:
    """What is started from here on may not raise its priority, though root start it."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE)


class Side:
    """One of the two gangs, with all its processes."""

    def __init__(self, folder: Path, command: list[object], **variables: str) -> None:
        self.folder = folder
        self.niceness: set[int] = set()
        folder.mkdir()
        environment = {
            "SWEEP_RESULTS": str(folder),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command], env=os.environ | environment | variables, stdout=log, stderr=log
            )

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def signal(self, number: int) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def note_niceness(self) -> None:
        """Of its ranks, while they train."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if self._is_rank(process):
                    self.niceness.add(process.nice())

    def _is_rank(self, process: psutil.Process) -> bool:
        return "plain.py" in " ".join(process.cmdline()) and process.cpu_times().user > 1

    def check(self) -> None:
        if self._process.poll() is not None:
            sys.exit(f"it did not train:\n{(self.folder / 'log').read_text()[-2000:]}")

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()


class Ours(Side):
    """A sweep in the default mode. What starts a rank is stopped before its window begins."""

    def __init__(self, folder: Path, file: Path) -> None:
        super().__init__(folder, [sys.executable, __file__, "sweep", file])
        self._ended = 0

    def turn(self) -> tuple[float, float]:
        """The next trial's images/s, and the seconds of its window."""
        self.signal(signal.SIGCONT)
        while self._trials_in_ledger() == self._ended:
            self.check()
            if not self.niceness:
                self.note_niceness()
            time.sleep(0.02)
        self.signal(signal.SIGSTOP)
        self._ended += 1
        os.environ["SWEEP_RESULTS"] = str(self.folder)
        measured = ledger.read("parity").trials[self._ended - 1].outcome.measurement
        assert measured, "a trial of ours has failed"
        return measured.images_per_s, measured.window_s

    def _is_rank(self, process: psutil.Process) -> bool:
        """A fork of the nursery has its command line."""
        parent = process.parent()
        return parent is not None and all("workers.nursery" in " ".join(one.cmdline()) for one in (process, parent))

    def _trials_in_ledger(self) -> int:
        file = self.folder / "parity" / "ledger.jsonl"
        return file.read_bytes().count(b'{"kind":"trial"') if file.exists() else 0


class Plain(Side):
    """The plain loop, which trains and notes each step until it is ended."""

    def __init__(self, folder: Path, config: Path) -> None:
        launch = [BIN / "horovodrun", "-np", 2, sys.executable, HERE / "plain.py", config, folder]
        super().__init__(folder, launch, TMPDIR=str(folder))  # TensorFlow leaves files there


def plain_turn(folder: Path, config: Path, images: int, seconds: float) -> tuple[float, set[int]]:
    """Images/s of a plain gang with so many images a step, once it is warm; and the niceness of its ranks."""
    plain = Plain(folder, config)
    while odometer.read(folder)[0] < WARM_STEPS:
        plain.check()
        time.sleep(0.2)
    plain.note_niceness()
    first, began = odometer.read(folder)
    time.sleep(seconds)
    last, ended = odometer.read(folder)
    plain.check()
    plain.end()
    shutil.rmtree(folder)
    return (last - first) * images / (ended - began), plain.niceness


def main(trials: int) -> int:
    as_an_ordinary_user()
    ratios, rates, plain_rates = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [BIN / "sweep", "data", "make", folder / "data", "--images", 512, "--size", "160x120", "--classes", 10]
        subprocess.run([str(part) for part in made], check=True, capture_output=True)
        text = SWEEP.format(data=folder / "data", trials=trials + 1)
        (folder / "parity.yaml").write_text(text)
        trial = plan.plan(spec.parse(text, "parity")).trials[0]
        (folder / "config.json").write_text(json.dumps(contract.to_json(trial)))

        def plain_beside(window_s: float) -> float:
            seconds = max(window_s, SHORTEST_TURN_S)
            rate, niceness = plain_turn(folder / "plain", folder / "config.json", trial.global_batch, seconds)
            assert len(niceness) == 1, niceness
            assert mine.niceness == niceness, (mine.niceness, niceness)
            return rate

        mine = Ours(folder / "ours", folder / "parity.yaml")
        _, window_s = mine.turn()  # the first starts actors, and imports what the others share
        before = plain_beside(window_s)
        print(f"niceness of all ranks: {mine.niceness}")
        print(f"{'images/s':<10}{'ours':>10}{'plain':>10}{'ratio':>9}{'window':>9}")
        for n in range(trials):
            rate, window_s = mine.turn()
            after = plain_beside(window_s)
            ratios.append(rate / statistics.fmean((before, after)))
            print(f"trial {n + 1:<4}{rate:>10,.0f}{after:>10,.0f}{ratios[-1]:>9.3f}{window_s:>7.1f} s", flush=True)
            rates.append(rate)
            plain_rates.append(after)
            before = after
        mine.end()
    logarithms = [math.log(ratio) for ratio in ratios]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, ratio, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, 0, half))
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f}; mean {ratio:.3f}, 95% interval {low:.3f} to {high:.3f}")
    figures = {
        "trials": trials,
        "ours_images_per_s": statistics.median(rates),
        "plain_images_per_s": statistics.median(plain_rates),
        "median": median,
        "ratio": ratio,
        "low": low,
        "high": high,
    }
    return conclude("parity", figures=figures, bounds={"median": ">= 0.99", "low": ">= 0.98"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["sweep"]:
        ours.swept(Path(sys.argv[2]).read_text(), folder=Path(os.environ["SWEEP_RESULTS"]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
