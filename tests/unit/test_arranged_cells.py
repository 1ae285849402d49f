"""A cell is planned for the nodes that there are: how many ranks on how many of them is part of what it is."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps.cluster.site import Simulated
from sweeps.errors import InputError
from sweeps.record import ledger, ownership, rows
from sweeps.run import preflight
from sweeps.run.terms import Setting, Terms
from sweeps.scheduling import search
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import Plan
from sweeps.store import selection
from tests.unit.planted import frame, repeats
from tests.unit.records import config, record
from workers.contract import messages
from workers.contract.messages import TrialConfig

ONE, TWO, FOUR = ([Node(f"n{n}", 4, 0) for n in range(count)] for count in (1, 2, 4))


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
    book = ownership.create(plan.plan(sweep_file.parse(text, "x"), "x", TWO), text)
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
    with pytest.raises(InputError, match="planned as 4x1") as refusal:
        preflight.possible(going, here)
    cure = "(leave these out, or skip them with --skip-impossible)"
    assert str(refusal.value).endswith(f"planned as 4x1 (nodes x ranks) {cure}, but got 4 as spread")


def test_a_ledger_of_the_version_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    text = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: 4}}"
    book = ownership.create(plan.plan(sweep_file.parse(text, "x")), text)
    before = ledger.read("x").facts
    book.end("stopped")
    file = tmp_path / "x" / "ledger.jsonl"
    old = (
        file.read_text()
        .replace(f'"version":{ledger.VERSION}', '"version":4')
        .replace(',"arrangement":[]', "")
        .replace(',"nodes":[]', "")
    )
    assert "arrangement" not in old
    file.write_text(old)
    assert ledger.read("x").facts == before


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


def test_a_sweep_is_asked_of_by_its_arrangement_too() -> None:
    with pytest.raises(InputError):
        selection.chosen(frame(repeats([1.0])), ["arrangements"])
    assert "arrangement" in frame(repeats([1.0]))
