"""What goes to a cluster and comes back: the pack, the relayed lines, the bulletin, the check-up's table."""

from __future__ import annotations

import contextlib
import http.server
import io
import itertools
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps import checkup, ledger, pack, plan, relayed, service, spec, status
from sweeps.cache import Cache
from sweeps.durations import Durations
from sweeps.engine import Engine
from sweeps.errors import InputError, RefusedError
from sweeps.feasibility import Feasibility
from sweeps.packing import Start
from sweeps.search import Listed
from sweeps.shape import Node
from tests.unit.records import record

pytestmark = pytest.mark.unit

TEXT = "name: x\nmodel: tiny\ndevice: cpu\nspace: {batch_size: 8, gpus: [1, 2]}\nrepeats: 1\n"


def test_a_pack_holds_the_code_and_the_file_and_nothing_else(tmp_path: Path) -> None:
    files = pack.pack(tmp_path, Path("sweep.yaml"), TEXT)
    assert {path.parts[0] for path in files} == {"sweep.yaml", "sweeps", "workers", "references"}
    assert {path.suffix for path in files} <= {".py", ".css", ".js", ".csv", ".md", ".yaml"}
    assert (tmp_path / "sweep.yaml").read_text() == TEXT
    assert (tmp_path / "sweeps/cli.py").exists()


def test_a_secret_beside_the_code_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    for name in ("sweeps/a.py", "sweeps/.env", "sweeps/key.pem", ".git/config", "data/x.py", "results/x/ledger.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    (root / "sweeps/link.py").symlink_to("/etc/passwd")
    monkeypatch.setattr(pack, "ROOT", root)
    (tmp_path / "out").mkdir()
    packed = pack.pack(tmp_path / "out", Path("sweep.yaml"), TEXT)
    assert [str(path) for path in packed] == ["sweep.yaml", "sweeps/a.py"]


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("search_spaces/x.yaml", "search_spaces/x.yaml"),
        ("../x.yaml", "x.yaml"),
        ("/tmp/x.yaml", "x.yaml"),
        ("sweeps/cli.py", "sweep.yaml"),
        ("/tmp/sweeps", "sweep.yaml"),
    ],
)
def test_a_sweep_file_is_called_there_what_it_is_called_here(named: str, place: str) -> None:
    assert pack.place(Path(named)) == Path(place)


def test_what_was_said_on_two_streams_is_told_apart_again() -> None:
    log = io.StringIO()
    out, err = relayed.Marked(relayed.OUT, log), relayed.Marked(relayed.ERR, log)
    out.write("one\ntw")
    err.write("oh\n")
    out.write("o | 2\nrest")
    out.close()
    lines = [*log.getvalue().splitlines(), "2026 INFO Ray's own line", f"sweep|{relayed.CODE}|3"]
    assert [relayed.told(line) for line in lines] == [
        ("o", "one"),
        ("e", "oh"),
        ("o", "two | 2"),
        ("o", "rest"),
        None,
        ("x", "3"),
    ]


def test_a_relayed_command_ends_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = sys.stdout, sys.stderr
    try:
        relayed.main(["plan", "no-such-file.yaml"])
    finally:
        sys.stdout, sys.stderr = out, err
    lines = capsys.readouterr().out.splitlines()
    assert relayed.told(lines[-1]) == (relayed.CODE, "2")
    assert any((relayed.told(line) or "")[0:1] == ("e",) for line in lines)


def _drawn(told: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(status.drawn(told, "sweep"))
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
    book = ledger.create(plan.plan(spec.parse(TEXT, "x")), TEXT)
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
    book = ledger.create(plan.plan(spec.parse(text, "x")), text)
    trials = book.facts.trials
    done = [record(config) for config in trials[:5]]
    engine = Engine(lambda _: Listed(trials[5:] if again else trials), Durations(lambda _: 1.0), Feasibility(), Cache())
    engine.nodes_are([Node("a", 1, 0)], {})
    engine.resumed([] if again else done)
    herald = status.Herald(book.facts, book.paths, engine, *(((), done) if again else (done,)))
    start = engine.next(0.0)
    assert isinstance(start, Start)
    herald.started(start.trial)
    herald.spent(engine.spent())
    herald.passed()
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
    assert [*service._tailed(client, "x")] == ["first", "", "  second, with [words]", "the last has no end"]


def test_one_who_stops_following_leaves_nothing_open() -> None:
    client: Any = Followed("one\n", "two\n")
    lines = service._tailed(client, "x")
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
    "has_nccl": True,
    "missing": [],
    "is_named": True,
    "promised": 2,
}


def test_a_check_up_says_what_is_wrong_with_which_node() -> None:
    nodes = [
        NODE,
        NODE,
        NODE | {"host": "old", "versions": {"ray": "2.59.0", "horovod": "0.28.1"}},
        NODE | {"host": "bad", "has_nccl": False, "missing": ["/data"], "is_named": False},
        NODE | {"host": "fewer", "gpus": ["V100"]},
        NODE | {"host": "blind", "gpus": [], "promised": 0},
        NODE | {"host": "13", "mismatches": ["CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"]},
    ]
    rows = checkup.rows(nodes, [0.0, 0.49, 0.0, -0.7, 0.0, 0.0, 0.0], [1000.0, 990.0, 100.0, 1000.0, *[980.0] * 3])
    wrong = {n: row["wrong"] for n, row in enumerate(rows)}
    assert wrong[0] == wrong[1] == ""
    assert wrong[2] == "ray 2.59.0, others 2.60.0; a slow link"
    for words in ("clock -0.7 s", "can't read /data", "its own name", "without NCCL"):
        assert words in wrong[3]
    assert wrong[4] == "Ray promises 2 GPUs, TensorFlow sees 1"
    assert wrong[5] == "TensorFlow sees no GPU"
    assert wrong[6] == "CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"
    assert [row[""] for row in rows] == ["✓", "✓", "✗", "✗", "✗", "✗", "✗"]
    assert rows[0]["GPUs"] == "2 V100"


def test_a_check_up_of_one_node_has_no_link() -> None:
    (row,) = checkup.rows([NODE], [0.0], [None])
    assert (row["wrong"], row["to the next"]) == ("", "")


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
        service.relay(["list"], older)
    assert "there 2.41.0" in str(refused.value)
    assert "make setup" in str(refused.value)
