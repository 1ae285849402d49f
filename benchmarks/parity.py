"""What the sweep costs the training: images/s as a trial reports it, over the best plain loop under plain horovodrun.

Two ranks each, the demo's network, as an ordinary user: nobody may raise its priority, and the niceness of all ranks is
read back and equal. Ours is the command `sweep run` with all that it has beside a trial: Ray, the driver with its live
table and its status file, and the process that writes to MLflow, on SQLite. It runs in the default mode, in which a
trial stops by its interval or at 300 steps; its figure is the `images_per_s` that its ledger holds. In four
arrangements, where the cores of each thread of each rank are read back:

apart      JPEG input, and both ranks of either side share the first core, all else has the second. What runs beside the
           ranks takes none of their time then, as on a node that has cores to spare. That each rank has a core of its
           own is not what is measured: a machine of two cores has none left for that.
among      JPEG input, and everything may run on every core. Ranks fill them all: what the driver, Ray and the
           supervisors take is lost.
computing  the same without an input: one batch in memory, over and over, so that a step is computing and reducing alone
           and no wait for images can hide what the sweep costs.
script     the plain loop itself as a user's script in a sweep, computing, against the same script started by hand: its
           one line for the sweep, `sweeps.steps`, passes batches on there.

What of a core they take is measured too. And `itself` is the plain loop against a plain loop, among: how far off these
ratios may be by the way that they are taken.

The plain loop is the best of three, which differ in how gradients are reduced (`plain.REDUCED`). They are tried first,
by turns, computing: there the reduction is most of what is not the network's own.

A virtual machine's speed may change by a fifth from one quarter of a minute to the next, without any stolen time to
see. So both train in turns of a second: while one does, every process of the other is stopped (SIGSTOP); of ours the
driver, what writes to MLflow, Ray and the supervisors too. A trial's window is as long by the wall as both together;
its `images_per_s` is taken for the part of the window in which it ran, and held against what the plain loop did in the
turns between. Beside each trial there is a plain gang of its own: how fast a gang trains has some of its launch in it,
and one that trained throughout would lend its luck to every ratio. The figures are the median ratio, and the ratios'
geometric mean with its 95% interval: there are trials until it is narrow, wherever it lies. Standing still makes
nothing of ours rarer: what waits by the clock, as the next drawing of the table does, is due at once when it goes on.

    python benchmarks/parity.py [MOST-TRIALS [apart|among|computing|script|itself ...]]
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

import step_counter
from sweeps import analysis
from sweeps.record import ledger
from sweeps.spec import plan, sweep_file
from verdicts import conclude
from workers.contract import messages

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
FEWEST, MOST = 6, 16  # trials of each arrangement ...
NARROW = 0.015  # ... until half of the interval of their ratio is no wider
WARM_STEPS = 50
TURNS_OF_ITSELF = 30
TURN_S = 1.0
LONGEST_START = 180  # turns until the first trial has ended
RANKS = 2
OURS = "ours"  # a folder
HOWS = ("each", "grouped", "tape")  # the plain loop reduces, as `plain.REDUCED` has it
A_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}  # that the driver draws its table on
FIRST_CORE, *OTHER_CORES = sorted(os.sched_getaffinity(0))
EVERY_CORE = {FIRST_CORE, *OTHER_CORES}
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
SWEEP = """
name: parity
model: tiny
data: {data}
device: cpu
image_size: 64
classes: 10
space: {{batch_size: 32, gpus: {ranks}, decode_threads: 2}}
repeats: {trials}
stop: {{max_steps: 300}}
explain: false
probe_every_min: 0
"""


SCRIPT = """
name: parity
run: {command}
ranks: horovod
items: {items}
unit: images
device: cpu
space: {{gpus: {ranks}}}
repeats: {trials}
stop: {{max_steps: 300}}
explain: false
probe_every_min: 0
"""


def as_an_ordinary_user() -> None:
    """Give up the right to raise priorities for all that is started from here on, though root start it."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE)


class CoreSplit(NamedTuple):
    """The cores on which the ranks of a side run, and all else of it."""

    ranks: set[int]
    beside: set[int]


class Arrangement(NamedTuple):
    cores: CoreSplit
    has_images: bool = True
    is_script: bool = False


APART, AMONG = CoreSplit({FIRST_CORE}, {*OTHER_CORES}), CoreSplit(EVERY_CORE, EVERY_CORE)
ARRANGEMENTS = {
    "apart": Arrangement(APART),
    "among": Arrangement(AMONG),
    "computing": Arrangement(AMONG, has_images=False),
    "script": Arrangement(AMONG, has_images=False, is_script=True),
    "itself": Arrangement(AMONG),
}
TRYING = Arrangement(AMONG, has_images=False)  # what the plain loop reduces by


@dataclasses.dataclass(frozen=True)
class Turn:
    """Between two instants of the wall clock, a side alone."""

    began: float
    ended: float
    steps: tuple[int, int] = (0, 0)  # that the plain loop had done by then
    beside_s: Mapping[int, float] = dataclasses.field(default_factory=dict)  # of a core, by its end: what is no rank

    def within(self, window: tuple[float, float]) -> float:
        return max(0.0, min(self.ended, window[1]) - max(self.began, window[0]))


def hold(process: psutil.Process, cores: set[int]) -> None:
    """Each of its threads on these cores."""
    for thread in process.threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, cores)


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


class Side:
    """One of the two gangs, with all its processes."""

    def __init__(self, folder: Path, cores: CoreSplit, command: list[object], **variables: str) -> None:
        self.folder = folder
        self.cores = cores
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
                [str(part) for part in command],
                env=os.environ | environment | variables,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
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
            sys.exit(f"it did not train:\n{self.log()}")
        return Turn(began, ended, (steps, self.steps()), self.beside_s())

    def log(self) -> str:
        """Return the end of what it has printed."""
        return (self.folder / "log").read_text()[-2000:]

    def steps(self) -> int:
        """Return the steps that are done, where the side tells."""
        return 0

    def beside_s(self) -> dict[int, float]:
        """Seconds of a core that each process has taken, but for its ranks; with those of its own that have ended."""
        taken: dict[int, float] = {}
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not self._trains(process):
                    taken[process.pid] = sum(process.cpu_times()[:4])
        return taken

    def stop(self) -> None:
        parent = psutil.Process(self._process.pid)
        self._known = [parent, *parent.children(recursive=True)]
        self._signal(signal.SIGSTOP)
        if not self._may_be_held():
            return
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):
                hold(process, self.cores.ranks if self._trains(process) else self.cores.beside)

    def look(self) -> None:
        """Look, while they train, at the niceness of its ranks, and whether each thread of theirs has their cores."""
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):
                if self._is_rank(process):
                    self.niceness.add(process.nice())
                    found = {frozenset(os.sched_getaffinity(thread.id)) for thread in process.threads()}
                    assert found == {frozenset(self.cores.ranks)}, (process.cmdline(), found)

    def _signal(self, number: int) -> None:
        for process in self._known:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _may_be_held(self) -> bool:
        """To the cores that are its own."""
        return True

    def _trains(self, process: psutil.Process) -> bool:
        """Or holds those that do."""
        raise NotImplementedError

    def _is_rank(self, process: psutil.Process) -> bool:
        return self._trains(process)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()


class Ours(Side):
    """A sweep in the default mode, as the command runs it for a user at a terminal."""

    def __init__(self, folder: Path, cores: CoreSplit, file: Path) -> None:
        command = [BIN / "sweep", "run", file, "--fresh", "--address", "local"]
        super().__init__(folder, cores, command, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db", **A_TERMINAL)
        self._ledger = folder / "parity" / "ledger.jsonl"
        self._ended = 0

    def ended(self) -> messages.Measurement | None:
        """Return what the next trial has measured, if it has ended."""
        if not self._ledger.exists() or self._ledger.read_bytes().count(b'{"kind":"trial"') == self._ended:
            return None
        self._ended += 1
        os.environ["SWEEP_RESULTS"] = str(self.folder)
        measured = ledger.read("parity").trials[self._ended - 1].outcome.measurement
        assert measured, "a trial of ours has failed"
        return measured

    def _may_be_held(self) -> bool:
        """Ray gives ranks as many cores as its driver may use when it starts it. A driver that is held to one core from
        the beginning would have none for the second rank."""
        return "raylet" in map(_name, self._known)

    def _trains(self, process: psutil.Process) -> bool:
        return "workers.launch.fork_server" in " ".join(process.cmdline())  # a rank is a fork of it

    def _is_rank(self, process: psutil.Process) -> bool:
        parent = process.parent()
        return parent is not None and self._trains(process) and self._trains(parent)


def command(config: Path, folder: Path, how: str) -> list[object]:
    """Return what Python is to run for the plain loop."""
    return [HERE / "plain.py", config, folder, how]


class Plain(Side):
    """The plain loop, which trains and notes each step until it is ended."""

    def __init__(self, folder: Path, cores: CoreSplit, config: Path, how: str) -> None:
        launch = [BIN / "horovodrun", "-np", RANKS, sys.executable, *command(config, folder, how)]
        super().__init__(folder, cores, launch, TMPDIR=str(folder))  # TensorFlow leaves files there

    def warm(self) -> None:
        while self.steps() < WARM_STEPS:
            self.turn()
        self.look()

    def _trains(self, process: psutil.Process) -> bool:
        arguments = process.cmdline()
        return arguments[1:2] == [str(HERE / "plain.py")]

    def steps(self) -> int:
        return step_counter.read(self.folder)[0]

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A trial of ours and the plain loop beside it."""

    ours: float  # images/s
    plain: float
    beside: float  # of a core, in the trial's window, by what is no rank of ours; at most
    why: str = ""  # the trial stopped

    @property
    def ratio(self) -> float:
        return self.ours / self.plain


def beside_each_other(mine: Ours, plain: Plain, batch: int) -> Pair:
    ours: list[Turn] = []
    theirs: list[Turn] = []
    while not (measured := mine.ended()):
        ours.append(mine.turn())
        if not mine.niceness:
            mine.look()
        theirs.append(plain.turn())
    of_first = measured.ranks[0]
    window = of_first.window_at
    first, *others = (turn for turn in ours if turn.within(window) == turn.ended - turn.began)
    return Pair(
        ours=measured.images_per_s * measured.window_s / sum(turn.within(window) for turn in ours),
        plain=pace([turn for turn in theirs if turn.within(window) == turn.ended - turn.began], batch),
        beside=sum(taken_between(first, others)) / _seconds(others),
        why=of_first.window.stopped_by if of_first.window else "",
    )


def taken_between(first: Turn, others: Sequence[Turn]) -> Iterator[float]:
    """Yield the seconds of a core that each process took which any of the later turns saw; all of one born since."""
    last: dict[int, float] = {}
    for turn in others:
        last |= turn.beside_s
    return (after - first.beside_s.get(pid, 0.0) for pid, after in last.items())


def pace(turns: Sequence[Turn], batch: int) -> float:
    return batch * (turns[-1].steps[1] - turns[0].steps[0]) / _seconds(turns)


def _seconds(turns: Sequence[Turn]) -> float:
    return sum(turn.ended - turn.began for turn in turns)


class TrialSeries:
    """Trials of one arrangement, in a folder for what they leave, beside a plain loop that reduces like this."""

    def __init__(self, folder: Path, trials: int, arrangement: Arrangement, how: str = HOWS[0]) -> None:
        self.folder, self.trials, self.cores, self.how = folder, trials, arrangement.cores, how
        folder.mkdir()
        text = SWEEP.format(
            data=made_images(folder / "data") if arrangement.has_images else "synthetic", trials=trials + 1, ranks=RANKS
        )
        self.file, self.config = folder / "parity.yaml", folder / "config.json"
        trial = plan.plan(sweep_file.parse(text, "parity")).trials[0]
        self.batch = trial.global_batch
        self.config.write_text(json.dumps(messages.to_json(trial)))
        if arrangement.is_script:
            words = map(str, ["python", *command(self.config, folder / OURS, how)])
            text = SCRIPT.format(command=shlex.join(words), items=self.batch, ranks=RANKS, trials=trials + 1)
        self.file.write_text(text)

    @contextlib.contextmanager
    def plain(self, name: str, how: str = "") -> Iterator[Plain]:
        """Trains steadily."""
        side = Plain(self.folder / name, self.cores, self.config, how or self.how)
        with contextlib.closing(side):
            side.warm()
            yield side

    def of_ours(self) -> Generator[Pair]:
        mine = Ours(self.folder / OURS, self.cores, self.file)
        with contextlib.closing(mine):
            for _ in range(LONGEST_START):  # the first starts actors, and imports what the others share
                mine.turn()
                if mine.ended():
                    break
            else:
                sys.exit(f"no trial ended within {LONGEST_START} turns:\n{mine.log()}")
            for _ in range(self.trials):
                with self.plain("plain") as plain:
                    yield beside_each_other(mine, plain, self.batch)
                assert mine.niceness == plain.niceness, (mine.niceness, plain.niceness)
                assert len(mine.niceness) == 1, mine.niceness

    def of_itself(self) -> Generator[Pair]:
        for _ in range(self.trials):
            with self.plain("one") as one, self.plain("other") as other:
                turns = [(one.turn(), other.turn()) for _ in range(TURNS_OF_ITSELF)]
            mine, theirs = zip(*turns, strict=True)
            yield Pair(pace(mine, self.batch), pace(theirs, self.batch), beside=0.0)

    def of_each_how(self) -> Iterator[dict[str, float]]:
        """Images/s of a gang that reduces each way, all by turns."""
        for _ in range(self.trials):
            with contextlib.ExitStack() as stack:
                sides = {how: stack.enter_context(self.plain(how, how)) for how in HOWS}
                turns: dict[str, list[Turn]] = {how: [] for how in HOWS}
                for _ in range(TURNS_OF_ITSELF):
                    for how, side in sides.items():
                        turns[how].append(side.turn())
            yield {how: pace(taken, self.batch) for how, taken in turns.items()}


def best_of(paces: Sequence[Mapping[str, float]]) -> str:
    """Return the way that is the quickest on the geometric mean: what the machine did to all gangs of a round falls
    out."""
    return max(HOWS, key=lambda how: statistics.fmean(math.log(one[how]) for one in paces))


def made_images(folder: Path) -> Path:
    made = [BIN / "sweep", "data", "make", folder, "--images", 512, "--size", "160x120", "--classes", 10]
    subprocess.run([str(part) for part in made], check=True, capture_output=True)
    return folder


class Figures(NamedTuple):
    """The figures of an arrangement's pairs."""

    median: float  # ratio
    ratio: float  # geometric mean, with its 95% interval
    low: float
    high: float
    ours_images_per_s: float
    plain_images_per_s: float
    beside_a_core: float  # that ours takes beside its ranks


def figures(pairs: Sequence[Pair]) -> Figures:
    logarithms = [math.log(pair.ratio) for pair in pairs]
    half = analysis.half_width(statistics.stdev(logarithms), len(logarithms))
    low, ratio, high = (math.exp(statistics.fmean(logarithms) + side) for side in (-half, 0, half))
    return Figures(
        statistics.median(pair.ratio for pair in pairs),
        ratio,
        low,
        high,
        statistics.median(pair.ours for pair in pairs),
        statistics.median(pair.plain for pair in pairs),
        statistics.median(pair.beside for pair in pairs),
    )


def is_narrow(pairs: Sequence[Pair]) -> bool:
    """Whether there are trials enough."""
    return len(pairs) >= FEWEST and (of := figures(pairs)).high - of.low <= 2 * NARROW


def main(trials: int, hows: Sequence[str]) -> int:
    as_an_ordinary_user()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing stays behind, stopped for ever
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        paces = [*TrialSeries(Path(name) / "plain", min(trials, FEWEST), TRYING).of_each_how()]
        best = best_of(paces)
        found |= {f"plain_{how}": statistics.median(one[how] for one in paces) for how in HOWS}
        tried = ", ".join(f"{how} {found[f'plain_{how}']:,.0f}" for how in HOWS)
        print(f"the plain loop, images/s: {tried}; ours is held against {best}", flush=True)
        for how in hows:
            bench = TrialSeries(Path(name) / how, trials, ARRANGEMENTS[how], best)
            pairs: list[Pair] = []
            print(f"{how:<12}{'ours':>8}{'plain':>10}{'ratio':>9}{'beside':>9}  images/s; ended by")
            with contextlib.closing(bench.of_itself() if how == "itself" else bench.of_ours()) as coming:
                for pair in coming:
                    pairs.append(pair)
                    line = f"{pair.ours:>8,.0f}{pair.plain:>10,.0f}{pair.ratio:>9.3f}{pair.beside:>9.1%}  {pair.why}"
                    print(f"{'trial ' + str(len(pairs)):<12}{line}", flush=True)
                    if is_narrow(pairs):
                        break
            of = figures(pairs)
            print(
                f"median {of.median:.3f}; mean {of.ratio:.3f}, 95% interval {of.low:.3f} to {of.high:.3f}", flush=True
            )
            found |= {f"{how}_{figure}": value for figure, value in of._asdict().items()} | {
                f"{how}_trials": len(pairs)
            }
    bounds = {"median": ">= 0.99 and <= 1.05", "low": ">= 0.98"}
    of_itself = {"median": ">= 0.99 and <= 1.01"}
    return conclude(
        "parity",
        figures=found,
        bounds={
            f"{how}_{figure}": bound
            for how in hows
            for figure, bound in (of_itself if how == "itself" else bounds).items()
        },
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MOST, sys.argv[2:] or [*ARRANGEMENTS]))
