"""What a command on the head says comes back line by line, by stream, with its exit code."""

from __future__ import annotations

import contextlib
import io
import sys
import types
from typing import Any

import pytest

from sweeps.cli import on_head
from sweeps.cluster import connection, job_log, marked_output, ray_jobs, versions
from sweeps.errors import RefusedError

pytestmark = pytest.mark.unit


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
    said = [marked_output.parsed(line) for line in job_log.lines(client, "x")]
    assert said == [("o", ODD), ("o", ""), ("o", "last")]
    client = Failed("one\nwithout an end")
    assert [*job_log.lines(client, "x")] == ["one", "without an end"]


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
    monkeypatch.setattr(connection, "client", lambda _: contextlib.nullcontext(Failed(log)))
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
