"""Only what can be made again is deleted, and only when it is meant."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from sweeps.cli import gc, main
from sweeps.cli.gc import Leftover
from sweeps.errors import RefusedError
from sweeps.record import ledger, ownership
from sweeps.record.discarded import OpenRun
from sweeps.record.ledger import Ledger
from sweeps.spec import plan, sweep_file
from sweeps.store import access
from tests.unit.records import record

TEXT = "{name: old, model: tiny, device: cpu, repeats: 2, space: {batch_size: 8, gpus: 1}}"
PARTS = {"logs", "telemetry", "checkpoints", "tune"}
FORK = multiprocessing.get_context("fork")
LATER = time.time() + 100 * 86_400
FINISHED: dict[str, set[str]] = {}  # what the store is said to hold


@pytest.fixture(autouse=True)
def results(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    FINISHED.clear()

    def told(names: Collection[str]) -> dict[str, set[str]]:
        return FINISHED

    monkeypatch.setattr("sweeps.store.query.stored_trials", told)
    monkeypatch.setattr("sweeps.store.query.doubled", lambda _: Counter())
    monkeypatch.setattr("sweeps.store.access.store_name", lambda: f"sqlite:///{workplace}/mlflow.db")
    return workplace / "results"


def swept(is_told: bool = True) -> Ledger:
    """A sweep whose trials are done, still driven."""
    made = plan.plan(sweep_file.parse(TEXT, "x"))
    book = ownership.create(made, TEXT)
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
    again = ownership.reopen("old")
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
    again = ownership.reopen("old")
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


def discard(run: OpenRun | None = None) -> None:
    ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT).discard(run)


def test_what_a_driver_left_that_was_killed_while_it_discarded_its_sweep_goes_at_any_age(results: Path) -> None:
    def killed() -> None:
        shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        discard()

    driver = FORK.Process(target=killed)
    driver.start()
    driver.join()
    assert driver.exitcode == -signal.SIGKILL
    (folder,) = results.iterdir()
    (one,) = found()
    assert (one.what, one.paths) == ("old", (folder,))
    assert main.main(["gc"]) == 0
    assert folder.exists()
    assert main.main(["gc", "--yes"]) == 0
    assert [*results.iterdir()] == []


def test_what_a_living_driver_is_deleting_is_left_to_it(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Leftover] = []

    def rmtree(folder: Path, **_: object) -> None:
        assert folder.exists()
        seen.extend(found())
        assert not gc._delete(Leftover("old", (folder,), 0, 0.0, is_discarded=True))
        assert folder.exists()

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    discard()
    assert not seen
    assert len(found()) == 1, "now it is nobody's"


def test_what_only_looks_like_a_discarded_sweep_stays(results: Path, tmp_path: Path) -> None:
    names = (".mine", ".old.0123", f".old.{'x' * 32}", f"old.{'0' * 32}")
    for name in names:
        (results / name).mkdir(parents=True)
    (results / f".old.{'0' * 32}").symlink_to(tmp_path)
    assert not found()


@pytest.fixture
def forgotten(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sweeps whose runs the store was asked to delete."""
    asked: list[str] = []
    (workplace / "mlflow.db").touch()
    monkeypatch.setattr("sweeps.store.tracking.forget", lambda run, _: asked.append(run.sweep))
    return asked


def test_the_run_of_a_discarded_sweep_goes_from_the_store_before_its_folder(
    workplace: Path, results: Path, forgotten: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    discard(OpenRun("its id", f"sqlite:///{workplace}/mlflow.db", 1.0))
    assert main.main(["gc"]) == 0
    told = capsys.readouterr()
    assert "its run in MLflow" in told.out
    assert "to delete these 0.0 MiB and 1 run in MLflow: sweep gc" in told.err
    assert not forgotten
    assert main.main(["gc", "--yes"]) == 0
    assert forgotten == ["its id"]
    assert [*results.iterdir()] == []


def test_a_store_that_refuses_keeps_what_tells_of_the_run_and_holds_up_nothing_else(
    workplace: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: object) -> None:
        raise RefusedError("the run of old must go from the tracking store")

    (workplace / "mlflow.db").touch()
    swept().end("complete")
    discard(OpenRun("its id", f"sqlite:///{workplace}/mlflow.db", 1.0))
    discard()
    (results / f".gone.{'0' * 32}").mkdir()
    monkeypatch.setattr("sweeps.store.tracking.forget", away)
    assert main.main(["gc", "--older", "0", "--yes"]) == 3
    told = capsys.readouterr().err
    assert "deleted 0.0 MiB\n" in told
    assert "must go from the tracking store" in told
    assert [(one.what, one.open_run is not None) for one in found()] == [("old-2", True)]
    assert not (results / "old/logs").exists()


@pytest.mark.parametrize("why", ["another", "not there"])
def test_a_run_that_may_be_open_in_a_store_that_cannot_be_asked_is_told_of_and_waits(
    why: str, workplace: Path, results: Path, forgotten: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = "http://head:5000" if why == "another" else f"sqlite:///{workplace}/mlflow.db"
    (workplace / "mlflow.db").unlink()
    discard(OpenRun("its id", store, 1.0))
    assert main.main(["gc", "--yes"]) == 0
    told = capsys.readouterr().err
    assert why in told
    assert f"(MLFLOW_TRACKING_URI={store}): old\n" in told
    assert not forgotten
    assert len([*results.iterdir()]) == 1


def test_a_relative_address_of_a_store_is_that_of_its_folder(
    workplace: Path, results: Path, forgotten: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "store_name", lambda: "sqlite:///mlflow.db")
    (workplace / "mlflow.db").touch()
    discard(OpenRun("its id", access.store_address(), 1.0))
    monkeypatch.setenv("SWEEP_RESULTS", str(results))
    (elsewhere := workplace / "elsewhere").mkdir()
    (elsewhere / "mlflow.db").touch()
    with monkeypatch.context() as there:
        there.chdir(elsewhere)
        assert main.main(["gc", "--yes"]) == 0
    assert not forgotten, "another store has the same name there"
    assert main.main(["gc", "--yes"]) == 0
    assert forgotten == ["its id"]


def test_what_cannot_be_read_of_a_discarded_sweep_stays_and_is_told(results: Path) -> None:
    discard(OpenRun("its id", "", 1.0))
    (folder,) = results.iterdir()
    (folder / "open-run.json").write_text("{")
    assert "can't be read" in kept()
    assert folder.exists()


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
    assert main.main(["gc", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "runs that were made twice in MLflow go at any age, and so does what is left of discarded sweeps" in told
