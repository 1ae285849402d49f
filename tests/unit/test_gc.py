"""Only what can be made again is deleted, and only when it is meant."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from sweeps.cli import gc, main
from sweeps.cli.gc import Leftover
from sweeps.record import ledger
from sweeps.record.ledger import Ledger
from sweeps.spec import plan, sweep_file
from tests.unit.records import record

TEXT = "{name: old, model: tiny, device: cpu, repeats: 2, space: {batch_size: 8, gpus: 1}}"
PARTS = {"logs", "telemetry", "checkpoints", "tune"}
LATER = time.time() + 100 * 86_400
FINISHED: dict[str, set[str]] = {}  # what the store is said to hold


@pytest.fixture(autouse=True)
def results(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    FINISHED.clear()

    def told(names: Collection[str]) -> dict[str, set[str]]:
        return FINISHED

    monkeypatch.setattr("sweeps.store.query.stored_trials", told)
    monkeypatch.setattr("sweeps.store.query.doubled", lambda _: Counter())
    monkeypatch.setattr("sweeps.store.tracking.store_name", lambda: f"sqlite:///{workplace}/mlflow.db")
    return workplace / "results"


def swept(is_told: bool = True) -> Ledger:
    """A sweep whose trials are done, still driven."""
    made = plan.plan(sweep_file.parse(TEXT, "x"))
    book = ledger.create(made, TEXT)
    for config in made.trials:
        book.write(record(config))
    for part in PARTS:
        (book.paths.folder / part).mkdir()
        (book.paths.folder / part / "file").write_bytes(b"x" * 1000)
    (book.paths.folder / "report.html").write_text("page")
    if is_told:
        FINISHED[book.facts.id] = {trial.trial for trial in made.trials}
    return book


def found(days: float = 90, has_ledgers: bool = False, now: float = LATER) -> list[Leftover]:
    return gc.find(days, has_ledgers, now)[0]


def kept(now: float = LATER) -> str:
    gone, why = gc.find(90, False, now)
    assert not gone
    ((reason, names),) = why.items()
    assert names == ["old"]
    return reason


def test_parts_go_and_the_ledger_and_the_report_stay(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept().end("complete")
    (one,) = found()
    assert {path.name for path in one.paths} == PARTS
    assert one.size == 4000
    assert main.main(["gc", "--older", "0"]) == 0
    assert "nothing was deleted" in capsys.readouterr().err
    assert (results / "old/logs/file").exists()
    assert main.main(["gc", "--older", "0", "--yes"]) == 0
    assert {path.name for path in (results / "old").iterdir()} == {"ledger.jsonl", "report.html"}
    assert len(ledger.read("old").trials) == 2
    assert not found()


def test_ledgers_go_where_they_are_asked_for(results: Path) -> None:
    swept().end("complete")
    assert main.main(["gc", "--older", "0", "--ledgers"]) == 0
    assert (results / "old/ledger.jsonl").exists()
    assert main.main(["gc", "--older", "0", "--ledgers", "--yes"]) == 0
    assert not (results / "old").exists()


def test_what_is_young_driven_stopped_or_untold_stays() -> None:
    book = swept()
    assert "not complete" in kept()
    book.end("complete")
    book.close()
    assert "younger" in kept(time.time())
    assert found()
    again = ledger.reopen("old")
    assert "not complete" in kept()
    again.end("stopped")
    again.close()
    assert "not complete" in kept()


def test_a_sweep_that_ended_in_the_future_of_a_virtual_clock_is_as_old_as_now() -> None:
    swept().end("complete")
    assert found(days=0, now=time.time() - 10 * 86_400)


def test_a_trial_that_the_store_lacks_keeps_its_sweep() -> None:
    book = swept()
    book.end("complete")
    book.close()
    FINISHED[book.facts.id].pop()
    assert "lacks trials" in kept()
    FINISHED.clear()
    assert "lacks trials" in kept()


def test_a_ledger_that_cant_be_read_keeps_its_sweep(results: Path) -> None:
    swept().end("complete")
    (results / "old/ledger.jsonl").write_text("{}\n")
    assert "can't be read" in kept()


def test_links_are_not_followed(results: Path, tmp_path: Path) -> None:
    swept().end("complete")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_bytes(b"x" * 1000)
    for path in (results / "old/logs/link", results / "old/more"):
        path.symlink_to(mine)
    (results / "old/tune/file").unlink()
    (results / "old/tune").rmdir()
    (results / "old/tune").symlink_to(mine)
    (one,) = found()
    assert {path.name for path in one.paths} == PARTS - {"tune"}
    assert main.main(["gc", "--older", "0", "--ledgers", "--yes"]) == 0
    assert (mine / "file").exists()
    assert not (results / "old").exists()


def test_a_folder_of_a_sweep_that_is_a_link_stays(results: Path, tmp_path: Path) -> None:
    swept().end("complete")
    (results / "old").rename(tmp_path / "elsewhere")
    (results / "old").symlink_to(tmp_path / "elsewhere")
    assert "links" in kept()


def test_a_sweep_that_has_got_a_driver_meanwhile_stays(results: Path) -> None:
    swept().end("complete")
    (one,) = found()
    again = ledger.reopen("old")
    assert not gc._delete(one)
    assert (results / "old/logs/file").exists()
    again.end("complete")
    again.close()
    assert not gc._delete(one), "what was found before it was driven holds no longer"
    assert gc._delete(found()[0])


def test_copies_of_stores_go_and_the_store_stays(workplace: Path, results: Path) -> None:
    (results / ".stores").mkdir(parents=True)
    ours, other, store = (
        workplace / "mlflow.db-trials.parquet",
        results / ".stores/0123.parquet",
        workplace / "mlflow.db",
    )
    for path in (ours, other, store):
        path.write_bytes(b"x")
    assert {path for one in found() for path in one.paths} == {ours, other}
    assert not found(now=time.time())
    assert main.main(["gc", "--older", "0", "--yes"]) == 0
    assert [path.exists() for path in (ours, other, store)] == [False, False, True]


@pytest.mark.parametrize("days", ["-1", "nan", "inf"])
def test_days_are_a_number(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["gc", f"--older={days}"]) == 2
    assert "--older" in capsys.readouterr().err


def test_runs_that_were_made_twice_go_of_any_sweep_without_a_driver_and_only_when_it_is_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = swept(is_told=False)
    gone: list[str] = []
    monkeypatch.setattr(
        "sweeps.store.query.doubled", lambda names: Counter({book.facts.id: 2} if "old" in names else {})
    )
    monkeypatch.setattr("sweeps.store.tracking.leave_one_each", lambda facts: gone.append(facts.id))
    assert not found(), "its driver may be asking for them"
    book.end("stopped")
    book.close()
    (one,) = found()
    assert (one.sweep, one.runs, one.paths) == ("old", 2, ())
    assert main.main(["gc"]) == 0
    told = capsys.readouterr()
    assert "2 runs in MLflow made twice" in told.out
    assert "nothing was deleted; to delete these 2 runs in MLflow: sweep gc" in told.err
    assert not gone
    assert main.main(["gc", "--yes"]) == 0
    assert capsys.readouterr().err.endswith("deleted 2 runs in MLflow\n")
    assert gone == [book.facts.id]


def test_what_goes_is_told_in_mib_and_runs() -> None:
    files, runs = Leftover("x", (Path("logs"),), 3 << 19, 100.0), Leftover("x", (), 0, 0.0, runs=1)
    assert gc._amount([files]) == "1.5 MiB"
    assert gc._amount([files, runs]) == "1.5 MiB and 1 run in MLflow"


def test_the_help_says_that_runs_made_twice_go_at_any_age(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["gc", "--help"])
    assert "runs that were made twice in MLflow go at any age" in " ".join(capsys.readouterr().out.split())
