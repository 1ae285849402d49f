"""What a node runs is known by its content, and what measures runs its sources as they are."""

from __future__ import annotations

import ast
import dataclasses
import os
import py_compile
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeps.scheduling.cache import Cache, contents
from tests.unit.records import config, record
from tests.unit.test_layers import imports, is_within, modules
from workers.contract import paths
from workers.contract.messages import Granted
from workers.launch import preload, rank, verdict
from workers.launch.supervisor import RankEnd
from workers.node import fingerprint, start_from_source

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project as it would lie on a node: no git."""
    for name in ("workers", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def software(checkout: Path) -> str:
    """The fingerprint that a node has which runs the project from there."""
    code = "from workers.node import fingerprint as f; print(f.digest(f.software({})))"
    there = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=there, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_whoever_edits_the_training_loop_has_another_fingerprint_also_without_git(copy: Path) -> None:
    before = software(copy)
    loop = copy / "workers" / "workloads" / "images" / "throughput.py"
    loop.write_text(loop.read_text().replace("work.steps += 1", "work.steps += 1; time.sleep(0.01)"))
    assert software(copy) != before


def test_whoever_edits_what_runs_on_no_node_has_the_same(copy: Path) -> None:
    before = software(copy)
    (copy / "docs" / "axes.md").write_text("other words")
    (copy / "workers" / "__pycache__").mkdir(exist_ok=True)
    (copy / "workers" / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"compiled")
    assert software(copy) == before


def code(package: Path = fingerprint.PACKAGE) -> str:
    return fingerprint.code(fingerprint.contents(package))


def test_the_code_is_its_content_wherever_it_lies_and_whenever_it_was_written(copy: Path) -> None:
    assert code(copy / "workers") == code()
    os.utime(copy / "workers" / "workloads" / "images" / "train.py", (0, 0))
    assert code(copy / "workers") == code()


@pytest.mark.parametrize("change", ["added", "renamed", "moved over"])
def test_files_that_come_go_or_change_places_are_seen(copy: Path, change: str) -> None:
    package = copy / "workers"
    if change == "added":
        (package / "new.py").write_text("")
    elif change == "renamed":
        (package / "workloads/images/work.py").rename(package / "workloads/images/worked.py")
    else:  # the same bytes, in another file
        models = package / "frameworks/tensorflow/models"
        one, other = models / "vgg.py", models / "tiny.py"
        text = one.read_bytes(), other.read_bytes()
        one.write_bytes(text[1])
        other.write_bytes(text[0])
    assert code(package) != code()


def test_an_edited_copy_is_served_nothing_that_was_measured_before(copy: Path) -> None:
    trial = config()
    node = {"hardware": {"digest": "hw"}, "software": {"digest": software(copy)}}
    row = {"trial": trial.trial, "arrangement": "", "hardware": "hw", "software": software(copy), "data_files": ""}
    row |= {"sweep": "earlier", "started_at": 1.7e9, "limited_by": "", "figures": {}}
    known = Cache([row])
    assert known.outcome(trial, [(contents(node).fingerprints(trial), 1)])
    (copy / "docs" / "axes.md").unlink()
    assert known.outcome(trial, [(contents(node | {"software": {"digest": software(copy)}}).fingerprints(trial), 1)])
    (copy / "workers" / "frameworks" / "tensorflow" / "learner.py").write_text(
        (copy / "workers" / "frameworks" / "tensorflow" / "learner.py").read_text() + "# edited\n"
    )
    assert not known.outcome(
        trial, [(contents(node | {"software": {"digest": software(copy)}}).fingerprints(trial), 1)]
    )


def closure(start: tuple[str, ...], of: Any) -> set[str]:
    found: set[str] = set()
    left = [*start]
    while left:
        if (module := left.pop()) not in found:
            found.add(module)
            left += [name for name in of(module) if name in modules() and name.startswith("workers.")]
    return found


def at_once(module: str) -> set[str]:
    """What importing a module imports: nothing within functions."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


OTHERS = {"tensorflow": "torch", "torch": "tensorflow"}
OPENS = {"tensorflow": "workers.inputs.opening", "torch": "workers.inputs.plain.opening"}  # a framework's sources


@pytest.mark.parametrize("framework", OTHERS)
def test_a_fork_server_has_loaded_all_of_the_project_that_its_ranks_may_import(framework: Any) -> None:
    """Else an edit in the middle of a sweep would change what runs, and the fingerprint would not tell."""

    def of_this_framework(module: str) -> set[str]:
        other = OTHERS[framework]
        found = at_once(module) if module == OPENS[other] else imports(module)
        return {name for name in found if not is_within(name, f"workers.frameworks.{other}")}

    may_import = closure(("workers.launch.rank", "workers.workloads.images.train"), of_this_framework)
    assert f"workers.frameworks.{framework}.learner" in may_import
    assert may_import <= closure(preload.MODULES[framework], at_once)


@pytest.mark.parametrize("framework", OTHERS)
def test_a_fork_server_loads_no_other_framework(framework: Any) -> None:
    """Of what is imported at once; what a rank imports later is for `test_torch_ranks`."""
    loaded = closure(preload.MODULES[framework], at_once)
    assert not {name for name in loaded if is_within(name, f"workers.frameworks.{OTHERS[framework]}")}
    libraries = {"tensorflow": {"torch"}, "torch": {"tensorflow", "keras", "horovod"}}[framework]
    assert not {name for module in loaded for name in at_once(module) if name.partition(".")[0] in libraries}


PLANTED = """
from workers.launch import preload
from workers.node import fingerprint


def load(edit: str = "") -> None:
    preload.MODULES = {"tensorflow": ("workers.inputs.labels",)}
    from workers.inputs import labels

    if edit:
        with open(labels.__file__, "a") as file:
            file.write(edit)
    print(labels.PLANTED, preload.loaded({})["code"])


if __name__ == "__main__":
    load()
"""


def begun(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    there = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=checkout, env=there, capture_output=True, text=True, check=False)


def from_source(checkout: Path, *arguments: str) -> list[str]:
    """The command that starts a process there as a fork server's is started."""
    script = start_from_source.SCRIPT
    there = checkout / script.relative_to(start_from_source.PACKAGE.parent)
    return [str(there) if part == str(script) else part for part in start_from_source.command(*arguments)]


@pytest.fixture
def stale(copy: Path) -> Path:
    """A copy with a module whose compiled file is of other code, and passes for the source's: as long, as old."""
    labels = copy / "workers" / "inputs" / "labels.py"
    text = labels.read_text()
    labels.write_text(f"{text}\nPLANTED = 1\n")
    os.utime(labels, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(labels), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    labels.write_text(f"{text}\nPLANTED = 2\n")
    os.utime(labels, (1_700_000_000, 1_700_000_000))
    (copy / "workers" / "planted.py").write_text(PLANTED)
    return copy


def test_a_process_that_measures_runs_its_sources_and_no_stale_compiled_file(stale: Path) -> None:
    ordinary = begun(stale, sys.executable, "-c", "from workers.inputs import labels; print(labels.PLANTED)")
    assert ordinary.stdout == "1\n", "else nothing was planted"
    ran = begun(stale, *from_source(stale, "workers.planted", "load"))
    assert ran.stdout.split() == ["2", code(stale / "workers")], ran.stderr


def test_what_may_come_from_a_compiled_file_has_no_fingerprint(stale: Path) -> None:
    ran = begun(stale, sys.executable, "-m", "workers.planted")
    assert ran.returncode == 1
    assert "workers must be compiled from its source, but a .pyc may have been taken" in ran.stderr


def test_files_that_are_edited_while_they_are_loaded_are_not_taken(stale: Path) -> None:
    ran = begun(stale, *from_source(stale, "workers.planted", "load", "# edited"))
    assert ran.returncode == 1
    assert "workers/inputs/labels.py must stay as it is while it is loaded, but was edited" in ran.stderr


def test_a_file_that_is_edited_before_it_is_loaded_is_the_one_that_is_told(stale: Path) -> None:
    """What counts is the moment of loading, not that of the start."""
    before = code(stale / "workers")
    (stale / "workers" / "planted.py").write_text(PLANTED.replace("from workers.inputs import labels", EDITS_FIRST))
    ran = begun(stale, *from_source(stale, "workers.planted", "load"))
    assert ran.stdout.split() == ["3", code(stale / "workers")], ran.stderr
    assert code(stale / "workers") != before


EDITS_FIRST = """
    with open(preload.__file__.replace("launch/preload", "inputs/labels"), "a") as file:
        file.write("PLANTED = 3\\n")
    from workers.inputs import labels
""".strip()


def test_a_fork_server_and_a_rank_of_its_own_start_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: called.append(command))
    monkeypatch.setattr(os, "execve", lambda _, command, environment: called.append(command))
    monkeypatch.setattr(sys, "argv", ["fork_server", "address"])
    runpy.run_path(str(ROOT / "workers" / "launch" / "fork_server.py"), run_name="__main__")
    channel, beat = os.pipe()
    rank.start_from_nothing({"software": {}, "config": {"env": {}}}, channel, beat)
    fork_server, own = called
    assert fork_server == start_from_source.command("workers.launch.fork_server", "main", "address")
    assert own[:-3] == start_from_source.command("workers.launch.rank", "begin")
    for fd in (channel, beat, int(own[-3].rpartition("/")[2])):
        os.close(fd)


def test_a_trial_is_known_by_what_its_ranks_have_loaded_not_by_what_lies_on_their_nodes() -> None:
    reports = [
        dataclasses.replace(report, software="loaded", data_files="read")
        for report in record(config(gpus=2)).outcome.measurement.ranks  # type: ignore[union-attr]
    ]
    ends = [RankEnd(rank=n, what="measured", report=report) for n, report in enumerate(reports)]
    outcome = verdict.outcome(ends, [Granted(rank=n, node="a", software="edited since") for n in range(2)])
    assert {(place.software, place.data_files) for place in outcome.granted} == {("loaded", "read")}


def test_windows_of_other_code_or_other_data_are_not_remembered() -> None:
    file = paths.SweepPaths("x").history("cell", ["n0"])
    own = {paths.history_of(file, code, data) for code in ("one", "other") for data in ("ff", "00")}
    assert len({*own, file}) == 5
    assert paths.history_of(file, "one", "ff") in own
