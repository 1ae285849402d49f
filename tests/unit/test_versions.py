"""Whoever asks a cluster and whoever answers there run the same code and packages, or are told that they do not."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from sweeps.cli import main, on_head
from sweeps.cluster import marked_output, upload, versions
from sweeps.record import ledger

pytestmark = pytest.mark.unit

SAME = {"code": "a", "ray": "2.60.0", "mlflow": "3.17.2"}


def test_those_that_run_the_same_are_told_nothing() -> None:
    assert versions.difference(json.dumps(SAME), json.dumps(SAME)) == ""
    assert versions.difference(versions.here(), versions.here()) == ""


@pytest.mark.parametrize(
    ("other", "words"),
    [({"code": "b"}, "another version of the project's code"), ({"mlflow": "3.1"}, "mlflow 3.1 there, 3.17.2 here")],
)
def test_what_differs_is_named_with_its_cure(other: dict[str, str], words: str) -> None:
    said = versions.difference(json.dumps(SAME), json.dumps(SAME | other))
    assert words in said
    assert "ray up FILE (the cluster's launcher file) brings" in said


ON_3_12 = json.dumps(SAME | {"Python": "3.12"})


def test_another_python_is_named_with_its_cure_which_is_no_ray_up() -> None:
    said = versions.difference(json.dumps(SAME | {"Python": "3.11"}), ON_3_12)
    assert said.startswith(f"{versions.DIFFERS} (Python 3.12 there, 3.11 here): make clean setup PYTHON=python3.12 ")
    assert "ray up" not in said
    both = versions.difference(json.dumps(SAME | {"Python": "3.11", "ray": "2.1"}), ON_3_12)
    assert "(Python 3.12 there, 3.11 here, ray 2.60.0 there, 2.1 here): make clean setup PYTHON=python3.12" in both
    assert both.endswith("ray up FILE (the cluster's launcher file) brings the rest there, and ends sweeps")


def test_a_python_of_the_same_minor_version_or_one_that_nobody_told_differs_in_nothing() -> None:
    assert json.loads(versions.here())["Python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert versions.difference(ON_3_12, ON_3_12) == ""
    assert versions.difference(json.dumps(SAME), ON_3_12) == "", "a client of before"
    assert versions.difference(ON_3_12, json.dumps(SAME)) == "", "a question, answered by the code of before"


@pytest.mark.parametrize(("command", "is_told"), [("doctor", True), ("list", False), ("status", False)])
def test_python_is_compared_where_it_matters_to_what_was_asked(
    command: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(versions.ASKED_BY, json.dumps(json.loads(versions.here()) | {"Python": "3.9"}))
    monkeypatch.setattr(main, "main", lambda _: 0)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", said)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    on_head.main([command, "--cluster"])
    assert (f"{versions.DIFFERS} (Python " in said.getvalue()) == is_told


def test_any_edit_of_the_code_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions.here()
    upload.pack(tmp_path)
    monkeypatch.setattr(upload, "ROOT", tmp_path)
    assert versions.here() == before  # wherever it lies
    (tmp_path / "workers/launch/rank.py").write_text((tmp_path / "workers/launch/rank.py").read_text() + "\n")
    assert versions.difference(versions.here(), before)
    assert versions.difference(before, versions.here())


def test_a_file_that_was_removed_here_and_still_lies_there_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray up` copies and deletes nothing: its cure would not help."""
    upload.pack(tmp_path)
    monkeypatch.setattr(upload, "ROOT", tmp_path)
    (tmp_path / "sweeps/renamed_since.py").write_text("")
    there = versions.here()
    (tmp_path / "sweeps/renamed_since.py").rename(tmp_path / "sweeps/renamed.py")
    assert versions.difference(versions.here(), there), "before the next `ray up`"
    here = versions.here()
    (tmp_path / "sweeps/renamed_since.py").write_text("")
    assert versions.difference(here, versions.here()) == ""


@pytest.mark.parametrize("is_other", [True, False])
def test_who_asks_from_afar_hears_of_it(is_other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_by = json.loads(versions.here()) | ({"code": "b"} if is_other else {})
    monkeypatch.setenv(versions.ASKED_BY, json.dumps(asked_by))
    monkeypatch.setattr(main, "main", lambda _: 0)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", said)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    on_head.main(["list"])
    lines = [marked_output.parsed(line) for line in said.getvalue().splitlines()]
    heard = [words for line in lines if line and line[0] == marked_output.ERR for words in [line[1]]]
    assert [words.startswith(versions.DIFFERS) for words in heard] == ([True] if is_other else [])


@pytest.mark.parametrize("other", [{"mlflow": "3.1"}, {"Python": "3.9"}])
def test_a_submitted_driver_says_so_first(
    other: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ledger.JOB, "job")
    monkeypatch.setenv(versions.ASKED_BY, json.dumps(json.loads(versions.here()) | other))
    assert main.main(["run", str(tmp_path / "none.yaml"), "--address", "local"]) == 2
    assert capsys.readouterr().err.startswith(versions.DIFFERS)


def test_the_command_says_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert all(f"{name} {json.loads(versions.here())[name]}" in line for name in versions.PACKAGES)
