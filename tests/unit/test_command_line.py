"""The words of a command: what is wrong with them is told at once, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.cli import main
from sweeps.cli.completion import VARIABLE
from sweeps.cli.grammar import spread
from sweeps.record import ledger
from tests.unit import commands

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
NO_OPTION = "an option must be one that --help lists"
HEAVY = {"ray", "tensorflow", "mlflow", "pandas", "horovod", "numpy", "optuna"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("staus x", ["sweep: a command must be one that --help lists (did you mean status?), but got staus"]),
        ("data mkae d", ["sweep data: a command must be one that --help lists (did you mean make?), but got mkae"]),
        ("--verison", [f"sweep: {NO_OPTION} (did you mean --version?), but got --verison"]),
        ("--version=3", ["sweep: --version: must stand without a value, but got 3"]),
        (
            "trials x --fromat csv --wehre=a --format tabel",
            [
                f"sweep trials: {NO_OPTION} (did you mean --format?), but got --fromat",
                f"sweep trials: {NO_OPTION} (did you mean --where?), but got --wehre",
                "sweep trials: --format: must be table, csv, json or parquet (did you mean table?), but got tabel",
            ],
        ),
        (
            "data make --images 1_0 --size 3 --split y",
            [
                "sweep data make: --images: must be a whole number, but got 1_0",
                "sweep data make: --size: must be WxH as in 500x375, but got 3",
                "sweep data make: --split: must be train or validation, but got y",
                "sweep data make: DIR: must be given (the folder that holds the set), but got nothing",
            ],
        ),
        ("data check d --labels-from 2", ["sweep data check: --labels-from: must be 0 or 1, but got 2"]),
        ("status", ["sweep status: NAME: must be given (a sweep's name, as in results/NAME), but got nothing"]),
        ("status x -fz", [f"sweep status: {NO_OPTION}, but got -z"]),
        ("status x --follow=3", ["sweep status: --follow: must stand without a value, but got 3"]),
        ("trials x --where", ["sweep trials: --where: must have a value, but got nothing"]),
        (
            "trials x --where --format csv",
            [
                "sweep trials: --where: must have a value before the next option, but got --format",
            ],
        ),
        ("list x", ["sweep list: must have no word beside its options, but got x"]),
        ("diff a b c d", ["sweep diff: must have A and B and no further word, but got c d"]),
        ("resume x --budget much", ["sweep resume: --budget: must be a number, but got much"]),
        ("reproduce --repeats 2.5", ["sweep reproduce: --repeats: must be a whole number, but got 2.5"]),
        (
            "completion bahs",
            ["sweep completion: SHELL: must be bash, zsh or fish (did you mean bash?), but got bahs"],
        ),
    ],
)
def test_what_is_wrong_with_the_words_is_said_at_once_and_where_to_read_on(
    words: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words.split()) == 2
    told = capsys.readouterr()
    *mistakes, cure = told.err.splitlines()
    assert (sorted(mistakes), told.out) == (sorted(says), "")
    assert cure == f"  {says[0].split(':')[0]} --help says what it takes"


@pytest.mark.parametrize(("words", "shows"), [([], "Run:"), (["data"], "Commands:")])
def test_without_a_command_the_help_is_shown_as_a_mistake(
    words: list[str], shows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    assert shows in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["x", "--set", "a=1", "b=2", "--fresh"], ["x", "--set", "a=1", "--set", "b=2", "--fresh"]),
        (["--set", "a=1", "b=[1, 2]", "x"], ["--set", "a=1", "--set", "b=[1, 2]", "x"]),
        (["--set=a=1", "b=2"], ["--set=a=1", "--set", "b=2"]),
        (["--set", "a", "b"], ["--set", "a", "b"]),
        (["--set", "a=-1", "--set", "b=2", "c=3"], ["--set", "a=-1", "--set", "b=2", "--set", "c=3"]),
        (["--where", "a=1", "b=2"], ["--where", "a=1", "b=2"]),
        (["--set", "a=1", "--", "b=2"], ["--set", "a=1", "--", "b=2"]),
    ],
)
def test_set_takes_values_until_another_word(words: list[str], meant: list[str]) -> None:
    assert spread(words) == meant


def test_a_sweep_file_may_stand_behind_what_replaces_its_values() -> None:
    for words in (["x.yaml", "--set", "a=1", "b=2"], ["--set", "a=1", "b=2", "x.yaml"]):
        read = commands.read(["plan", *words, "--format", "csv"]).params
        assert (read["file"], read["overrides"], read["form"]) == (Path("x.yaml"), ("a=1", "b=2"), "csv")


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str = "bash"
) -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv(VARIABLE, f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main.main([]) == 0
    return [name for kind, _, name in (item.partition(",") for item in capsys.readouterr().out.split("\n")) if name]


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("sweep re", {"resume", "retry", "reproduce", "report", "restore"}),
        ("sweep data ", {"make", "check"}),
        ("sweep status st", {"study-1", "study-2"}),
        ("sweep diff other st", {"study-1", "study-2"}),
        ("sweep plan x.yaml --next o", {"other"}),
        ("sweep reproduce --measured o", {"other"}),
        ("sweep reproduce st", {"study-1", "study-2"}),
        ("sweep reproduce a-table-5", {"a-table-5"}),
        ("sweep run x.yaml --set batch", {"batch_size="}),
        ("sweep run x.yaml --set gpus=1 batch", {"batch_size="}),
        ("sweep trials x --for", {"--format"}),
        ("sweep trials x --format c", {"csv"}),
        ("sweep status x --address l", {"local"}),
        ("sweep completion ", {"bash", "zsh", "fish"}),
        ("sweep nonsense x", set()),
        ("sweep trials x --nonsense --for", {"--format"}),
    ],
)
def test_a_shell_is_offered_what_fits(
    line: str, offers: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger, "names", lambda: ["study-1", "other", "study-2"])
    assert {*completed(line, monkeypatch, capsys)} == offers


def test_files_and_folders_are_completed_by_the_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("sweep run search", "file,"), ("sweep data make d", "dir,"), ("sweep list --address clu", "file,")
    for line, kind in lines:
        monkeypatch.setenv(VARIABLE, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        assert main.main([]) == 0
        assert capsys.readouterr().out.startswith(kind)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{VARIABLE}={shell}_complete" in script


def test_bash_completes_the_command_with_the_script_that_it_prints(tmp_path: Path) -> None:
    """And puts no space behind `batch_size=`."""
    (tmp_path / "results" / "study").mkdir(parents=True)
    (tmp_path / "results" / "study" / "ledger.jsonl").touch()
    (program := tmp_path / "sweep").write_text(f'#!/bin/sh\nexec {sys.executable} -m sweeps.cli "$@"\n')
    program.chmod(0o755)
    asks = """eval "$(sweep completion bash)"
        compopt() { echo "$@"; }
        COMP_WORDS=(sweep status s); COMP_CWORD=2; _sweep_completion sweep; echo "${COMPREPLY[@]}"; COMPREPLY=()
        COMP_WORDS=(sweep run x --set batch_s); COMP_CWORD=4; _sweep_completion sweep; echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "SWEEP_RESULTS": str(tmp_path / "results")}
    ran = subprocess.run(["bash", "-c", asks], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("study\n-o nospace\nbatch_size=\n", "")


@pytest.mark.parametrize("line", ["sweep reproduce a", "sweep run x --set gpu"])
def test_completion_loads_no_heavy_library(line: str) -> None:
    env = os.environ | {VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sweeps.cli"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert ran.stdout.startswith("plain,")
    assert not loaded & HEAVY
