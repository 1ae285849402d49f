"""A sweep that was measured earlier, as a table whose rows are asked again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from sweeps import analysis
from sweeps.analysis import comparison, publication, reproduction, setups
from sweeps.cli import main
from sweeps.record import ledger, ownership, rows
from sweeps.run import earlier_table, reproduce
from sweeps.spec import plan, sweep_file
from tests.unit.planted_tables import sweep_of
from tests.unit.records import record

CONDITIONAL = """
name: small
model: tiny
device: cpu
space: {batch_size: [8, 16], gpus: 1, env: {X: {values: ["1", "2"], when: batch_size == 8}}}
repeats: 3
steps: {warmup: 2, measured: 5}
"""


def kept(text: str) -> ledger.SweepRecord:
    """A sweep in the results folder that was never run."""
    planned = plan.plan(sweep_file.parse(text, "small"))
    book = ownership.create(planned, text)
    for config in planned.trials:
        book.write(record(config, 1000.0 + config.batch_size + config.repeat, hardware="node"))
    book.end("complete")
    return ledger.read("small")


def test_an_earlier_sweep_whose_variable_had_a_condition_is_asked_again_cell_by_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = {trial.cell for trial in kept(CONDITIONAL).facts.trials}
    assert len(cells) == 3
    assert main.main(["reproduce", "small", "--export", "mine.csv"]) == 0
    for name in ("small", "mine.csv"):
        assert {trial.cell for trial in plan.plan(sweep_of(reproduce.find(name))).trials} == cells
    capsys.readouterr()
    assert main.main(["reproduce", "mine.csv", "--measured", "small", "--tolerance", "10%", "--format", "json"]) == 0
    assert {row["rate_verdict"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"holds"}


def test_a_sweep_that_set_a_variable_to_nothing_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kept(CONDITIONAL.replace('["1", "2"]', '["", "2"]'))
    assert main.main(["reproduce", "small"]) == 2
    assert "reproduce: small: must set env.X to something or not at all" in capsys.readouterr().err


FILE = """
name: small
model: tiny
device: cpu
image_size: 32
space: {batch_size: [8, 16], gpus: [1, 2], precision: fp32, momentum: [0.9, 0.5]}
where: gpus == 2 or momentum == 0.9
repeats: 3
steps: {warmup: 2, measured: 5}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ledger.SweepRecord:
    """A sweep in the results folder that was never run: its rates are planted."""
    monkeypatch.chdir(tmp_path)
    planned = plan.plan(sweep_file.parse(FILE, "small"))
    book = ownership.create(planned, FILE)
    for config in planned.trials:
        rate = 1000.0 * config.gpus * config.batch_size**0.1 * config.momentum * (1 + config.repeat / 500)
        book.write(record(config, rate, hardware="node"))
    book.end("complete")
    return ledger.read("small")


def test_an_earlier_sweep_against_its_own_trials_holds_in_every_row(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["reproduce", "small", "--measured", "small", "--tolerance", "10%", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 6
    assert {row["rate_verdict"] for row in found["rows"]} == {"holds"}
    assert {row["relative_verdict"] for row in found["rows"]} == {"holds", None}
    assert all(row["rate_ratio"] == pytest.approx(1, abs=1e-5) for row in found["rows"])
    assert not [one for one in found["setup"] if one["likeness"] == "differs"]


def test_an_earlier_sweep_is_asked_again_cell_by_cell(small: ledger.SweepRecord) -> None:
    again = plan.plan(sweep_of(earlier_table.table("small")))
    assert {trial.cell for trial in again.trials} == {trial.cell for trial in small.facts.trials}
    assert again.spec.name == "reproduce-small"


def test_an_earlier_sweep_whose_repeats_are_equal_is_a_table_too(small: ledger.SweepRecord) -> None:
    planned = plan.plan(sweep_file.parse(FILE.replace("name: small", "name: equal"), "equal"))
    with contextlib.closing(ownership.create(planned, FILE.replace("name: small", "name: equal"))) as book:
        for config in planned.trials:
            book.write(record(config, 1000.0))
    assert {row.half_width for row in earlier_table.table("equal").rows} == {publication.LEAST}


def test_an_earlier_sweep_takes_from_its_nodes_what_it_took_and_says_so(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "{name: taking, model: tiny, device: cpu, repeats: 2, env_from: [MY_KEY], space: {batch_size: 8, gpus: 1}}"
    book = ownership.create(plan.plan(sweep_file.parse(text, "taking")), text)
    for trial in book.facts.trials:
        book.write(record(trial))
    book.close()
    found = earlier_table.table("taking")
    again = sweep_of(found)
    assert again.env_from == ("MY_KEY",)
    judged = reproduction.reproduce(found, again, [], {trial.cell for trial in plan.plan(again).trials}, 0.05)
    told = {one.what: (one.published, one.here, one.likeness) for one in setups.aspects(found, judged, again, [], None)}
    assert told["env_from"] == ("MY_KEY", "MY_KEY", "same")
    assert main.main(["reproduce", "taking", "--export", "mine.csv"]) == 0
    assert "run it with --set env_from=[MY_KEY]" in capsys.readouterr().err


def test_a_table_that_was_exported_is_the_same_table(
    small: ledger.SweepRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["reproduce", "small", "--export", "mine.csv"]) == 0
    mine = publication.load(Path("mine.csv"))
    assert mine.rows == earlier_table.table("small").rows
    assert mine.settings == {"device": "cpu", "image_size": 32, "steps.warmup": 2, "steps.measured": 5}
    assert {row.hardware for row in mine.rows} == {"node"}
    capsys.readouterr()
    assert main.main(["reproduce", "mine.csv", "--plan"]) == 0
    out = capsys.readouterr().out
    Path("again.yaml").write_text(out)
    assert {trial.cell for trial in plan.plan(sweep_file.load(Path("again.yaml"))).trials} == {
        trial.cell for trial in small.facts.trials
    }


def test_cells_measured_on_two_machines_are_two_systems_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = plan.plan(sweep_file.parse(FILE, "small"))
    book = ownership.create(planned, FILE)
    for config in planned.trials:
        book.write(record(config, 100.0 + config.repeat, hardware="aaaa" if config.repeat else "bbbb"))
    book.end("complete")
    found = earlier_table.table("small")
    assert found.systems == ["bbbb", "aaaa"]
    assert [row.repeats for row in found.system("aaaa").rows] == [2] * 6
    assert len(plan.plan(sweep_of(found)).cells) == 6, "both are answered by the same cells"


ON_FILES = """
name: demo
model: tiny
device: cpu
data: data/demo
space: {batch_size: 8, gpus: [1, 4], placement: spread}
repeats: 3
steps: {warmup: 2, measured: 5}
"""


def read_from(name: str, files: str, nodes: str) -> ledger.SweepRecord:
    """A sweep that was never run: what it read and where each of four ranks sat is planted, and its rates."""
    text = ON_FILES.replace("name: demo", f"name: {name}")
    book = ownership.create(plan.plan(sweep_file.parse(text, name)), text)
    for config in book.facts.trials:
        made = record(config, 1000.0 * config.gpus * (1 + config.repeat / 500), hardware="node")
        granted = tuple(
            dataclasses.replace(one, node=node, data_files=files)
            for one, node in zip(made.outcome.granted, nodes, strict=False)
        )
        book.write(dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, granted=granted)))
    book.end("complete")
    return ledger.read(name)


@pytest.mark.parametrize(
    ("files", "nodes", "compared", "why"),
    [
        ("ffff", "aabb", {1, 4}, ""),
        ("0000", "aabb", set(), "other files of data: ffff in {}, 0000 {}"),
        ("ffff", "aaab", {1}, "other nodes x ranks: 2x2 in {}, 1x3+1x1 {}"),
    ],
)
def test_an_earlier_sweep_is_compared_where_diff_compares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    files: str, nodes: str, compared: set[int], why: str,
) -> None:  # fmt: skip
    """Data made again under the same name, and `spread` on other nodes, as each of two sweeps had them."""
    monkeypatch.chdir(tmp_path)
    sides = [read_from("demo", "ffff", "aabb"), read_from("again", files, nodes)]
    frames = [analysis.frame([rows.row(trial) for trial in side.trials]) for side in sides]
    cells = comparison.compare(*frames).cells
    assert {at["gpus"] for _, at in cells.iterrows() if not at["why"]} == compared
    assert {at["why"] for _, at in cells.iterrows()} - {""} == {why.format("A", "in B")} - {""}
    assert main.main(["reproduce", "demo", "--export", "demo.csv"]) == 0
    for name in ("demo", "demo.csv"):
        capsys.readouterr()
        assert main.main(["reproduce", name, "--measured", "again", "--tolerance", "10%", "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {row["gpus"] for row in found["rows"] if row["rate_verdict"] == "holds"} == compared
        assert {row["rate_why"] for row in found["rows"]} - {""} == {why.format("the table", "here")} - {""}
        assert {row["unlike"] for row in found["rows"] if row["gpus"] not in compared} <= {"data_files", "arrangement"}
        assert any(one["likeness"] == "differs" for one in found["setup"]) is bool(why)
