"""A sweep while it runs: what its driver says of it, once a second, and how that is shown.

The driver writes its bulletin into the sweep's folder; whoever asks reads it there, so that nobody who looks can hold a
trial up. Where there is none any more the ledger says how the sweep ended.

What it says is of the driver's last look (`at`). That it is there (`heard_at`) a thread says, also while a look lasts,
which waits for whatever it asks: GPUs are held all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps import errors
from sweeps.cluster import marked_output
from sweeps.record import ledger, ownership
from sweeps.record.ledger import SweepFacts, TrialRecord
from sweeps.run import forecast
from sweeps.run.progress import figure, score, stage
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.observer import Observer, Spent
from sweeps.spec import plan
from sweeps.text import caller, screen, tables
from workers.contract.messages import Progress, TrialConfig
from workers.contract.paths import SweepPaths, written_whole

EVERY_S = 1.0
FORESEE_EVERY_S = 10.0
MOST_NAMED = 8  # nodes of a trial
FORESEEN = 5  # trials that wait, with their expected start
LIVE = ("running", "starting")  # more is to come
LINES_EVERY_S = 5.0  # at most, off a terminal
TIMES = re.compile(r'\{"heard_at": ([\d.]+), "at": ([\d.]+)')  # how a bulletin begins
SILENT_S = 15.0  # a driver that has said nothing for so long has gone, or stands still
Bulletin = dict[str, Any]


class StatusWriter(Observer):
    """Writes the bulletin."""

    def __init__(
        self,
        facts: SweepFacts,
        paths: SweepPaths,
        engine: Engine,
        earlier: Sequence[TrialRecord] = (),
        kept: Sequence[TrialRecord] = (),
    ) -> None:
        """`earlier` drivers have ended trials that the engine knows of; others are `kept` beside what it has to do."""
        self._facts, self._engine = facts, engine
        self._path = paths.status
        self._name = plan.namer(facts.spec)
        self._began = time.time()
        self._said_at = self._foresaw_at = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._says_so, name="still there", daemon=True)
        self._ended: dict[str, str] = {}  # trial to how it ended last
        self._kept = len(kept)
        self._running: dict[str, _RunningStatus] = {}
        self._queue: list[dict[str, Any]] = []
        self._best: TrialRecord | None = None
        for record in (*earlier, *kept):
            self._count(record)
        self._spent = dataclasses.replace(engine.spent(), expected=0.0)  # nothing is foretold before it has begun

    def started(self, config: TrialConfig) -> None:
        self._running[config.trial] = _RunningStatus(config)
        self._ended.pop(config.trial, None)  # it runs again

    def progressed(self, config: TrialConfig, progress: Progress) -> None:
        self._running[config.trial].progressed(progress)

    def tried_again(self, record: TrialRecord) -> None:
        self._running.pop(record.config.trial, None)

    def ended(self, record: TrialRecord) -> None:
        self._running.pop(record.config.trial, None)
        self._count(record)

    def _count(self, record: TrialRecord) -> None:
        self._ended[record.config.trial] = record.outcome.status
        if score(record) > (score(self._best) if self._best else 0.0):
            self._best = record

    def spent(self, so_far: Spent) -> None:
        self._spent = so_far

    def passed(self) -> None:
        now = time.time()
        if now - self._said_at >= EVERY_S:
            self._said_at = now
            try:
                with written_whole(self._path) as path:
                    path.write_text(json.dumps(self._bulletin(now)))
            except OSError:  # a full disk is the ledger's to tell
                self._still_there(now, is_looking=True)
            if not self._thread.ident:
                self._thread.start()

    def _says_so(self) -> None:
        while not self._is_over.wait(EVERY_S):
            self.still_there()

    def still_there(self) -> None:
        """Tell that the driver is there, whatever it waits for: what runs holds its GPUs."""
        self._still_there(time.time())

    def _still_there(self, now: float, is_looking: bool = False) -> None:
        """Tell so in the bulletin that stands, which takes no byte of a full disk: hours count until a driver was last
        heard."""
        with contextlib.suppress(OSError), self._path.open("r+") as file:
            if found := TIMES.match(file.read()):
                for which in (1, 2) if is_looking else (1,):
                    file.seek(found.start(which))
                    file.write(f"{now:.9f}"[: len(found[which])])

    def close(self, is_told: bool = True) -> None:
        """Say no more; where the ledger does not tell how the sweep stands (`is_told`), the last word stays."""
        self._is_over.set()
        if is_told:
            self._path.unlink(missing_ok=True)

    def _bulletin(self, now: float) -> Bulletin:
        if now - self._foresaw_at >= FORESEE_EVERY_S:
            self._foresaw_at = now
            self._queue = [
                {"trial": self._label(config), "gpus": config.gpus, "starts_at": at}
                for config, at in self._engine.queue(now, FORESEEN)
            ]
        seated = self._engine.seated
        busy: Counter[str] = Counter()
        for start in seated:
            busy.update(dict(start.seats))
        taken = self._engine.taken
        places = {start.trial.trial: [node for node, _ in start.seats] for start in seated}
        running = {self._label(one.config) for one in self._running.values()}
        spent = self._spent
        trials = spent.trials + self._kept
        ended = {trial: status for trial, status in self._ended.items() if trial not in self._running}
        part_left = spent.part_left
        return {
            "heard_at": now,
            "at": now,
            "sweep": self._facts.name,
            "began_at": self._began,
            "trials": trials,
            "ended": dict(Counter(ended.values())),
            "waiting": max(0, trials - len(ended) - len(self._running)),
            "spent": spent.gpu_hours,
            "expected": spent.expected,
            "unit": forecast.unit(self._facts.spec),
            "counted": self._facts.spec.counted,
            "left_s": None if part_left is None else (now - self._began) * part_left,
            "nodes": [
                {
                    "node": node.name,
                    "cpus": node.cpus,
                    "gpus": node.gpus,
                    "kind": node.kind,
                    "ranks": busy[node.name],
                    "others_until": taken.get(node.name),
                }
                for node in self._engine.nodes
            ],
            "running": [
                {
                    "trial": self._label(one.config),
                    "nodes": places.get(one.config.trial, []),
                    "stage": stage(one.config, one.progress),
                    "images_per_s": one.images_per_s,
                    "since_s": now - one.began,
                    "ends_at": one.began + self._engine.predicted_s(one.config),
                }
                for one in self._running.values()
            ],
            "queue": [one for one in self._queue if one["trial"] not in running],
            "best": f"{self._label(self._best.config)}  {figure(self._best).strip()}" if self._best else "",
        }

    def _label(self, config: TrialConfig) -> str:
        return f"{self._name(config)} #{config.repeat}"


class _RunningStatus:
    """A trial, how far it has come, and how fast it goes between two things that it has said."""

    def __init__(self, config: TrialConfig) -> None:
        self.config, self.began = config, time.time()
        self.progress = Progress("start", 0)
        self._heard_at = self.began
        self.images_per_s: float | None = None

    def progressed(self, progress: Progress) -> None:
        now, steps = time.time(), progress.step - self.progress.step
        is_training = self.progress.phase == progress.phase == "step"  # elsewhere other things are counted
        if is_training and steps > 0 and self.progress.step and now > self._heard_at:
            self.images_per_s = steps * self.config.items / (now - self._heard_at)
        if steps:
            self._heard_at = now
        self.progress = progress


def look(name: str) -> Bulletin:
    """Return the driver's last bulletin; else what the ledger says of a sweep that has no driver."""
    paths = ledger.paths(name)
    try:
        bulletin: Bulletin = json.loads(paths.status.read_text())
    except (OSError, ValueError):
        return _from_ledger(name)
    silent_s = time.time() - bulletin["at"]
    if silent_s <= SILENT_S:
        return bulletin | {"state": "running"}
    found = _from_ledger(name)
    return found if found["state"] == "complete" else found | {"silent_s": silent_s}


def _from_ledger(name: str) -> Bulletin:
    record = ledger.read(name)
    ended = Counter(trial.outcome.status for trial in record.trials)
    is_driven = ownership.is_driven(name)
    is_starting = is_driven and not record.has_ended
    state = "starting" if is_starting else "complete" if record.is_complete else "stopped"
    trials = max(len(record.facts.trials), len(record.trials))
    return {
        "sweep": name,
        "state": state,
        "at": time.time(),
        "trials": trials,
        "ended": dict(ended),
        "waiting": 0 if record.is_complete else trials - len(record.trials),
        "spent": record.spent,
        "unit": forecast.unit(record.facts.spec),
        "is_submitted": "job" in ownership.driver(name),
    }


def show(name: str, is_followed: bool, form: str) -> int:
    """Print it, or follow it until the sweep ends; the exit code."""
    if form == "json":
        for bulletin in follow(lambda: look(name), marked_output.followed_s()) if is_followed else [look(name)]:
            print(json.dumps(bulletin), flush=True)
        return marked_output.ASK_AGAIN if is_followed and bulletin["state"] in LIVE else errors.DONE
    return render(follow(lambda: look(name)) if is_followed else iter([look(name)]), is_followed)


def follow(ask: Callable[[], Bulletin], for_s: float = math.inf) -> Iterator[Bulletin]:
    """One bulletin after another, the last when there will be no more, or the time is over."""
    until = time.monotonic() + for_s
    while True:
        bulletin = ask()
        yield bulletin
        if bulletin["state"] not in LIVE or time.monotonic() >= until:
            return
        time.sleep(EVERY_S)


def render(bulletins: Iterator[Bulletin], is_followed: bool = False) -> int:
    """Show the last one; before it, where a sweep is followed, a live view on a terminal, and elsewhere a line whenever
    other trials run or have ended."""
    console = screen.answers(120)
    bulletin: Bulletin | None = None
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            for bulletin in bulletins:
                live.update(drawn(bulletin))
    else:
        said, said_at = "", -math.inf
        for bulletin in bulletins:
            is_news = is_followed and bulletin["state"] in LIVE and _counts(bulletin) != said
            if is_news and time.monotonic() - said_at >= LINES_EVERY_S:
                console.print(_summary(bulletin), soft_wrap=True)
                said, said_at = _counts(bulletin), time.monotonic()
    if bulletin:
        console.print(drawn(bulletin))
    return errors.DONE


def drawn(bulletin: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_summary(bulletin)]
    if silent_s := bulletin.get("silent_s"):
        parts.append(Text(f"! its driver was last heard {tables.clock_time(silent_s)} ago", style="yellow"))
    if bulletin["state"] == "stopped":
        again = caller.command("resume", bulletin["sweep"], is_submitted=bulletin.get("is_submitted", False))
        parts.append(Text(f"  to go on: {again}", style="dim"))
    if bulletin.get("nodes"):
        parts += ["", _table(("node", "has", "ranks"), [_node(node, bulletin["at"]) for node in bulletin["nodes"]])]
    if bulletin.get("running"):
        rows = [_run(one, bulletin["at"]) for one in bulletin["running"]]
        parts += ["", _table(("running", "on", "", f"{bulletin.get('counted', 'images')}/s", "for", "ends in"), rows)]
    if bulletin.get("queue"):
        rows = [(one["trial"], str(one["gpus"]), _in(one["starts_at"], bulletin["at"])) for one in bulletin["queue"]]
        parts += ["", _table(("next", "ranks", "starts in"), rows)]
    if bulletin.get("best"):
        parts += ["", Text(f"best  {bulletin['best']}", style="bold")]
    return Group(*parts)


def _summary(bulletin: Mapping[str, Any]) -> Text:
    return Text.assemble((bulletin["sweep"], "bold"), f"  {_counts(bulletin)}  {_cost(bulletin)}")


def _counts(bulletin: Mapping[str, Any]) -> str:
    running = len(bulletin.get("running", ()))
    ended = ", ".join(f"{count} {status}" for status, count in sorted(bulletin["ended"].items()))
    return f"{bulletin['state']}: {ended or 'none done'}, {running} running, {bulletin['waiting']} waiting"


def _cost(bulletin: Mapping[str, Any]) -> str:
    text = tables.number(bulletin["spent"], 3)
    if bulletin.get("expected"):
        text += f" of about {tables.number(bulletin['expected'], 3)}"
    left = f", {tables.clock_time(bulletin['left_s'])} left" if bulletin.get("left_s") else ""
    return f"{text} {bulletin['unit']}{left}"


def _node(node: Mapping[str, Any], now: float) -> tuple[str, ...]:
    what = f"{node['gpus']} {node['kind']}".strip() if node["gpus"] else f"{node['cpus']} CPUs"
    until = node.get("others_until")  # a driver of an earlier version says nothing of it
    idle = "idle" if until is None else f"another sweep's for {_in(until, now)}"
    return node["node"], what, str(node["ranks"] or idle)


def _run(one: Mapping[str, Any], now: float) -> tuple[str, ...]:
    rate = f"{one['images_per_s']:,.0f}" if one["images_per_s"] else ""
    since, ends = tables.clock_time(one["since_s"]), _in(one["ends_at"], now) if one["ends_at"] > now else "late"
    first, *others = one["nodes"] or [""]
    on = f"{first} and {len(others)} more" if len(others) >= MOST_NAMED else " ".join(one["nodes"])
    return one["trial"], on, one["stage"], rate, since, ends


def _in(at: float | None, now: float) -> str:
    return "" if at is None else tables.clock_time(max(0.0, at - now))


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*row)
    return table
