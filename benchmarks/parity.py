"""What the sweep costs the training: images/s as a trial reports it, over the best plain loop under plain horovodrun.

Two ranks each, JPEG input, the demo's network, as an ordinary user: nobody may raise its priority, and the niceness of
all ranks is read back and equal. Ours is a sweep in the default mode; its figure is the `images_per_s` that its ledger
holds. The ranks of either side have the first core, and all else has the second: a node with GPUs has cores enough for
what runs beside its ranks. What of a core the driver, Ray and the keepers take is measured here too, while they do.

A virtual machine's speed may change by a fifth from one quarter of a minute to the next, without any stolen time to
see. So both train in turns of a second: while one does, every process of the other is stopped (SIGSTOP); of ours the
driver, Ray and the keepers too. A trial's window is as long by the wall as both together; its `images_per_s` is taken
for the part of the window in which it ran, and held against what the plain loop did in the turns between. Beside each
trial there is a plain gang of its own: how fast a gang trains has some of its launch in it, and one that trained
throughout would lend its luck to every ratio. The figures are the median ratio, and the ratios' geometric mean with its
95% interval.

    python benchmarks/parity.py [TRIALS]
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
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
from collections.abc import Mapping, Sequence
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
TURN_S = 1.0
RANKS_CORE, BESIDE_CORE, *_ = [*sorted(os.sched_getaffinity(0)), 0, 0]
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


@dataclasses.dataclass(frozen=True)
class Turn:
    """Between two instants of the wall clock, a side alone."""

    began: float
    ended: float
    steps: tuple[int, int] = (0, 0)  # that the plain loop had done by then
    beside_s: Mapping[int, float] = dataclasses.field(default_factory=dict)  # of a core, by its end: what is no rank

    def within(self, window: tuple[float, float]) -> float:
        return max(0.0, min(self.ended, window[1]) - max(self.began, window[0]))


class Side:
    """One of the two gangs, with all its processes."""

    def __init__(self, folder: Path, core: int, command: list[object], **variables: str) -> None:
        """Whatever it starts runs on that core, unless it is told otherwise."""
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
        os.sched_setaffinity(self._process.pid, {core})
        self._known: list[psutil.Process] = []

    def turn(self) -> Turn:
        """Train for a second, alone."""
        steps, began = self.steps(), time.time()
        self._signal(signal.SIGCONT)
        time.sleep(TURN_S)
        self._signal(signal.SIGSTOP)
        ended = time.time()
        self.stop()  # what was started meanwhile
        if self._process.poll() is not None:
            sys.exit(f"it did not train:\n{(self.folder / 'log').read_text()[-2000:]}")
        return Turn(began, ended, (steps, self.steps()), self.beside_s())

    def steps(self) -> int:
        """That are done, where the side tells."""
        return 0

    def beside_s(self) -> dict[int, float]:
        """Seconds of a core that each process has taken, but for its ranks."""
        return {}

    def stop(self) -> None:
        parent = psutil.Process(self._process.pid)
        self._known = [parent, *parent.children(recursive=True)]
        self._signal(signal.SIGSTOP)

    def note_niceness(self) -> None:
        """Of its ranks, while they train."""
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):
                if self._is_rank(process):
                    self.niceness.add(process.nice())

    def _signal(self, number: int) -> None:
        for process in self._known:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _is_rank(self, process: psutil.Process) -> bool:
        return "plain.py" in " ".join(process.cmdline()) and process.cpu_times().user > 1

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()


class Ours(Side):
    """A sweep in the default mode."""

    def __init__(self, folder: Path, file: Path) -> None:
        super().__init__(folder, BESIDE_CORE, [sys.executable, __file__, "sweep", file])
        self._ended = 0

    def ended(self) -> contract.Measurement | None:
        """What the next trial has measured, if it has ended."""
        file = self.folder / "parity" / "ledger.jsonl"
        if not file.exists() or file.read_bytes().count(b'{"kind":"trial"') == self._ended:
            return None
        self._ended += 1
        os.environ["SWEEP_RESULTS"] = str(self.folder)
        measured = ledger.read("parity").trials[self._ended - 1].outcome.measurement
        assert measured, "a trial of ours has failed"
        return measured

    def stop(self) -> None:
        super().stop()
        for process in filter(_is_nursery, self._known):  # its ranks have its core
            process.cpu_affinity([RANKS_CORE])

    def beside_s(self) -> dict[int, float]:
        return {one.pid: sum(one.cpu_times()[:2]) for one in self._known if not _is_nursery(one)}

    def _is_rank(self, process: psutil.Process) -> bool:
        parent = process.parent()
        return parent is not None and _is_nursery(process) and _is_nursery(parent)


def _is_nursery(process: psutil.Process) -> bool:
    """Or one of its ranks: a fork has its command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "workers.nursery" in " ".join(process.cmdline())
    return False


class Plain(Side):
    """The plain loop, which trains and notes each step until it is ended."""

    def __init__(self, folder: Path, config: Path) -> None:
        launch = [BIN / "horovodrun", "-np", 2, sys.executable, HERE / "plain.py", config, folder]
        super().__init__(folder, RANKS_CORE, launch, TMPDIR=str(folder))  # TensorFlow leaves files there

    def warm(self) -> None:
        while self.steps() < WARM_STEPS:
            self.turn()
        self.note_niceness()

    def steps(self) -> int:
        return odometer.read(self.folder)[0]

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A trial of ours and the plain loop beside it."""

    ours: float  # images/s
    plain: float
    beside: float  # of a core, in the trial's window, by what is no rank of ours

    @property
    def ratio(self) -> float:
        return self.ours / self.plain


def beside_each_other(mine: Ours, plain: Plain, batch: int) -> Pair:
    ours: list[Turn] = []
    theirs: list[Turn] = []
    while not (measured := mine.ended()):
        ours.append(mine.turn())
        if not mine.niceness:
            mine.note_niceness()
        theirs.append(plain.turn())
    window = measured.ranks[0].window_at
    first, *others = (turn for turn in ours if turn.within(window) == turn.ended - turn.began)
    taken = (after - first.beside_s.get(pid, after) for pid, after in others[-1].beside_s.items())
    alone = [turn for turn in theirs if turn.within(window) == turn.ended - turn.began]
    return Pair(
        ours=measured.images_per_s * measured.window_s / sum(turn.within(window) for turn in ours),
        plain=batch * (alone[-1].steps[1] - alone[0].steps[0]) / _seconds(alone),
        beside=sum(taken) / _seconds(others),
    )


def _seconds(turns: Sequence[Turn]) -> float:
    return sum(turn.ended - turn.began for turn in turns)


def main(trials: int) -> int:
    as_an_ordinary_user()
    pairs: list[Pair] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing stays behind, stopped for ever
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as begun:
        folder = Path(name)
        made = [BIN / "sweep", "data", "make", folder / "data", "--images", 512, "--size", "160x120", "--classes", 10]
        subprocess.run([str(part) for part in made], check=True, capture_output=True)
        text = SWEEP.format(data=folder / "data", trials=trials + 1)
        (folder / "parity.yaml").write_text(text)
        trial = plan.plan(spec.parse(text, "parity")).trials[0]
        (folder / "config.json").write_text(json.dumps(contract.to_json(trial)))
        mine = begun.enter_context(contextlib.closing(Ours(folder / "ours", folder / "parity.yaml")))
        while not mine.ended():  # the first starts actors, and imports what the others share
            mine.turn()
        print(f"{'images/s':<10}{'ours':>10}{'plain':>10}{'ratio':>9}{'beside':>9}")
        for n in range(trials):
            plain = Plain(folder / "plain", folder / "config.json")
            with contextlib.closing(plain):
                plain.warm()
                pair = beside_each_other(mine, plain, trial.global_batch)
            assert len(mine.niceness) == 1, mine.niceness
            assert mine.niceness == plain.niceness, (mine.niceness, plain.niceness)
            print(
                f"trial {n + 1:<4}{pair.ours:>10,.0f}{pair.plain:>10,.0f}{pair.ratio:>9.3f}{pair.beside:>9.1%}",
                flush=True,
            )
            pairs.append(pair)
    print(f"niceness of all ranks: {mine.niceness}")
    ratios = [pair.ratio for pair in pairs]
    logarithms = [math.log(ratio) for ratio in ratios]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, ratio, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, 0, half))
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f}; mean {ratio:.3f}, 95% interval {low:.3f} to {high:.3f}")
    figures = {
        "trials": trials,
        "ours_images_per_s": statistics.median(pair.ours for pair in pairs),
        "plain_images_per_s": statistics.median(pair.plain for pair in pairs),
        "beside_core_share": statistics.median(pair.beside for pair in pairs),
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
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 12))
