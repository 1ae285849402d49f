"""What is reused, pooled or compared was measured by the same code, on the same data, in the same arrangement."""

from __future__ import annotations

import ast
import dataclasses
import io
import os
import py_compile
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sweeps import analysis
from sweeps.analysis.comparison import compare
from sweeps.analysis.findings import doubts
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError
from sweeps.record import ledger, rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import preflight
from sweeps.run.terms import Setting, Terms
from sweeps.scheduling import asha, cache, search
from sweeps.scheduling.cache import Cache, made
from sweeps.scheduling.changes import Sameness
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.store import query
from tests.unit.planted import frame, repeats
from tests.unit.planted import trial as row_of
from tests.unit.records import config, record
from tests.unit.test_layers import imports, modules
from workers.contract import datafiles, messages, paths
from workers.contract.messages import Cached, Granted, TrialConfig, TrialOutcome
from workers.launch import preload, rank, verdict
from workers.launch.rank import Provenance
from workers.launch.supervisor import RankEnd
from workers.node import fingerprint, start_from_source

ROOT = Path(__file__).parents[2]
ONE, TWO, FOUR = ([Node(f"n{n}", 4, 0) for n in range(count)] for count in (1, 2, 4))


# the code


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
    assert known.outcome(trial, [(made(node).fingerprints(trial), 1)])
    (copy / "docs" / "axes.md").unlink()
    assert known.outcome(trial, [(made(node | {"software": {"digest": software(copy)}}).fingerprints(trial), 1)])
    (copy / "workers" / "frameworks" / "tensorflow" / "learner.py").write_text(
        (copy / "workers" / "frameworks" / "tensorflow" / "learner.py").read_text() + "# edited\n"
    )
    assert not known.outcome(trial, [(made(node | {"software": {"digest": software(copy)}}).fingerprints(trial), 1)])


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
    return found


def test_a_fork_server_has_loaded_all_of_the_project_that_its_ranks_may_import() -> None:
    """Else an edit in the middle of a sweep would change what runs, and the fingerprint would not tell."""
    assert closure(("workers.launch.rank", "workers.workloads.images.train"), imports) <= closure(
        preload.MODULES, at_once
    )


PLANTED = """
from workers.launch import preload
from workers.node import fingerprint


def load(edit: str = "") -> None:
    preload.MODULES = ("workers.inputs.labels",)
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


# the data


def reading(folder: str, **fields: object) -> TrialConfig:
    return dataclasses.replace(config(**fields), data=folder)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for split in ("train", "validation"):
        for n in range(2):
            file = folder / f"{split}-0000{n}-of-00002"
            file.write_bytes(b"x" * 100)
            os.utime(file, (1_700_000_000, 1_700_000_000))
    return folder


def test_data_is_its_files_names_sizes_and_times(images: Path) -> None:
    before = datafiles.fingerprint(str(images), ["train"])
    shard = images / "train-00000-of-00002"
    shard.write_bytes(b"y" * 100)  # as large, written later
    later = datafiles.fingerprint(str(images), ["train"])
    os.utime(shard, (1_700_000_000, 1_700_000_000))
    assert datafiles.fingerprint(str(images), ["train"]) == before
    shard.write_bytes(b"x" * 101)
    os.utime(shard, (1_700_000_000, 1_700_000_000))
    larger = datafiles.fingerprint(str(images), ["train"])
    shard.unlink()
    fewer = datafiles.fingerprint(str(images), ["train"])
    assert len({before, later, larger, fewer}) == 4


def test_a_copy_with_its_times_is_the_same_data_wherever_it_lies(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "train-00000-of-00002", (1_700_000_000.25, 1_700_000_000.25))
    both = {datafiles.fingerprint(str(folder), ["train"]) for folder in (images, tmp_path / "elsewhere")}
    assert len(both) == 1


def test_what_a_trial_does_not_read_is_no_part_of_its_data(images: Path) -> None:
    measured = reading(str(images))
    before = datafiles.of_trial(measured)
    (images / "validation-00000-of-00002").unlink()
    (images / "notes.txt").write_text("made on Monday")
    assert datafiles.of_trial(measured) == before != ""
    assert datafiles.of_trial(reading("synthetic")) == ""
    assert datafiles.of_trial(reading(str(images / "nothing"))) == ""


def test_data_that_changes_while_a_trial_reads_it_is_like_no_other(images: Path) -> None:
    trial = reading(str(images))
    rank = Provenance("sw", datafiles.of_trial(trial))
    report = record(trial).outcome.measurement.ranks[0]  # type: ignore[union-attr]
    assert rank.stamp(report, trial).data_files == rank.data_files
    (images / "train-00000-of-00002").write_bytes(b"new")
    assert rank.stamp(report, trial).data_files not in (rank.data_files, datafiles.of_trial(trial))


# the arrangement


def planned(nodes: list[Node], space: dict[str, Any], **keys: Any) -> Plan:
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": {"batch_size": 8, **space}, **keys}
    return plan.plan(SweepSpec.model_validate(content), "x", nodes)


def forms(of: Plan) -> dict[tuple[int, str], str]:
    return {(trial.gpus, trial.placement): messages.arranged(trial.arrangement) for trial in of.trials}


def test_a_plan_for_a_cluster_says_how_many_ranks_sit_on_how_many_nodes() -> None:
    both = {"gpus": 4, "placement": ["pack", "spread"]}
    assert forms(planned(TWO, both)) == {(4, "pack"): "1x4", (4, "spread"): "2x2"}
    assert forms(planned(FOUR, both)) == {(4, "pack"): "1x4", (4, "spread"): "4x1"}
    assert forms(planned([*ONE, Node("small", 1, 0)], {"gpus": 5})) == {(5, "pack"): "1x4+1x1"}
    assert forms(planned([], both)) == {(4, "pack"): "", (4, "spread"): ""}, "without a cluster they are words"


def test_four_ranks_on_two_nodes_and_on_four_are_two_cells() -> None:
    spread = {"gpus": 4, "placement": "spread"}
    (on_two,), (on_four,), (word,) = (planned(nodes, spread).trials for nodes in (TWO, FOUR, []))
    assert len({on_two.cell, on_four.cell, word.cell}) == 3
    assert on_two.cell == planned([*TWO[1:], Node("other", 4, 0)], spread).trials[0].cell, "names say nothing"


def test_a_cell_of_an_older_ledger_keeps_its_name() -> None:
    told = messages.to_json(config(gpus=4))
    del told["arrangement"]
    assert messages.trial_config(told).cell == config(gpus=4).cell
    arranged = dataclasses.replace(config(gpus=4), arrangement=(2, 2))
    assert messages.trial_config(messages.to_json(arranged)) == arranged


def test_placements_that_come_to_the_same_are_one_cell_and_the_others_are_said_to_be_left_out() -> None:
    made = planned(TWO, {"gpus": [1, 2, 4, 8], "placement": ["pack", "spread", "2x4"]})
    assert forms(made) == {
        (1, "pack"): "1x1", (2, "pack"): "1x2", (2, "spread"): "2x1", (4, "pack"): "1x4", (4, "spread"): "2x2",
        (8, "pack"): "2x4",
    }  # fmt: skip
    assert made.left_out["spread is pack here"] == 1
    assert made.left_out["2x4 is pack here"] == 1
    assert "1 cells: spread is pack here" in plan.summary(made)
    assert plan.places_alike(made, 8, "pack") == ["pack", "spread", "2x4"]
    assert plan.places_alike(made, 4, "pack") == ["pack"]


def test_a_placement_stays_where_the_one_that_it_is_here_was_not_asked_for() -> None:
    made = planned(TWO, {"gpus": [4, 8], "placement": ["pack", "spread"]}, where="gpus < 8 or placement == 'spread'")
    assert (8, "spread") in forms(made)
    fusion = {"values": [1, 8], "when": "placement == 'spread'"}
    other = planned(ONE, {"gpus": 4, "placement": ["pack", "spread"], "fusion_mib": fusion})
    assert {(trial.placement, trial.fusion_mib) for trial in other.trials} >= {("spread", 1.0), ("spread", 8.0)}


@pytest.mark.parametrize("method", ["tpe", "frontier", "random", "asha"])
def test_every_search_runs_cells_of_the_plan_s_nodes(method: str) -> None:
    keys: dict[str, Any] = {"search": {"method": method}}
    if method in ("tpe", "random"):
        keys["search"]["trials"] = 4
    if method == "asha":
        keys |= {"protocol": "convergence", "data": "digits", "epochs": 4, "target": {"top1": 0.9}}
    if method == "frontier":
        keys |= {"repeats": 1}
    made = planned(TWO, {"batch_size": [8, 16], "gpus": [2, 8], "placement": ["pack", "spread"]}, **keys)
    strategy = search.strategy(made, lambda _: False)
    ran: list[TrialConfig] = []
    while proposed := strategy.propose():
        ran += proposed
        for trial in proposed:
            strategy.tell(record(trial))
    assert ran
    assert all(sum(trial.arrangement) == trial.gpus for trial in ran)
    assert not [trial for trial in ran if (trial.gpus, trial.placement) == (8, "spread")], "which is pack here"


def test_a_ledger_keeps_the_nodes_that_its_trials_were_arranged_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: 4, placement: spread}}"
    book = ledger.create(plan.plan(sweep_file.parse(text, "x"), "x", TWO), text)
    book.end("stopped")
    facts = ledger.read("x").facts
    assert facts.nodes == tuple(TWO)
    assert {trial.arrangement for trial in facts.trials} == {(2, 2)}


def test_what_goes_on_without_a_node_waits_for_it_and_what_begins_is_refused() -> None:
    console = Console(file=io.StringIO(), width=200)
    here = Setting(Terms(), Simulated(TWO), console, "x")
    going = planned(FOUR, {"gpus": 4, "placement": ["pack", "spread"]})
    begun = ledger.SweepFacts(
        name="x", id="x", study="x", created_at=1.0, file="", overrides=(), trials=going.trials, nodes=going.nodes
    )
    kept = preflight.possible(going, here, begun)
    assert kept == going, "every cell has the name that it had"
    assert "1 trials wait for nodes to come back: this cluster (2 nodes" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="planned as 4x1"):
        preflight.possible(going, here)


def test_a_ledger_of_the_version_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: 4}}"
    book = ledger.create(plan.plan(sweep_file.parse(text, "x")), text)
    before = ledger.read("x").facts
    book.end("stopped")
    file = tmp_path / "x" / "ledger.jsonl"
    old = (
        file.read_text()
        .replace('"version":5', '"version":4')
        .replace(',"arrangement":[]', "")
        .replace(',"nodes":[]', "")
    )
    assert "arrangement" not in old
    file.write_text(old)
    assert ledger.read("x").facts == before


# what comes of it: rows, means, comparisons


def on(nodes: str, **places: str) -> tuple[Granted, ...]:
    return tuple(Granted(rank=n, node=node, node_id=node, **places) for n, node in enumerate(nodes))  # type: ignore[arg-type]


def measured(trial: TrialConfig, rate: float = 100.0, nodes: str = "aabb", **places: str) -> TrialRecord:
    made = record(trial, rate)
    return dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, granted=on(nodes, **places)))


def test_a_row_tells_where_its_ranks_really_sat_and_what_they_read() -> None:
    trial = config(gpus=4)
    row = rows.row(measured(trial, data_files="ff", software="sw"))
    assert (row["arrangement"], row["data_files"], row["software"]) == ("2x2", "ff", "sw")
    assert rows.row(measured(trial, nodes="aaab"))["arrangement"] == "1x3+1x1"
    assert rows.row(measured(trial, nodes="abcd"))["arrangement"] == "4x1"


GANGS = st.lists(st.tuples(st.sampled_from(["aaaa", "bbbb", "cccc"]), st.integers(1, 4)), min_size=1, max_size=5)


@given(GANGS, GANGS)
def test_two_gangs_are_called_alike_where_as_many_ranks_sat_on_as_many_nodes_of_each_kind(
    one: list[tuple[str, int]], other: list[tuple[str, int]]
) -> None:
    def seats(gang: list[tuple[str, int]]) -> Any:
        return Counter(gang) if len({kind for kind, _ in gang}) > 1 else {kind for kind, _ in gang}

    assert (rows.joined(one) == rows.joined(other)) == (seats(one) == seats(other))
    assert rows.joined(one) == rows.joined(one[::-1])
    assert rows.digests(rows.joined(one)) == sorted({kind for kind, _ in one})


def on_kinds(trial: TrialConfig, *kinds: str) -> TrialRecord:
    """The ranks that sit on a kind are on one node of it."""
    made = measured(trial, nodes="".join(kind[0] for kind in kinds), software="sw")
    places = zip(made.outcome.granted, kinds, strict=True)
    granted = tuple(dataclasses.replace(place, hardware=kind) for place, kind in places)
    return dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, granted=granted))


def test_three_ranks_on_a_fast_node_and_one_on_a_slow_one_are_not_one_and_three() -> None:
    trial = config(gpus=4)
    three, one = on_kinds(trial, "v100", "v100", "v100", "p100"), on_kinds(trial, "v100", "p100", "p100", "p100")
    found = [rows.row(record) for record in (three, one, on_kinds(trial, "v100", "p100", "v100", "v100"))]
    assert [row["hardware"] for row in found] == [
        "p100*1x1+v100*1x3", "p100*1x3+v100*1x1", "p100*1x1+v100*1x3",
    ]  # fmt: skip
    assert {row["arrangement"] for row in found} == {"1x3+1x1"}
    assert {row["software"] for row in found} == {"sw"}
    assert sorted(analysis.cells(analysis.frame(found))["n"]) == [1, 2], "they are never averaged"


@pytest.mark.parametrize("hardware", ["p100*1x3+v100*1x1", "p100+v100", "v100"])
def test_what_another_mixture_of_nodes_has_measured_is_not_used_again(hardware: str) -> None:
    """The second is how earlier versions said it, of any numbers of ranks."""
    trial = dataclasses.replace(config(gpus=4), arrangement=(3, 1))
    row = {"trial": trial.trial, "arrangement": "1x3+1x1", "software": "sw", "data_files": ""}
    row |= {"sweep": "earlier", "started_at": 1.7e9, "limited_by": "", "figures": {}}
    here = [(("v100", "sw", ""), 3), (("p100", "sw", ""), 1)]
    assert not Cache([row | {"hardware": hardware}]).outcome(trial, here)
    assert Cache([row | {"hardware": "p100*1x1+v100*1x3"}]).outcome(trial, here)
    assert Cache([row | {"hardware": "p100*1x1+v100*1x3"}]).outcome(trial, here[::-1])


def test_a_node_that_has_not_said_what_it_is_made_of_is_not_taken_for_one_like_the_others() -> None:
    trial = config(gpus=4)
    some = on_kinds(trial, "v100", "v100", "v100", "x")
    granted = (*some.outcome.granted[:3], dataclasses.replace(some.outcome.granted[3], hardware=""))
    row = rows.row(dataclasses.replace(some, outcome=dataclasses.replace(some.outcome, granted=granted)))
    assert row["hardware"] == "unknown*1x1+v100*1x3"


def test_a_sweep_that_goes_on_knows_what_cached_gangs_on_unlike_nodes_were_measured_with() -> None:
    cached = Cached(sweep="old", measured_at=1.0, hardware="hw", software="new*1x1+old*1x3", limited_by="", figures={})
    done = measured(config(), nodes="a")
    done = dataclasses.replace(done, outcome=TrialOutcome(status="completed", kind="cached", cached=cached))
    assert not Sameness((), [done]).met(node("a", "old"))
    assert Sameness((), [done]).met(node("a", "other"))


@pytest.mark.parametrize("column", ["software", "data_files", "arrangement"])
def test_repeats_that_were_not_measured_alike_have_rows_of_their_own(column: str) -> None:
    trials = frame(repeats([100.0, 102.0], **{column: "old"}), repeats([50.0, 51.0, 52.0], **{column: "new"}))
    behind = analysis.repeats(trials, analysis.cells(trials), "images_per_s")
    assert sorted(sorted(values) for values in behind) == [[50.0, 51.0, 52.0], [100.0, 102.0]]
    table = analysis.cells(trials).set_index(column)
    assert table["n"].to_dict() == {"old": 2, "new": 3}
    assert table["images_per_s"].to_dict() == {"old": 101.0, "new": 51.0}
    assert analysis.apart(analysis.cells(trials)) == [column]
    assert analysis.best(trials)[column] == "old"
    assert {found.rule for found in doubts.of_throughput(trials)} & {"pooled", "mixed nodes"}


def test_the_largest_batch_of_one_code_is_not_that_of_another() -> None:
    old, new = ([row_of(9.0, batch_size=size, software=code) for size in sizes] for code, sizes in
                (("old", (8, 16, 32)), ("new", (8, 16))))  # fmt: skip
    found = analysis.frontier(frame(old, new)).set_index("software")
    assert found["batch_size"].to_dict() == {"old": 32, "new": 16}


def test_a_trial_that_did_run_is_not_given_what_others_are_known_to_have_had() -> None:
    table = analysis.cells(frame(repeats([100.0]), repeats([101.0, 102.0], arrangement="2x2", data_files="ff")))
    assert sorted(table["n"]) == [1, 2]


def test_the_base_of_an_efficiency_read_the_same_files() -> None:
    data = {"data": "/images"}
    one, many = repeats([100.0, 101.0], data_files="ff", **data), repeats([390.0], gpus=4, data_files="00", **data)
    assert analysis.scaling(frame(one, many)).set_index("gpus")["efficiency"].isna()[4]
    same = repeats([390.0], gpus=4, data_files="ff", **data)
    assert analysis.scaling(frame(one, same)).set_index("gpus")["efficiency"].notna()[4]


def test_the_same_word_on_another_cluster_is_not_compared() -> None:
    spread = {"gpus": 4, "placement": "spread"}
    a, b = (frame(repeats([100.0, 101.0], arrangement=form, **spread)) for form in ("2x2", "4x1"))
    (row,) = compare(a, b).cells.to_dict("records")
    assert (row["verdict"], row["why"]) == ("not comparable", "other nodes x ranks: 2x2 in A, 4x1 in B")
    assert compare(a, a).compared == 1


def test_placements_that_are_under_study_are_compared_with_what_they_came_to() -> None:
    a, b = (
        frame(repeats([100.0, 101.0], arrangement=form, gpus=4, placement=placement))
        for placement, form in (("pack", "1x4"), ("spread", "2x2"))
    )
    found = compare(a, b)
    assert found.compared == 1
    assert found.differs["arrangement"] == ("1x4", "2x2")


def test_other_files_of_the_same_name_are_not_compared_unless_data_is_under_study() -> None:
    a, b = (frame(repeats([100.0, 101.0], data="/images", data_files=files)) for files in ("ff", "00"))
    (row,) = compare(a, b).cells.to_dict("records")
    assert row["why"] == "other files of data: ff in A, 00 in B"
    elsewhere = frame(repeats([100.0, 101.0], data="/others", data_files="00"))
    assert compare(a, elsewhere).differs["data_files"] == ("ff", "00")
    assert compare(a, elsewhere).compared == 1


@pytest.mark.parametrize(
    ("gpus", "nodes", "placement", "form"),
    [
        (4, 1.0, "pack", "1x4"),
        (4, 4.0, "spread", "4x1"),
        (4, 2.0, "2x2", "2x2"),
        (6, 4.0, "spread", ""),
        (1, 1.0, "pack", "1x1"),
    ],
)
def test_of_an_older_store_an_arrangement_is_told_only_where_there_is_no_other(
    gpus: int, nodes: float, placement: str, form: str
) -> None:
    assert rows.arrangement(gpus, nodes, placement) == form


# what a sweep that goes on says


def node(name: str, software: str = "sw", code: str = "c1", **data: str) -> dict[str, Any]:
    told = {"digest": software, "python": "3.11", "code": code, "project": {"commit": name}}
    return {"node": name, "hardware": {"digest": "hw"}, "software": told, "data": {"/images": "ff", **data}}


def test_a_sweep_that_goes_on_with_other_code_says_so_once() -> None:
    done = [measured(config(repeat=n), nodes="a", software="sw") for n in range(3)]
    going = Sameness([node("a")], done)
    assert not going.met(node("a"))
    (line,) = going.met(node("a", "new", "c2"))
    assert "the code in workers/ has changed since 3 of this sweep's trials" in line
    assert "then sw; now new, on a" in line
    assert "run the file again" in line
    assert not going.met(node("b", "new", "c2"))
    assert not going.ended(measured(config(repeat=4), nodes="a", software="new"))


INFERRED = TrialOutcome(status="infeasible", kind="host memory", inferred_from="b64")


def ended(trial: TrialConfig, status: Any, kind: str = "", **places: str) -> TrialRecord:
    outcome = TrialOutcome(status=status, kind=kind, granted=on("a", **places) if places else ())
    return record(trial, outcome=outcome)


def test_a_sweep_that_goes_on_with_other_code_says_of_what_else_decides_nothing_any_more() -> None:
    made = {"software": "sw", "data_files": "ff"}
    done = [
        *(measured(reading("/images", repeat=n), nodes="a", **made) for n in range(3)),
        *(ended(reading("/images", batch_size=64, repeat=n), "infeasible", "host memory", **made) for n in range(2)),
        record(reading("/images", batch_size=128), outcome=INFERRED),
        ended(reading("/images", batch_size=256), "pruned", "hopeless", **made),
        ended(reading("/images", batch_size=512), "failed", "killed", **made),
    ]
    trial = reading("/images")
    equal = asha.equals(trial, (("a", 1),), {"a": cache.NodeContents("hw", "sw", {"/images": "ff"})})
    stood = {"trial": trial.trial, "cell": trial.cell, "equals": equal, "top1": 0.5, "taken_s": 1.0}
    arrivals = [
        *(asha.Arrival(**stood, epoch=n, is_at_rung=True, is_at_target=False) for n in range(4)),
        asha.Arrival(**stood, epoch=5, is_at_rung=False, is_at_target=True),
    ]
    (line,) = Sameness([node("a")], done, arrivals).met(node("a", "new", "c2"))
    assert "the code in workers/ has changed since 6 of this sweep's trials were (then sw; now new, on a)" in line
    assert (
        "3 completed stay in rows of their own, 2 infeasible, 1 stopped by the search, 4 places at rungs"
        " decide nothing about trials from here on" in line
    )
    (line,) = Sameness([node("a")], done, arrivals).met(node("a", **{"/images": "00"}))
    assert "the data in /images has changed since 6 of this sweep's trials were" in line
    assert "2 infeasible, 1 stopped by the search, 4 places at rungs decide nothing" in line
    (line,) = Sameness([node("a")], [], arrivals).met(node("a", "new", "c2"))
    assert "has changed since this sweep began (then sw; now new, on a): 4 places at rungs decide nothing" in line


def test_a_sweep_that_goes_on_on_other_files_says_so() -> None:
    done = [measured(reading("/images"), nodes="a", software="sw", data_files="ff")]
    (line,) = Sameness([node("a")], done).met(node("a", **{"/images": "00"}))
    assert "the data in /images has changed since 1 of this sweep's trials" in line


def test_a_rank_that_ran_what_its_node_did_not_have_is_named() -> None:
    """One that starts as a process of its own loads the files as they are by then."""
    going = Sameness()
    assert not going.met(node("a"))
    assert not going.ended(measured(config(), nodes="a", software="sw"))
    (line,) = going.ended(measured(config(repeat=1), nodes="a", software="edited"))
    assert "was changed while the sweep ran" in line
    assert not going.ended(measured(config(repeat=2), nodes="a", software="edited"))


def test_nodes_whose_data_differs_are_named() -> None:
    going = Sameness()
    assert not going.met(node("a"))
    (line,) = going.met(node("b", **{"/images": "00"}))
    assert "/images must hold the same files on every node" in line
    assert "on a and b" in line


def test_a_sweep_is_asked_of_by_its_arrangement_too() -> None:
    with pytest.raises(InputError):
        query.chosen(frame(repeats([1.0])), ["arrangements"])
    assert "arrangement" in frame(repeats([1.0]))
