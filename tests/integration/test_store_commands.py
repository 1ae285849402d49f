"""The commands that answer from a store alone: reports of sweeps without their ledger, tables and pages."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from sweeps.analysis import findings
from sweeps.cli import main
from sweeps.record.ledger import SweepRecord
from sweeps.report import stored
from sweeps.spec import arrangements, plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.store import description, query, tracking
from tests.integration.stored_sweeps import FILE, experiment, record
from tests.unit import records
from workers.contract.messages import TrialOutcome


def test_where_no_trial_fulfils_a_condition_a_line_says_so(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    tracking.sync(record())
    assert main.main(["trials", "small", "--where", "gpus > 1000"]) == 0
    told = capfd.readouterr()
    assert "no trial of small fulfils --where gpus > 1000" in told.err
    assert main.main(["trials", "smal"]) == 2
    assert "did you mean small?" in capfd.readouterr().err


def test_where_there_is_no_sweep_a_line_says_so(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["list"]) == 0
    assert capfd.readouterr().out == "there are no sweeps yet\n"
    assert main.main(["list", "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


def test_a_sweep_without_its_ledger_is_reported_from_the_store(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracking.sync(record(_1=TrialOutcome(status="failed", kind="killed", message="killed by signal 9")))
    assert main.main(["report", "small"]) == 0
    assert capfd.readouterr().out.strip() == "small-report.html"
    page = (tmp_path / "small-report.html").read_text()
    for said in ("ade from the tracking store alone", "Left out", "killed by signal 9", "8 trials of 4 cells"):
        assert said in page, said
    assert 'id="scaling"' in page
    assert "ledger.jsonl" not in page
    assert not (tmp_path / "results").exists(), "no folder that a sweep of this name would stumble over"
    assert main.main(["report", "small", "--format", "csv", "--out", "figures"]) == 0
    table = pd.read_csv("figures/every-trial.csv")
    assert table["trial"].tolist() == query.trials("small")["trial"].tolist()
    assert main.main(["report", "small", "--format", "png"]) == 0
    assert list(Path("small-report-png").glob("*.png"))

    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
        assert main.main(["report", "small"]) == 2
        assert "must hold the sweep named" in capfd.readouterr().err
        assert not Path("none.db").exists()
    assert main.main(["report", "smal"]) == 2
    assert "did you mean small?" in capfd.readouterr().err
    assert main.main(["report", "../small"]) == 2
    (parent,) = (run for run in MlflowClient().search_runs([experiment("small")]) if run.info.run_name == "small")
    cut = f"```yaml\n{FILE[:20]}{description.CUT}\n```"
    MlflowClient().set_tag(parent.info.run_id, "mlflow.note.content", "edited by hand")
    assert main.main(["report", "small"]) == 0, "its file is an artifact"
    shutil.rmtree(MlflowClient().get_run(parent.info.run_id).info.artifact_uri.removeprefix("file://"))
    for text, got in (("edited by hand", "another note"), (cut, "a part of it")):
        MlflowClient().set_tag(parent.info.run_id, "mlflow.note.content", text)
        assert main.main(["report", "small"]) == 2
        said = capfd.readouterr().err
        assert (
            "must have the sweep's file, as an artifact of its run or in its note, to be reported without its ledger,"
            f" but got {got}" in said
        )


def test_a_sweep_that_only_the_store_knows_has_the_cells_that_it_was_planned_with(store: str) -> None:
    file = FILE.replace("gpus: [1, 2]", "gpus: [1, 2, 4], placement: [pack, spread]")
    nodes = [Node("a", 4, 0), Node("b", 4, 0), Node("big", 8, 2, "V100")]
    planned = plan.plan(sweep_file.parse(file, "small"), "small", nodes)
    facts = dataclasses.replace(record().facts, file=file, trials=planned.trials, nodes=tuple(nodes))
    ended = tuple(records.record(config, 100.0) for config in planned.trials)
    tracking.sync(SweepRecord(facts, ended, is_complete=True))
    found = stored.read("small")
    assert found.facts.trials == planned.trials
    assert {trial.trial for trial in found.facts.trials} == {*query.trials("small")["trial"]}
    assert plan.places_alike(found.plan, 4, "pack") == plan.places_alike(planned, 4, "pack") == ["pack"]
    assert arrangements.described(found.facts.nodes) == arrangements.described(nodes)
    assert "Planned for no nodes" not in " ".join(findings.find(found).lines())


@pytest.mark.parametrize("has_artifacts", [True, False])
def test_what_was_set_on_the_command_line_is_told_as_it_was_given(store: str, has_artifacts: bool) -> None:
    overrides = ("batch_size=[8, 16]", "repeats=1")  # with a blank
    planned = plan.plan(sweep_file.parse(FILE, "small", overrides), "small")
    facts = dataclasses.replace(record().facts, overrides=overrides, trials=planned.trials)
    ended = tuple(records.record(config, 100.0) for config in planned.trials)
    tracking.sync(SweepRecord(facts, ended, is_complete=True))
    if not has_artifacts:
        shutil.rmtree(MlflowClient().get_run(query.sweep("small")["run"]).info.artifact_uri.removeprefix("file://"))
    found = stored.read("small")
    assert (found.facts.overrides, found.facts.trials) == (overrides, planned.trials)
    assert found.facts.file == (FILE if has_artifacts else FILE.strip("\n"))


def test_of_a_store_that_does_not_tell_the_nodes_that_is_said_and_a_sync_tells_them(store: str) -> None:
    older = record()
    tracking.sync(older)
    found = stored.read("small")
    assert found.facts.nodes == ()
    assert "Planned for no nodes: an earlier version stored it" in " ".join(findings.find(found).lines())
    facts = dataclasses.replace(older.facts, nodes=(Node("a", 4, 0),))
    tracking.sync(dataclasses.replace(older, facts=facts), description.Conclusion("## Found", "[]"))
    assert query.sweep("small")["nodes"] == (Node("node-0", 4, 0),)


def test_the_page_of_an_unknown_sweep_is_refused_with_the_near_names(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tracking.sync(record())
    assert main.main(["ui", "smal"]) == 2
    assert "must hold a sweep of that name (did you mean small?), but got smal" in capsys.readouterr().err


def test_an_unknown_sweep_is_refused_with_those_that_are_there_where_the_store_is_asked_by_name(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a server: it is asked for the runs of that name alone."""
    monkeypatch.setattr(query.database, "is_database", lambda uri: False)
    tracking.sync(record())
    assert main.main(["trials", "else"]) == 2
    assert "must hold a sweep of that name (there: small), but got else" in capsys.readouterr().err


def test_a_named_store_that_can_not_answer_is_the_one_that_is_refused(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["trials", "small", "--store", "http://127.0.0.1:1"]) == 3
    said = capsys.readouterr().err
    assert "http://127.0.0.1:1" in said.splitlines()[1]
    assert store not in said
    assert "choose another one with --store" in said


def test_a_list_leaves_out_what_all_sweeps_have_alike(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    tracking.sync(record())
    assert main.main(["list"]) == 0
    head, line = capsys.readouterr().out.splitlines()[:2]
    assert head.split()[:3] == ["sweep", "status", "trials"]
    assert "small" in line
    assert "store" not in head
