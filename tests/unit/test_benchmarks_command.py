"""The command that runs benchmarks, what it keeps of each run, and the verdict that a benchmark comes to."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import pace
import results
import run
import table
import verdicts
from tests.unit.planted_claims import BENCHMARKS, CLAIM, FIGURES, OTHER, measured


def test_the_pace_is_taken_second_by_second(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {core})
    (took,) = pace.measured(1)
    assert took > 0


VERDICT = """
import sys
sys.path.insert(0, {benchmarks!r})
from verdicts import conclude
print("on the way")
sys.exit(conclude("it", {{"took_s": float((sys.argv[1:] or [1])[0]), **{others}}}, {{"took_s": "<= 2"}}))
"""

SKIPPED = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from verdicts import skip; skip('hosts need root')\n"


@pytest.fixture
def project(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree in which `it` comes to a verdict, and `other` ends before."""
    others = {name: figure for name, figure in FIGURES.items() if name != "took_s"}
    (tree / "benchmarks" / "it.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others=others))
    (tree / "benchmarks" / "other.py").write_text("print('on the way')\nraise SystemExit(3)\n")
    for name in (table.README, table.PAGE):
        (tree / name).write_text(f"{table.BEGIN}\n{table.END}\n")
    (tree / results.FILE).write_text("{}")
    monkeypatch.setattr(run, "LISTENING_S", 0.01)
    monkeypatch.setattr(run.psutil, "cpu_percent", lambda _: 1.0)
    monkeypatch.setattr(pace, "measured", lambda: (10.0, 10.1))
    return tree


def made_by(*asked: str, project: Path) -> int:
    return int(run.main(asked, (OTHER, CLAIM), project))


def test_a_run_keeps_its_figures_and_circumstances_and_makes_the_table(project: Path) -> None:
    assert made_by("it", project=project) == 0
    (result,) = results.read(project).values()
    assert result.figures == FIGURES | {"took_s": 1}
    assert result.bounds == {"took_s": "<= 2"}
    assert result.met
    assert result.arguments == ()
    assert result.code == results.digests(CLAIM, project)
    assert result.packages == results.packages(CLAIM, project)
    assert (result.pace_before_ms, result.pace_after_ms, result.pace_best_ms) == ((10.0, 10.1), (10.0, 10.1), 10.05)
    assert (result.busy_before, result.pace_code) == (0.01, results.digest(BENCHMARKS / "pace.py"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.date)
    assert result.run <= result.date
    assert result.took_s > 0
    assert re.fullmatch(r".+ cores, \d+ GiB, Linux [\d.]+", result.machine)
    assert socket.gethostname() not in (project / results.FILE).read_text()
    readme = (project / table.README).read_text()
    assert "| how long it takes | 1.0 s | the others 5.0 s |  |" in readme
    assert readme == table.replaced(readme, table.in_readme(results.read(project), (OTHER, CLAIM), project))


def test_one_that_breaks_off_is_kept_as_such_the_next_one_runs_and_the_end_is_a_failure(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by(project=project) == 1
    found = results.read(project)
    assert list(found) == ["it", "other"]
    assert (found["it"].met, found["other"].met, found["other"].figures) == (True, False, {})
    assert found["it"].run == found["other"].run
    assert capfd.readouterr().out.endswith("other: it did not run to its end\n")


def test_one_that_does_not_meet_its_bound_is_kept_with_its_figures_and_its_arguments(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by("it", "--", "3", project=project) == 1
    result = results.read(project)["it"]
    assert (result.met, result.unmet, result.figures["took_s"], result.arguments) == (False, ("took_s",), 3, ("3",))
    assert capfd.readouterr().out.endswith("it: took_s is 3.0, not <= 2\n")
    page = (project / table.PAGE).read_text()
    assert "- ✗ not met: `took_s` 3, not ≤ 2.\n- ‡ run with other arguments: 3." in page


def test_one_that_this_machine_cannot_run_is_skipped_and_leaves_its_earlier_result(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by("it", project=project) == 0
    earlier = results.read(project)
    (project / "benchmarks" / "it.py").write_text(SKIPPED)
    (project / "benchmarks" / "other.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others={"n": 3}))
    assert made_by(project=project) == 0, "the other one was measured"
    found = results.read(project)
    assert found["it"] == earlier["it"]
    assert found["other"].met
    assert capfd.readouterr().out.endswith("it: skipped, its earlier result stays: hosts need root\nall bounds met\n")


def test_nothing_but_what_is_skipped_is_no_success(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "benchmarks" / "it.py").write_text(SKIPPED)
    assert made_by("it", project=project) == 1
    assert results.read(project) == {}
    assert capfd.readouterr().out.endswith("hosts need root\nnothing measured\n")


def test_the_shortest_comes_first_and_before_it_what_was_never_measured(tree: Path) -> None:
    found = {"it": measured(tree, took_s=60), "other": measured(tree, OTHER, took_s=3)}
    never = dataclasses.replace(CLAIM, benchmark="never")
    assert run.shortest_first((CLAIM, OTHER, never), found) == [never, OTHER, CLAIM]


def test_a_run_that_was_broken_off_goes_on_with_what_it_has_not_measured(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by(project=project) == 1, "the other one breaks off"
    first = results.read(project)
    (project / "benchmarks" / "other.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others={"n": 3}))
    assert made_by("--go-on", project=project) == 0
    found = results.read(project)
    assert found["it"] == first["it"], "it was measured, and its code is as it was"
    assert found["other"].met
    assert found["other"].run == found["it"].run, "so they ran together"
    assert made_by("--go-on", project=project) == 0
    assert results.read(project) == found
    assert capfd.readouterr().out.endswith("nothing is left\n")


def test_a_run_does_not_go_on_with_other_code(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert made_by("it", project=project) == 0
    earlier = results.read(project)
    (project / "code" / "one.py").write_text("N = 2\n")
    assert made_by("--go-on", project=project) == 2
    assert results.read(project) == earlier
    told = capfd.readouterr().err
    assert told.endswith(
        "has measured it of other code: code/one.py changed since; leave --go-on out to begin a new one\n"
    )


def test_a_run_does_not_go_on_on_another_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by("it", project=project) == 0
    earlier = results.read(project)
    monkeypatch.setattr(run, "machine_here", lambda: "another one")
    assert made_by("--go-on", project=project) == 2
    assert results.read(project) == earlier
    assert "had another machine: " in capfd.readouterr().err


def test_what_was_measured_beside_others_is_kept_but_the_end_is_a_failure(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.psutil, "cpu_percent", lambda _: 20.0)
    assert made_by("it", project=project) == 1
    assert results.read(project)["it"].figures == FIGURES | {"took_s": 1}
    told = "it: 20% of the machine was busy just before\n"
    assert capfd.readouterr().out.endswith(told)


def test_a_benchmark_that_is_started_by_hand_keeps_nothing(project: Path) -> None:
    subprocess.run([sys.executable, "benchmarks/it.py"], cwd=project, check=True, capture_output=True)
    assert results.read(project) == {}


def test_a_figure_that_readme_quotes_and_a_run_does_not_print_is_a_failure(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = project / "benchmarks" / "it.py"
    script.write_text(script.read_text().replace("'more_s'", "'less_s'"))
    assert made_by("it", project=project) == 1
    assert "it: README quotes more_s, but it prints no such figure" in capfd.readouterr().out


def test_an_unknown_name_is_refused_with_those_that_there_are(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert made_by("fast", project=project) == 2
    assert capfd.readouterr().err == "no benchmark is called 'fast'; there are other, it\n"
    assert results.read(project) == {}


def test_the_commit_is_said_with_whether_files_differ_from_it(project: Path) -> None:
    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        command = ["git", *settings, *arguments]
        return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout.strip()

    assert run.commit_at(project) == "unknown"
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    commit = git("rev-parse", "--short", "HEAD")
    assert run.commit_at(project) == commit
    (project / results.FILE).write_text('{"written": "by the run itself"}')
    (project / table.README).write_text("")
    assert run.commit_at(project) == commit
    (project / "code" / "one.py").write_text("N = 3\n")
    assert run.commit_at(project) == f"{commit} with changes"


@pytest.mark.parametrize(
    ("bound", "is_met"),
    [
        ("<= 1", True),
        ("<= 0.9", False),
        (">= 1", True),
        (">= 0.9 and <= 1.1", True),
        (">= 0.9 and <= 0.95", False),
        ("> 0.9", True),
        ("> 1", False),
    ],
)
def test_a_verdict_names_the_figures_whose_bounds_do_not_hold(
    bound: str, is_met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdicts.conclude("it", {"a": 1.0, "b": 2.0}, {"a": bound, "b": "<= 2"}) == (0 if is_met else 1)
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["met"], verdict["unmet"]) == (is_met, [] if is_met else ["a"])


def test_a_figure_that_is_no_number_meets_no_bound() -> None:
    assert verdicts.unmet({"a": math.nan}, {"a": ">= 0"}) == ["a"]
