"""What goes to a cluster and comes back: the pack, the relayed lines, the bulletin, the check-up's table."""

from __future__ import annotations

import contextlib
import http.server
import io
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from sweeps.cli import main, on_head
from sweeps.cluster import checkup, driver_log, marked_output, private_ray, ray_jobs, upload, versions
from sweeps.cluster import ray_cluster as cluster
from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger
from sweeps.run import status
from sweeps.scheduling.cache import Cache
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.engine import Engine
from sweeps.scheduling.feasibility import Feasibility
from sweeps.scheduling.packing import Start
from sweeps.scheduling.search import Listed
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.text import addresses as place
from sweeps.text import caller
from tests.unit.records import record
from workers.checks import node_checkup

pytestmark = pytest.mark.unit

TEXT = "name: x\nmodel: tiny\ndevice: cpu\nspace: {batch_size: 8, gpus: [1, 2]}\nrepeats: 1\n"


def test_a_pack_holds_the_code_and_the_file_and_nothing_else(tmp_path: Path) -> None:
    files = upload.pack(tmp_path, Path("sweep.yaml"), TEXT)
    assert {path.parts[0] for path in files} == {"sweep.yaml", "sweeps", "workers", "references"}
    assert {path.suffix for path in files} <= {".py", ".css", ".js", ".csv", ".md", ".yaml"}
    assert (tmp_path / "sweep.yaml").read_text() == TEXT
    assert (tmp_path / "sweeps/cli/main.py").exists()


def test_a_secret_beside_the_code_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    for name in ("sweeps/a.py", "sweeps/.env", "sweeps/key.pem", ".git/config", "data/x.py", "results/x/ledger.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    (root / "sweeps/link.py").symlink_to("/etc/passwd")
    monkeypatch.setattr(upload, "ROOT", root)
    (tmp_path / "out").mkdir()
    packed = upload.pack(tmp_path / "out", Path("sweep.yaml"), TEXT)
    assert [str(path) for path in packed] == ["sweep.yaml", "sweeps/a.py"]


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("search_spaces/x.yaml", "search_spaces/x.yaml"),
        ("../x.yaml", "x.yaml"),
        ("/tmp/x.yaml", "x.yaml"),
        ("sweeps/cli/main.py", "sweep.yaml"),
        ("/tmp/sweeps", "sweep.yaml"),
    ],
)
def test_a_sweep_file_is_called_there_what_it_is_called_here(named: str, place: str) -> None:
    assert upload.place(Path(named)) == Path(place)


def test_what_was_said_on_two_streams_is_told_apart_again() -> None:
    log = io.StringIO()
    out, err = marked_output.Marked(marked_output.OUT, log), marked_output.Marked(marked_output.ERR, log)
    out.write("one\ntw")
    err.write("oh\n")
    out.write("o | 2\nrest")
    out.close()
    lines = [*log.getvalue().splitlines(), "2026 INFO Ray's own line", f"sweep|{marked_output.CODE}|3"]
    assert [marked_output.parsed(line) for line in lines] == [
        ("o", "one"),
        ("e", "oh"),
        ("o", "two | 2"),
        ("o", "rest"),
        None,
        ("x", "3"),
    ]


ODD = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj\r\x10k\x10r"


class Failed:
    """A job that has ended, with what it said as Ray reads it: a carriage return is the end of a line."""

    def __init__(self, log: str) -> None:
        self.log = io.StringIO(log, newline=None).read()

    def get_job_status(self, job: str) -> str:
        return "FAILED"

    def get_job_logs(self, job: str) -> str:
        return self.log

    def get_job_info(self, job: str) -> Any:
        return types.SimpleNamespace(message="Job failed", status="FAILED")

    def submit_job(self, **_: object) -> None: ...

    def delete_job(self, job: str) -> None: ...


def test_no_character_of_what_a_relayed_command_says_is_lost() -> None:
    log = io.StringIO()
    marked_output.Marked(marked_output.OUT, log).write(f"{ODD}\n\nlast\n")
    client: Any = Failed(log.getvalue())
    said = [marked_output.parsed(line) for line in ray_jobs._lines(client, "x")]
    assert said == [("o", ODD), ("o", ""), ("o", "last")]
    client = Failed("one\nwithout an end")
    assert [*ray_jobs._lines(client, "x")] == ["one", "without an end"]


NO_SPEC = "Error while finding module specification for 'sweeps.cli.on_head'"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (f"/venv/bin/python: {NO_SPEC} (ModuleNotFoundError: No module named 'sweeps.cli')\n", versions.DIFFERS),
        ("/venv/bin/python: No module named sweeps.cli.on_head\n", versions.DIFFERS),
        ("sweep|e|the disk is full\n", "the cluster must run the command, but says: the disk is full"),
        ("bash: python: not found\n", "the cluster must run the command, but says: bash: python: not found"),
        ("Running entrypoint for job x: y\n", "the cluster must run the command, but says: Job failed"),
    ],
)
def test_a_head_that_can_t_answer_says_why_and_older_code_there_is_called_so(
    log: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "_client", lambda _: contextlib.nullcontext(Failed(log)))
    with pytest.raises(RefusedError) as refused:
        ray_jobs.relay(["list"], "http://127.0.0.1:1")
    assert str(refused.value).startswith(says)
    assert ("ray up" in str(refused.value)) == (says == versions.DIFFERS)


def test_a_relayed_command_ends_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = sys.stdout, sys.stderr
    try:
        on_head.main(["plan", "no-such-file.yaml"])
    finally:
        sys.stdout, sys.stderr = out, err
    lines = capsys.readouterr().out.splitlines()
    assert marked_output.parsed(lines[-1]) == (marked_output.CODE, "2")
    assert any((marked_output.parsed(line) or "")[0:1] == ("e",) for line in lines)


def _drawn(told: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(status.drawn(told))
    return console.file.getvalue()  # type: ignore[attr-defined]


NEIGHBOURS = {"node": "n2", "cpus": 8, "gpus": 4, "kind": "V100", "ranks": 0, "others_until": 1020.0}


def test_the_bulletin_of_a_running_sweep_shows_nodes_trials_queue_and_cost() -> None:
    now = 1000.0
    told = {
        "sweep": "x",
        "state": "running",
        "at": now,
        "trials": 5,
        "ended": {"completed": 2},
        "waiting": 2,
        "spent": 0.5,
        "expected": 2.0,
        "unit": "GPU-hours",
        "left_s": 90.0,
        "nodes": [{"node": "n1", "cpus": 8, "gpus": 4, "kind": "V100", "ranks": 4, "others_until": None}, NEIGHBOURS],
        "running": [
            {
                "trial": "b32 ×4 #0",
                "nodes": ["n1"],
                "stage": "step 20/100",
                "images_per_s": 1234.0,
                "since_s": 61.0,
                "ends_at": now + 30,
            }
        ],
        "queue": [{"trial": "b64 ×4 #0", "gpus": 4, "starts_at": now + 30}],
        "best": "b32 ×4 #0  1,234 images/s",
    }
    shown = _drawn(told)
    for words in ("2 completed, 1 running, 2 waiting", "0.5 of about 2 GPU-hours, 1:30 left", "4 V100", "step 20/100"):
        assert words in shown
    assert "1,234" in shown
    assert "1:01" in shown
    assert shown.count("0:30") == 2
    assert "another sweep's for 0:20" in shown


def test_a_sweep_without_a_driver_is_told_from_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    monkeypatch.setenv(ledger.JOB, "sweep-x-1")
    book = ledger.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)
    assert status.look("x")["state"] == "starting"
    assert ledger.driver("x")["job"] == "sweep-x-1"
    book.end("stopped")
    book.close()
    told = status.look("x")
    assert (told["state"], told["waiting"]) == ("stopped", 2)
    assert "to go on: sweep resume x" in _drawn(told)
    (tmp_path / "x/status.json").write_text(f'{{"at": {time.time() - 100}}}')
    assert status.look("x")["silent_s"] > 90  # a driver that was killed leaves its last words
    with contextlib.closing(ledger.reopen("x")) as again:
        again.end("complete")
    told = status.look("x")
    assert (told["state"], told.get("silent_s")) == ("complete", None)


@pytest.mark.parametrize("again", [False, True])
def test_a_driver_that_goes_on_counts_what_the_earlier_ones_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """With `again` three of them are tried once more, and five stand."""
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = TEXT.replace("batch_size: 8, gpus: [1, 2]", "batch_size: [1, 2, 3, 4, 5, 6, 7, 8], gpus: 1")
    book = ledger.create(plan.plan(sweep_file.parse(text, "x")), text)
    trials = book.facts.trials
    done = [record(config) for config in trials[:5]]
    engine = Engine(lambda _: Listed(trials[5:] if again else trials), Durations(lambda _: 1.0), Feasibility(), Cache())
    engine.nodes_are([Node("a", 1, 0)], {})
    engine.resumed([] if again else done)
    status_writer = status.StatusWriter(book.facts, book.paths, engine, *(((), done) if again else (done,)))
    start = engine.next(0.0)
    assert isinstance(start, Start)
    status_writer.started(start.trial)
    status_writer.spent(engine.spent())
    status_writer.passed()
    told = status.look("x")
    assert (told["ended"], told["trials"], len(told["running"]), told["waiting"]) == ({"completed": 5}, 8, 1, 2)


class Followed:
    """A job whose log comes in pieces; it may not be fetched whole."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for piece in self.pieces:
            yield piece


@pytest.mark.parametrize("cuts", [(), (1,), (5, 6, 30), tuple(range(1, 60, 7))])
def test_what_is_followed_comes_line_by_line_however_its_bytes_come(cuts: tuple[int, ...]) -> None:
    text = "Running entrypoint for job x: y\nfirst\n\n  second, with [words]\nthe last has no end"
    ends = [0, *cuts, len(text)]
    client: Any = Followed(*(text[start:end] for start, end in itertools.pairwise(ends)))
    assert [*ray_jobs._tailed(client, "x")] == ["first", "", "  second, with [words]", "the last has no end"]


def test_one_who_stops_following_leaves_nothing_open() -> None:
    client: Any = Followed("one\n", "two\n")
    lines = ray_jobs._tailed(client, "x")
    assert next(lines) == "one"
    lines.close()  # type: ignore[attr-defined]


def test_a_sweeps_name_from_elsewhere_never_leaves_the_results_folder() -> None:
    for name in ("../x", "/etc/passwd", "a/b", "..", "x\n"):
        with pytest.raises(InputError):
            status.look(name)


NODE: dict[str, Any] = {
    "host": "n1",
    "address": "10.0.0.1",
    "rack": "r1",
    "versions": {"ray": "2.60.0", "horovod": "0.28.1"},
    "gpus": ["V100", "V100"],
    "devices": 2,
    "mismatches": [],
    "trouble": [],
    "has_nccl": True,
    "missing": [],
    "name_leads_to": "10.0.0.1",
    "promised": 2,
    "runs_trials": True,
}
HEAD = NODE | {
    "host": "head",
    "address": "10.0.0.9",
    "gpus": [],
    "promised": 0,
    "has_nccl": False,
    "runs_trials": False,
}


def test_a_check_up_says_what_is_wrong_with_which_node() -> None:
    nodes = [
        NODE,
        NODE,
        NODE | {"host": "old", "versions": {"ray": "2.59.0", "horovod": "0.28.1"}},
        NODE | {"host": "bad", "has_nccl": False, "missing": ["/data"], "name_leads_to": ""},
        NODE | {"host": "fewer", "gpus": ["V100"]},
        NODE | {"host": "blind", "gpus": [], "promised": 0},
        NODE | {"host": "elsewhere", "name_leads_to": "192.168.0.1"},
        NODE | {"host": "13", "mismatches": ["CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"]},
    ]
    rows = checkup.rows(nodes, [0.0, 0.49, 0.0, -0.7, *[0.0] * 4], [1000.0, 990.0, 100.0, 1000.0, *[980.0] * 4])
    wrong = {n: row["wrong"] for n, row in enumerate(rows)}
    assert wrong[0] == wrong[1] == ""
    assert wrong[2] == "ray 2.59.0, others 2.60.0; a slow link"
    for words in ("clock -0.7 s", "can't read /data", "its own name", "without NCCL"):
        assert words in wrong[3]
    assert wrong[4] == "Ray promises 2 GPUs, TensorFlow sees 1"
    assert wrong[5] == "TensorFlow sees no GPU"
    assert wrong[6] == "its name leads to 192.168.0.1, not 10.0.0.1 (/etc/hosts)"
    assert wrong[7] == "CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"
    assert [row[""] for row in rows] == ["✓", "✓", *["✗"] * 6]
    assert rows[0]["GPUs"] == "2 V100"


NO_CODE = ray.exceptions.RayTaskError("facts", "ModuleNotFoundError: No module named 'workers.checks'", RuntimeError())
FIREWALL = ray.exceptions.RayTaskError("send", "Traceback …\nTimeoutError: timed out", TimeoutError())
FAULTS = [
    (ray.exceptions.GetTimeoutError("late"), "has not answered within"),
    (ray.exceptions.NodeDiedError("gone"), "has gone while it was asked"),
    (NO_CODE, "another version of the project's code: ray up "),
    (ray.exceptions.RayTaskError("facts", "Traceback …\nOSError: no space", OSError()), "OSError: no space"),
]


class Question:
    """A question to a node, or an actor there; Ray's `remote`."""

    def __init__(self, node: str, call: Any) -> None:
        self.node, self.call = node, call

    def remote(self, *_: object) -> Question:
        return self

    @property
    def port_number(self) -> Question:
        return Question(self.node, "port")


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, Any], Exception]:
    """What a node raises when it is asked something; else it answers."""
    names, raised = ("n1", "n2", "n3"), dict[tuple[str, Any], Exception]()
    answers = {node_checkup.clock: time.time, node_checkup.send: lambda: 900.0}

    def get(asked: Question, timeout: float) -> Any:
        assert timeout >= 0
        if error := raised.get((asked.node, asked.call)):
            raise error
        return answers.get(
            asked.call, lambda: NODE | {"host": asked.node, "address": asked.node, "name_leads_to": asked.node}
        )()

    alive = [
        {"NodeID": name, "Alive": True, "NodeManagerHostname": name, "NodeManagerAddress": name}
        | {"Resources": {"CPU": 8.0, "GPU": 2.0}}
        for name in names
    ]
    monkeypatch.setattr(cluster, "connected", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "on", Question)
    monkeypatch.setattr(checkup, "_launched", dict)
    for name, body in {"nodes": lambda: alive, "get": get, "kill": lambda _: None}.items():
        monkeypatch.setattr(ray, name, body)
    return raised


@pytest.mark.parametrize(("error", "words"), FAULTS)
@pytest.mark.parametrize("question", [node_checkup.facts, node_checkup.clock])
def test_a_node_that_gives_no_answer_is_a_line_with_its_cure_and_the_others_are_shown(
    question: Any, error: Exception, words: str, three_nodes: dict[tuple[str, Any], Exception]
) -> None:
    three_nodes["n2", question] = error
    first, second, third = checkup.examine("auto", ())
    assert [row[""] for row in (first, second, third)] == ["✓", "✗", "✓"]
    assert second["node"] == "n2"
    assert words in second["wrong"]
    assert first["to the next"] == "900 MiB/s"


@pytest.mark.parametrize(
    ("at", "call", "error", "words"),
    [
        ("n1", node_checkup.send, FIREWALL, "no link to n2 (TimeoutError: timed out): no firewall may"),
        ("n1", node_checkup.send, ray.exceptions.GetTimeoutError("late"), "no link to n2 (60 s): no firewall may"),
        ("n2", "port", ray.exceptions.ActorDiedError(), "no link to n2: one of the two has gone"),
    ],
)
def test_two_nodes_without_a_link_are_a_line_and_the_others_are_shown(
    at: str, call: Any, error: Exception, words: str, three_nodes: dict[tuple[str, Any], Exception]
) -> None:
    three_nodes[at, call] = error
    first, second, third = checkup.examine("auto", ())
    assert [row[""] for row in (first, second, third)] == ["✗", "✓", "✓"]
    assert words in first["wrong"]
    assert (first["to the next"], second["to the next"]) == ("", "900 MiB/s")


def test_a_check_up_names_a_node_whose_tensorflow_or_horovod_can_t_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["TensorFlow and Horovod must be importable, but their probe says: ImportError: libz"]
    on_cpus = NODE | {"gpus": [], "devices": 0, "promised": 0, "has_nccl": False}
    (row,) = checkup.rows([on_cpus | {"trouble": said}], [0.0], [None])
    assert (row[""], row["wrong"]) == ("✗", said[0])
    failed = subprocess.CompletedProcess([], 1, "", "Traceback …\nImportError: libz\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert node_checkup.facts([])["trouble"] == [f"{said[0]} (make clean setup installs them anew)"]
    halves = subprocess.CompletedProcess([], 0, json.dumps({"trouble": ["Horovod can't"], "gpus": []}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: halves)
    assert node_checkup.facts([])["trouble"] == ["Horovod can't"]


def test_a_check_up_of_one_node_has_no_link() -> None:
    (row,) = checkup.rows([NODE], [0.0], [None])
    assert (row["wrong"], row["to the next"]) == ("", "")


def test_a_check_up_asks_the_head_too_but_for_what_trials_need() -> None:
    head, node = checkup.rows([HEAD | {"name_leads_to": "127.0.1.1"}, NODE], [0.0, 0.0], [None, None])
    assert (head["node"], head["GPUs"], head["wrong"]) == ("head", "runs no trials", "")
    assert node["GPUs"] == "2 V100"
    older = HEAD | {"versions": {"ray": "2.60.0", "horovod": "0.27.0"}, "missing": ["/shared"]}
    wrong = checkup.rows([older, NODE, NODE], [0.9, 0.0, 0.0], [None, 900.0, 900.0])[0]["wrong"]
    assert wrong == "horovod 0.27.0, others 0.28.1; can't read /shared; clock +0.9 s"


def test_right_after_ray_up_a_check_up_names_the_nodes_that_have_not_come() -> None:
    (head,) = checkup.rows([HEAD], [0.0], [None])
    assert (head[""], head["wrong"]) == ("✗", "no node that runs trials has joined it")
    launched = {"provider": {"head_ip": "10.0.0.9", "worker_ips": ["10.0.0.1", "10.0.0.2"]}}
    named = checkup.expected({"10.0.0.9", "10.0.0.1"}, launched, str)
    assert named == {"10.0.0.9": True, "10.0.0.1": True, "10.0.0.2": False}
    (late,) = checkup.absent(named)
    assert (late[""], late["address"]) == ("✗", "10.0.0.2")
    assert "has not joined" in late["wrong"]
    assert list(late) == list(head)  # one table
    assert checkup.absent(checkup.expected({"10.0.0.9", "10.0.0.1", "10.0.0.2"}, launched, str)) == []
    assert checkup.expected({"127.0.0.1"}, launched, str) == {}  # the file is of another cluster
    assert checkup.expected({"10.0.0.9"}, {"provider": {"type": "aws"}}, str) == {}


def test_a_launcher_file_may_name_its_nodes() -> None:
    addresses = {"head.site": "10.0.0.9", "one.site": "10.0.0.1"}
    launched = {"provider": {"head_ip": "head.site", "worker_ips": ["one.site", "two.site"]}}
    named = checkup.expected({"10.0.0.9", "10.0.0.1"}, launched, lambda name: addresses.get(name, name))
    assert named == {"head.site": True, "one.site": True, "two.site": False}
    assert checkup._resolved("localhost") == "127.0.0.1"
    assert checkup._resolved("no-such-host.invalid") == "no-such-host.invalid"


class Older(http.server.BaseHTTPRequestHandler):
    """The dashboard of a cluster of another Ray."""

    def do_GET(self) -> None:
        told = {"version": "4", "ray_version": "2.41.0", "ray_commit": "c", "session_name": "s"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def older() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_cluster_of_another_ray_is_named_with_the_cure(older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", older)
    with pytest.raises(RefusedError) as refused:
        ray_jobs.relay(["list"], older)
    assert "there 2.41.0" in str(refused.value)
    assert "make setup" in str(refused.value)


class Jobs:
    """A cluster that takes a job: its driver names its sweep after a while, and ends soon after it was told to. At one
    of the calls the user presses Ctrl-C, before the cluster has heard of it, or while it does as it was asked."""

    def __init__(self, pressed_at: Sequence[int], is_heard: bool, names_it_after: int = 3) -> None:
        self._pressed_at, self._is_heard, self._names_it_after = pressed_at, is_heard, names_it_after
        self._calls = 0
        self._arrives_at = self._ends_at = math.inf
        self.job = ""

    @property
    def is_running(self) -> bool:
        return self._arrives_at <= self._calls < self._ends_at

    def _called(self) -> None:
        if self._calls in self._pressed_at:
            raise KeyboardInterrupt

    def _asked_of(self, job: str) -> None:
        self._calls += 1
        if job != self.job or self._calls < self._arrives_at:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist")

    def submit_job(self, submission_id: str, **_: object) -> str:
        self._calls += 1
        if self._calls in self._pressed_at:
            if self._is_heard:  # it arrives though nobody waits for the answer
                self.job, self._arrives_at = submission_id, self._calls + 2
            raise KeyboardInterrupt
        self.job, self._arrives_at = submission_id, self._calls
        return submission_id

    def get_job_status(self, job: str) -> str:
        self._asked_of(job)
        self._called()
        return "RUNNING" if self.is_running else "STOPPED"

    def get_job_logs(self, job: str) -> str:
        self._asked_of(job)
        self._called()
        return "results in /shared/results/study\n" if self._calls > self._names_it_after else "starting Ray\n"

    def stop_job(self, job: str) -> bool:
        self._asked_of(job)
        if self._calls not in self._pressed_at or self._is_heard:
            self._ends_at = min(self._ends_at, self._calls + 3)
        self._called()
        return True


def submitted(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    @contextlib.contextmanager
    def client(_: str) -> Iterator[Jobs]:
        yield jobs

    monkeypatch.setattr(ray_jobs, "_client", client)
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(ray_jobs, "ARRIVES_WITHIN_S", 0.05)
    (tmp_path / "x.yaml").write_text(TEXT)
    return ray_jobs.submit(tmp_path / "x.yaml", (), "http://127.0.0.1:1", ())


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("call", range(1, 7))
def test_a_ctrl_c_while_a_sweep_is_submitted_ends_it_or_comes_after_its_name_was_told(
    call: int, is_heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([call], is_heard, names_it_after=6)
    with pytest.raises(KeyboardInterrupt):
        submitted(jobs, tmp_path, monkeypatch)
    assert not jobs.is_running
    told = capsys.readouterr()
    assert not told.out, "no name of a sweep that has been ended"
    assert f"{jobs.job} has ended: nothing has begun" in told.err or "study is stopped; to go on" in told.err


def test_without_a_ctrl_c_a_sweep_that_is_submitted_goes_on_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([], is_heard=True)
    assert submitted(jobs, tmp_path, monkeypatch) == 0
    assert jobs.is_running
    assert capsys.readouterr().out.startswith("study\n")


class Over(Jobs):
    """A driver that finds nothing left to run, says what was found, and ends with this code."""

    def __init__(self, code: int | None) -> None:
        super().__init__([], is_heard=True)
        self._code = code

    def get_job_status(self, job: str) -> str:
        super().get_job_status(job)
        return "RUNNING" if self._calls < 8 else "SUCCEEDED"

    def get_job_logs(self, job: str) -> str:
        begun = f"study: {driver_log.NOTHING_TO_RUN}: all 6 trials have ended\nresults in /shared/results/study\n"
        return begun + super().get_job_logs(job).replace("results in /shared/results/study", "its table")

    def get_job_info(self, _: str) -> Any:
        return types.SimpleNamespace(driver_exit_code=self._code)


@pytest.mark.parametrize(("code", "exits"), [(0, 0), (1, 1), (3, 3), (None, 3)])
def test_a_complete_sweep_that_is_resumed_from_afar_shows_its_results_and_exits_as_on_the_head(
    code: int | None, exits: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Over(code)
    monkeypatch.setattr(ray_jobs, "_client", lambda _: contextlib.nullcontext(jobs))
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.001)
    assert main.main(["resume", "study", "--address", "http://127.0.0.1:1"]) == exits
    told = capsys.readouterr()
    assert "its table" in told.out
    assert "sweep status" not in told.err, "nothing runs that could be looked at"


def test_what_was_submitted_is_followed_and_stopped_with_the_address_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.001)
    for given in ("http://127.0.0.1:1", ""):
        jobs, sent = Jobs([], is_heard=True), list[dict[str, Any]]()
        submit = jobs.submit_job
        monkeypatch.setattr(ray_jobs, "_client", lambda _, jobs=jobs: contextlib.nullcontext(jobs))
        monkeypatch.setattr(jobs, "submit_job", lambda submit=submit, sent=sent, **of: (sent.append(of), submit(**of)))
        monkeypatch.setenv(place.JOB_SERVER, "http://127.0.0.1:1")
        where = ["--address", given] if given else []
        assert main.main(["submit", str(tmp_path / "x.yaml"), *where]) == 0
        lines = [line.split() for line in capsys.readouterr().err.splitlines()]
        assert ["status", "sweep", "status", "study", "-f", *where] in lines
        assert ["stop", "sweep", "stop", "study", *where] in lines
        (of,) = sent
        asked = json.loads(of["runtime_env"]["env_vars"][caller.CALLED])
        assert asked == {"me": "sweep", "kind": "http", "address": given, "file": ""}


def test_a_second_ctrl_c_leaves_the_job_and_says_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs([3, 4], is_heard=False)
    with pytest.raises(KeyboardInterrupt):
        submitted(jobs, tmp_path, monkeypatch)
    assert jobs.is_running
    assert f"on the head RAY_AUTH_MODE=token ray job stop {jobs.job} ends it" in capsys.readouterr().err


def test_of_a_driver_that_does_not_begin_both_commands_for_the_head_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_jobs, "TOLD_WITHIN_S", 0.0)
    with pytest.raises(RefusedError) as refused:
        ray_jobs._named(Jobs([], is_heard=True), "job-1")  # type: ignore[arg-type]
    for does in ("stop", "logs"):
        assert f"`RAY_AUTH_MODE=token ray job {does} job-1`" in str(refused.value)


class Asked:
    """A cluster that runs one job at once; what was sent with it, as paths and their text."""

    def __init__(self) -> None:
        self.command, self.sent = "", dict[str, str]()

    def submit_job(self, entrypoint: str, runtime_env: dict[str, Any], **_: object) -> None:
        self.command = entrypoint
        folder = Path(runtime_env["working_dir"])
        self.sent = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

    def get_job_status(self, _: str) -> str:
        return "SUCCEEDED"

    def get_job_logs(self, _: str) -> str:
        return "sweep|o|a plan\nsweep|x|0\n"

    def delete_job(self, _: str) -> None: ...


@pytest.mark.parametrize(
    ("words", "sent", "asked"),
    [
        (["plan", "./x.yaml"], "x.yaml", "plan x.yaml --address auto"),
        (["plan", "--next", "study", "my/x.yaml"], "my/x.yaml", "plan --next study my/x.yaml"),
        (["plan", "sweeps/x.yaml", "--format", "csv"], "sweep.yaml", "plan sweep.yaml --format csv --address auto"),
    ],
)
def test_a_plan_for_a_cluster_elsewhere_takes_its_file_along_and_nothing_else(
    words: list[str],
    sent: str,
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Asked()
    monkeypatch.setattr(ray_jobs, "_client", lambda _: contextlib.nullcontext(cluster))
    monkeypatch.chdir(tmp_path)
    file = next(Path(word) for word in words if word.endswith(".yaml"))
    file.parent.mkdir(exist_ok=True)
    file.write_text(TEXT)
    assert main.main([*words, "--address", "http://127.0.0.1:1"]) == 0
    assert capsys.readouterr().out == "a plan\n"
    assert (cluster.command, cluster.sent) == (f"python -m sweeps.cli.on_head {asked}", {sent: TEXT})


def test_a_file_that_is_not_there_is_said_before_a_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_jobs, "_client", lambda _: pytest.fail("it was asked"))
    assert main.main(["plan", "none.yaml", "--address", "http://127.0.0.1:1"]) == 2
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusals", "said", "is_taken"), [(3, private_ray.NO_AGENT_YET, True), (1, "no space", False)]
)
def test_a_head_that_has_just_been_started_is_given_time_to_take_jobs(
    refusals: int, said: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [RuntimeError(f"Request failed with status code 500: {said}, please try again later..")] * refusals
    taken: list[object] = []

    def submit_job(**about: object) -> None:
        if answers:
            raise answers.pop()
        taken.append(about)

    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.0)
    with contextlib.nullcontext() if is_taken else pytest.raises(RuntimeError, match="no space"):
        ray_jobs._start(types.SimpleNamespace(submit_job=submit_job), "job", ["true"], {})  # type: ignore[arg-type]
    assert bool(taken) is is_taken


@pytest.mark.parametrize("kind", [Exception, ConnectionError, TypeError])
def test_a_ray_that_does_not_start_in_time_is_told_in_a_line_and_a_mistake_of_ours_is_not_hidden(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**_: object) -> None:
        raise kind("The current node timed out during startup.\nThis could happen")

    monkeypatch.setattr(cluster.ray, "init", late)
    with (
        pytest.raises(TypeError if kind is TypeError else RefusedError, match="The current node timed out") as told,
        cluster.connected(None),
    ):
        pass
    assert kind is TypeError or "\n" not in str(told.value)


@pytest.mark.parametrize("is_a_job", [True, False])
def test_auto_is_this_machines_cluster_whatever_variable_ray_would_rather_heed(
    is_a_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But in a job, where the variable is Ray's own."""
    seen: list[str | None] = []

    def init(**_: object) -> None:
        seen.append(os.environ.get(place.RAY))
        raise ConnectionError("none here")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setenv(place.RAY, "other:6379")
    monkeypatch.setenv(ledger.JOB, "job") if is_a_job else monkeypatch.delenv(ledger.JOB, raising=False)
    with pytest.raises(RefusedError, match="none here"), cluster.connected("auto"):
        pass
    assert seen == ["other:6379" if is_a_job else None]
    assert os.environ[place.RAY] == "other:6379"
