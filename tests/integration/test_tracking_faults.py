"""A tracking server behind a connection that breaks: whichever call it breaks at, however, there is one run a trial."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import itertools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster.site import Simulated
from sweeps.record import ledger, ownership
from sweeps.record.ledger import SweepFacts, SweepRecord, TrialRecord
from sweeps.run import driver, executor, terms
from sweeps.run.terms import Terms
from sweeps.run.tracker import StoreWriter
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import access, tracking
from sweeps.store.description import Conclusion
from tests.integration.clusters import BIN, eventually, free_port
from tests.integration.test_tracking_server import Server
from tests.unit.records import record

pytestmark = pytest.mark.timeout(300)

Fault = Literal["never arrives", "unanswered", "answered late", "arrives late"]
TIMEOUT_S = 5  # a busy machine's server is slow too
HELD_S = 1.5 * TIMEOUT_S
AT_A_TIME = 12
ARRIVES_WITHIN_S = 60.0  # what was held back, once it may
TEXT = "{name: cut, model: tiny, device: cpu, repeats: 2, space: {batch_size: 8, gpus: 1}}"
TRIALS = [record(trial) for trial in plan.plan(sweep_file.parse(TEXT, "cut")).trials]
AGAIN = dataclasses.replace(TRIALS[0], started_at=TRIALS[0].started_at + 100, ended_at=TRIALS[0].ended_at + 100)
NODE = {"kind": "node", "hardware": {"digest": "a"}, "software": {"digest": "b"}}
FOUND = Conclusion("## Found", "[]")


@dataclasses.dataclass
class Line:
    """A way to the server that breaks at one of its requests."""

    breaks_at: int = -1
    fault: Fault = "never arrives"
    asked: list[str] = dataclasses.field(default_factory=list)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def take(self, request: str) -> Fault | Literal["arrives at last"] | None:
        with self.lock:
            self.asked.append(request)
            return self.fault if len(self.asked) == self.breaks_at + 1 else None


@dataclasses.dataclass
class Twice(Line):
    """One that breaks at the first two requests of a kind: it is asked once more, and then refused."""

    kind: str = ""

    def take(self, request: str) -> Fault | Literal["arrives at last"] | None:
        super().take(request)
        calls = sum(one.endswith(self.kind) for one in self.asked)
        return self.fault if request.endswith(self.kind) and calls <= 2 else None


@dataclasses.dataclass
class Slow(Line):
    """One that holds back the first call for the sweep's own run, and the first for a trial's, until it may arrive."""

    may_arrive: threading.Event = dataclasses.field(default_factory=threading.Event)

    def take(self, request: str) -> Fault | Literal["arrives at last"] | None:
        super().take(request)
        calls = sum(one.endswith("runs/create") for one in self.asked)
        return "arrives at last" if request.endswith("runs/create") and calls in (1, 3) else None


class Proxy(http.server.ThreadingHTTPServer):
    """Before a server; the first part of a path names the line."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, server: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.to = urlsplit(server).netloc
        self.lines: dict[str, Line] = {}

    def address(self, name: str, line: Line) -> str:
        """Return the address of the server, by a line."""
        self.lines[name] = line
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, *_: Any) -> None:
        """A client that had given up."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        _, name, *rest = self.path.split("/")
        path = "/" + "/".join(rest)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        line = self.server.lines[name]
        fault = line.take(f"{self.command} {path.split('?')[0]}")
        if isinstance(line, Slow) and fault == "arrives at last":
            line.may_arrive.wait(2 * ARRIVES_WITHIN_S)
        if fault == "arrives late":
            time.sleep(HELD_S)
        if fault != "never arrives":
            status, kind, said = self._forwarded(path, body)
        if fault in ("never arrives", "unanswered"):
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == "answered late":
            time.sleep(HELD_S)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _forwarded(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.server.to, timeout=60)) as line:
            kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            line.request(self.command, path, body or None, kept)
            answer = line.getresponse()
            return answer.status, answer.headers.get("Content-Type", "application/json"), answer.read()

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def proxied(server: Server, port: int = 0) -> Iterator[Proxy]:
    """Before a server; once the block has ended nobody answers there."""
    made = Proxy(server.uri, port)
    serving = threading.Thread(target=made.serve_forever)
    serving.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        serving.join()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, blank: Path) -> Iterator[tuple[Server, Path]]:
    """One for all tests, which each have sweeps of their own there; and its folder."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(blank, folder / "server.db")
    access.prepare(f"sqlite:///{folder}/server.db")
    with contextlib.chdir(folder):
        made = Server()
        made.start()
    yield made, folder
    made.kill()


@pytest.fixture
def server(running: tuple[Server, Path], workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(TIMEOUT_S))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # as a user may have it
    made, folder = running
    (workplace / "mlflow.db").unlink()
    for name in ("server.db", "artifacts"):
        (workplace / name).symlink_to(folder / name)
    return made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as made:
        yield made


class Ended:
    """The ledger of a sweep that is over."""

    def __init__(self, *again: TrialRecord) -> None:
        self._news: Sequence[TrialRecord | Mapping[str, Any]] = (NODE, *TRIALS, *again)

    def news(self) -> Iterator[TrialRecord | Mapping[str, Any]]:
        news, self._news = self._news, ()
        yield from news


def facts(name: str) -> SweepFacts:
    trials = tuple(trial.config for trial in TRIALS)
    return SweepFacts(
        name=name, id=uuid.uuid4().hex, study=name, created_at=time.time(), file=TEXT, overrides=(), trials=trials
    )


def told(of: SweepFacts) -> int:
    """As the process beside a sweep does it, and the sweep's driver once that has ended; the runs that may come yet."""
    store = tracking.Store(of)
    written(store, Ended())
    tracking.attach(of, Path("report.html"), FOUND)
    return store.may_come


def retried(of: SweepFacts) -> None:
    """As the process beside a `retry` of one of a sweep's trials does it, which another has brought to the store."""
    store = tracking.Store(of)
    tracking.once_more(store.go_on)
    stored = {trial.config.trial: trial.ended_at for trial in TRIALS if store.has(trial)}
    assert len(stored) == len(TRIALS)
    written(store, Ended(AGAIN), stored)


def written(store: tracking.Store, book: Ended, stored: Mapping[str, float] = MappingProxyType({})) -> None:
    theirs, ours = os.pipe()
    os.write(ours, b"FINISHED\n")
    store.show()
    scribe = StoreWriter(store, book, theirs, stored, retry_s=0.1)  # type: ignore[arg-type]
    scribe.work()
    assert scribe.left == 0
    os.close(theirs)
    os.close(ours)


def synced(of: SweepFacts) -> None:
    tracking.sync(SweepRecord(of, tuple(TRIALS), (NODE,), is_complete=True), FOUND)


def stored(question: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect("server.db", timeout=20)) as store:
        return store.execute(question).fetchall()


def held(of: SweepFacts, stored: Callable[[str], list[tuple[Any, ...]]] = stored) -> dict[str, Any]:
    """What the store holds of a sweep, but for ids and times."""
    own = f"""SELECT runs.run_uuid AS run, status, experiment_id FROM runs JOIN tags USING (run_uuid)
              WHERE key = 'sweep.id' AND tags.value = '{of.id}' AND lifecycle_stage = 'active'"""
    trials = "SELECT run_uuid FROM tags WHERE key = 'sweep.trial'"
    parents = stored(f"SELECT run, experiment_id FROM ({own}) AS own WHERE run NOT IN ({trials})")
    of_them = f"FROM {{}} AS them JOIN ({own}) AS own ON run = them.run_uuid"
    values = "SELECT key, {0}, count(*) {1} GROUP BY key, {0} ORDER BY key, {0}"
    tags = "SELECT them.value {} WHERE key = '{}' AND them.value != '' ORDER BY them.value"
    return {
        "runs": stored(f"SELECT status, count(*) FROM ({own}) AS own GROUP BY status"),
        "trials": stored(tags.format(of_them.format("tags"), "sweep.trial")),
        "are children": [(run,) in [parent[:1] for parent in parents]
                         for (run,) in stored(tags.format(of_them.format("tags"), "mlflow.parentRunId"))],
        "metrics": stored(values.format("step, them.value", of_them.format("metrics"))),
        "params": stored(values.format("them.value", of_them.format("params"))),
        "notes": [note for (note,) in stored(tags.format(of_them.format("tags"), "mlflow.note.content"))],
        "nodes": stored(f"SELECT key, them.value {of_them.format('tags')} WHERE key LIKE 'sweep.%ware.%'"),
        "report": [Path(f"artifacts/{at}/{run}/artifacts/report.html").exists() for run, at in parents],
    }  # fmt: skip


def test_a_connection_that_breaks_at_any_call_doubles_nothing_and_loses_nothing(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()
    monkeypatch.setattr(access, "store_name", lambda: here.uri)
    Path("report.html").write_text("found")

    def case(name: str, write: Any, line: Line) -> SweepFacts:
        here.uri = proxy.address(name, line)
        of = facts(name)
        write(of)
        return of

    whole = {}
    cases: list[tuple[str, Any, Line]] = []
    for write in (told, synced):
        line = Line()
        whole[write] = held(case(write.__name__, write, line))
        made = sum(request.endswith("runs/create") for request in line.asked)
        assert made == 1 + len(TRIALS)
        each = [request.rsplit("/", 1)[-1] for request in line.asked]
        begins = each.index("create", each.index("log-batch"))
        assert each[begins : begins + 3 * len(TRIALS)] == ["create", "log-batch", "update"] * len(TRIALS), "of a trial"
        # `sync` makes the same calls, but tries again in another way; of those alike in a row one stands for all.
        of_note = [n for n, request in enumerate(line.asked) if write is told or request.endswith("runs/create")]
        places = [n for n in of_note if n == 0 or line.asked[n] != line.asked[n - 1]]
        for at, fault in itertools.product(places, get_args(Fault)):
            cases.append((f"{write.__name__}-{len(cases)}", write, Line(at, fault)))
    assert whole[told]["runs"] == [("FINISHED", 1 + len(TRIALS))]
    assert whole[told]["are children"] == [True] * len(TRIALS)
    assert whole[told]["report"] == [True]
    assert len(whole[told]["metrics"]) > 20
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        done = [(pool.submit(case, *one), one) for one in cases]
    time.sleep(HELD_S)  # until what arrives late has arrived
    for future, (_, write, line) in done:
        where = f"{write.__name__}: {line.asked[line.breaks_at]} {line.fault}"
        try:
            of = future.result()
        except Exception as error:
            raise AssertionError(where) from error
        assert held(of) == whole[write], where


def test_a_connection_that_breaks_at_any_call_of_a_retry_leaves_one_run_a_trial_and_none_open(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the sweep from before: it is told that this runs again, and forgets the first attempt's run."""
    here = threading.local()
    monkeypatch.setattr(access, "store_name", lambda: here.uri)
    Path("report.html").write_text("found")

    def case(name: str, line: Line) -> SweepFacts:
        here.uri = proxy.address(f"{name}-before", Line())
        of = facts(name)
        told(of)
        here.uri = proxy.address(name, line)
        retried(of)
        return of

    whole = held(case("retry-whole", line := Line()))
    assert whole["runs"] == [("FINISHED", 1 + len(TRIALS))]
    assert whole["report"] == [True]
    each = [request.rsplit("/", 1)[-1] for request in line.asked]
    assert each.index("search") < each.index("update") < each.index("delete") < each.index("create", 1)
    places = [n for n, request in enumerate(line.asked) if n == 0 or request != line.asked[n - 1]]
    cases = [Line(n, fault) for n, fault in itertools.product(places, get_args(Fault))]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        done = [pool.submit(case, f"retry-{n}", one) for n, one in enumerate(cases)]
    time.sleep(HELD_S)  # until what arrives late has arrived
    for future, line in zip(done, cases, strict=True):
        where = f"{line.asked[line.breaks_at]} {line.fault}"
        try:
            of = future.result()
        except Exception as error:
            raise AssertionError(where) from error
        assert held(of) == whole, where


SIMULATED = "{name: cut, model: resnet50, device: gpu, repeats: 2, space: {batch_size: 64, gpus: 1}}"


RUN = ("run", "cut.yaml", "--simulate", "nodes=1,gpus=1,gpu=v100")


def sweep(folder: Path, uri: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "SWEEP_RESULTS": str(folder / "results")} | more
    command = [str(BIN / "sweep"), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def commanded(folder: Path, uri: str) -> SweepFacts:
    """A sweep by `sweep run`, whose driver tells a process beside it what to write; its id is what counts."""
    folder.mkdir()
    (folder / "cut.yaml").write_text(SIMULATED)
    ran = sweep(folder, uri, *RUN)
    assert ran.returncode == 0, ran.stderr
    return begun_in(folder)


def begun_in(folder: Path) -> SweepFacts:
    (book,) = folder.glob("results/*/ledger.jsonl")
    return dataclasses.replace(facts("cut"), id=json.loads(book.read_text().splitlines()[0])["id"])


def test_a_sweep_whose_connection_breaks_at_any_call_of_its_own_has_one_run_a_trial_none_left_open(
    proxy: Proxy, workplace: Path
) -> None:
    """Behind `sweep run` itself: its driver, and the process that writes. All ways to break at what makes a run, and
    one at each other kind of call."""

    def case(name: str, line: Line) -> dict[str, Any]:
        found = held(commanded(workplace / name, proxy.address(name, line)))
        return found | {"metrics": [(key, times) for key, _, _, times in found["metrics"]]}

    whole = case("whole", line := Line())
    assert whole["runs"] == [("FINISHED", 1 + 2)]
    assert whole["report"] == [True]
    places = {request: n for n, request in reversed([*enumerate(line.asked)])}
    cases = [Line(n, "unanswered") for n in places.values()]
    makes = [n for n, request in enumerate(line.asked) if request.endswith("runs/create")]
    assert len(makes) == 1 + 2
    cases += [Line(n, fault) for n in makes for fault in ("answered late", "arrives late")]
    with ThreadPoolExecutor(4) as pool:
        ended = [pool.submit(case, f"case-{n}", one) for n, one in enumerate(cases)]
    time.sleep(HELD_S)  # until what arrives late has arrived
    for future, line in zip(ended, cases, strict=True):
        assert future.result() == whole, f"{line.asked[line.breaks_at]} {line.fault}"


def test_a_sweep_to_which_a_slow_store_does_not_open_leaves_no_run_open_there(proxy: Proxy, workplace: Path) -> None:
    """Its driver is refused before the first trial; what it had asked for is carried out all the same."""

    def goes_on(fault: Fault) -> tuple[int, SweepFacts]:
        folder, line = workplace / f"goes on, {fault}", Twice(fault=fault, kind="runs/update")
        of = commanded(folder, proxy.address(f"{fault[:3]}-before", Line()))
        retry = ("retry", "cut-simulated", "--status", "completed")
        return sweep(folder, proxy.address(fault[:3], line), *retry).returncode, of

    def begins() -> tuple[int, SweepFacts]:
        """Submitted: it stays, and can be resumed."""
        folder, line = workplace / "begins", Twice(fault="arrives late", kind="runs/create")
        folder.mkdir()
        (folder / "cut.yaml").write_text(SIMULATED)
        ran = sweep(folder, proxy.address("begins", line), *RUN, **{ledger.JOB: "sweep-cut-1"})
        return ran.returncode, begun_in(folder)

    with ThreadPoolExecutor() as pool:
        ended = [pool.submit(begins), pool.submit(goes_on, "answered late"), pool.submit(goes_on, "arrives late")]
    time.sleep(HELD_S)
    codes, (begun, *gone_on) = zip(*(one.result() for one in ended), strict=True)
    assert codes == (errors.REFUSED,) * 3
    assert [held(of)["runs"] for of in gone_on] == [[("FINISHED", 1 + 2)]] * 2
    assert held(begun)["runs"] == [("KILLED", 1)]


def test_a_run_that_is_made_long_after_the_sweep_has_ended_goes_with_the_next_command(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its client had given up, had waited once more as long for what might have come, and had ended."""
    here = threading.local()
    Path("report.html").write_text("found")
    commands = (["sync", "cut"], ["resume", "cut"], ["gc", "--yes"])
    books = []
    for command in commands:  # each has a sweep of its own
        monkeypatch.setenv("SWEEP_RESULTS", command[0])
        books.append(ownership.create(plan.plan(sweep_file.parse(TEXT, "cut")), TEXT))
        for trial in TRIALS:
            books[-1].write(trial)

    def late(of: SweepFacts) -> tuple[str, dict[str, Any]]:
        """The sweep's address, and what the store held of it when it had ended."""
        here.uri = proxy.address(of.id, line := Slow())
        assert told(of) == 2, "the sweep's own and a trial's"
        whole = held(of)
        line.may_arrive.set()
        return here.uri, whole

    with monkeypatch.context() as patched, ThreadPoolExecutor() as pool:
        patched.setattr(access, "store_name", lambda: here.uri)
        ended = [*pool.map(late, [book.facts for book in books])]

    for command, book, (uri, whole) in zip(commands, books, ended, strict=True):
        assert whole["runs"] == [("FINISHED", 1 + len(TRIALS))], command
        assert eventually(lambda of=book.facts: ("RUNNING", 2) in held(of)["runs"], ARRIVES_WITHIN_S), command  # type: ignore[misc]
        assert held(book.facts)["runs"] == [*whole["runs"], ("RUNNING", 2)], command
        book.end("complete")
        book.close()
        monkeypatch.setenv("SWEEP_RESULTS", command[0])
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert main.main(command) == 0, command
        assert "has not answered" not in capsys.readouterr().err, command
        after = held(book.facts)
        assert after["runs"] == whole["runs"], command
        assert (after["trials"], after["metrics"], after["report"]) == (whole["trials"], whole["metrics"], [True])


def test_a_sweep_that_was_discarded_while_the_server_was_away_has_no_run_once_gc_has_reached_it(
    server: Server, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_all = "SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'"
    others = stored(of_all)
    way = contextlib.ExitStack()
    before = way.enter_context(proxied(server, free_port()))

    @contextlib.contextmanager
    def site(*_: object) -> Iterator[Simulated]:
        yield Simulated([Node("here", 8, 0)])

    def run(*given: Any, **_: object) -> bool:
        for observer in given[3]:
            observer.ready()
        way.close()
        threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()  # while it waits for the server
        raise KeyboardInterrupt

    monkeypatch.setattr(terms, "open_site", site)
    monkeypatch.setattr(executor, "carry_out", run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", before.address("gone", Line()))
    Path("gone.yaml").write_text(TEXT.replace("cut", "gone"))
    with way, pytest.raises(KeyboardInterrupt):
        driver.drive(Path("gone.yaml"), (), Terms())
    named = "runs JOIN tags USING (run_uuid) WHERE key = 'sweep.name' AND value = 'gone'"
    runs = f"SELECT status, lifecycle_stage FROM {named}"
    assert stored(runs) == [("RUNNING", "active")]
    assert not ledger.names()
    assert "once that answers: sweep gc --yes" in capsys.readouterr().err
    assert main.main(["gc", "--yes"]) == 3
    assert "the run of gone, which was discarded, must go from the tracking store" in capsys.readouterr().err
    assert stored(runs) == [("RUNNING", "active")]
    with proxied(server, before.server_port) as again:
        again.lines |= before.lines
        assert main.main(["gc", "--yes"]) == 0
    assert stored(runs) == [("RUNNING", "deleted")]
    assert stored(of_all) == others
    assert [*(workplace / "results").glob(".gone.*")] == []


def test_a_run_that_is_made_late_goes_while_the_sweep_runs_on(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was slow, and the next trials come when it has recovered."""
    of = facts("late")
    line = Slow()
    monkeypatch.setattr(access, "store_name", lambda: proxy.address(of.id, line))
    store = tracking.Store(of)
    with pytest.raises(Exception, match="timed out"):
        store.log(TRIALS[:1])
    assert store.log(TRIALS[:1]) == {}
    assert store.may_come == 2
    line.may_arrive.set()
    assert eventually(lambda: ("RUNNING", 3) in held(of)["runs"], ARRIVES_WITHIN_S)
    time.sleep(TIMEOUT_S)
    assert store.log(TRIALS[1:]) == {}
    assert store.may_come == 0
    assert held(of)["runs"] == [("FINISHED", len(TRIALS)), ("RUNNING", 1)], "the sweep's own"
    store.close("FINISHED")
    assert held(of)["runs"] == [("FINISHED", 1 + len(TRIALS))]
