"""What is written is read back; a crash costs at most the line it tore; nothing is written over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sweeps.errors import InputError, RefusedError
from sweeps.record import ledger, ownership
from sweeps.spec import plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import record
from workers.contract.messages import TrialOutcome

TEXT = "{name: study, model: tiny, device: cpu, repeats: 2, space: {batch_size: [8, 16], gpus: 1}}"


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def fresh() -> tuple[plan.Plan, ledger.Ledger]:
    made = plan.plan(sweep_file.parse(TEXT, "x"))
    return made, ownership.create(made, TEXT, ("gpus=1",))


def test_a_sweep_reads_back_as_it_was_written() -> None:
    made, book = fresh()
    written = [record(config) for config in made.trials]
    for one in written:
        book.write(one)
    book.end("complete")
    read = ledger.read("study")
    assert read.facts == book.facts
    assert read.trials == tuple(written)


def test_what_a_sweep_measures_may_become_known_after_it_has_begun() -> None:
    sketch, book = fresh()
    nodes = [Node("a", 4, 0), Node("b", 4, 0)]
    known = plan.plan(sketch.spec, nodes=nodes)
    book.plan(known)
    book.write(record(known.trials[0]))
    read = ledger.read("study")
    assert (read.facts.trials, list(read.facts.nodes), read.facts.id) == (known.trials, nodes, book.facts.id)
    assert read.facts.trials != sketch.trials  # they have an arrangement now
    assert len(read.trials) == 1
    assert ledger.facts("study") == read.facts


def test_a_torn_last_line_is_left_out() -> None:
    made, book = fresh()
    book.write(record(made.trials[0]))
    book.write(record(made.trials[1]))
    text = book.paths.ledger.read_bytes()
    for cut in range(1, 60, 7):
        book.paths.ledger.write_bytes(text[:-cut])
        assert len(ledger.read("study").trials) == 1


def test_a_second_sweep_of_a_study_gets_the_next_name(results: Path) -> None:
    assert [fresh()[1].facts.name for _ in range(3)] == ["study", "study-2", "study-3"]
    assert set(ledger.names()) == {"study", "study-2", "study-3"}


@pytest.mark.parametrize("torn", [None, b"", b'{"kind":"swe'])
def test_a_driver_that_was_killed_before_its_first_line_leaves_the_name_free(results: Path, torn: bytes | None) -> None:
    (results / "study").mkdir(parents=True)
    if torn is not None:
        (results / "study" / "ledger.jsonl").write_bytes(torn)
    _, book = fresh()
    assert book.facts.name == "study"
    assert ledger.read("study").facts == book.facts


def test_a_folder_that_holds_something_else_keeps_its_name(results: Path) -> None:
    (results / "study").mkdir(parents=True)
    (results / "study" / "notes.txt").write_text("mine")
    assert fresh()[1].facts.name == "study-2"


def test_an_unknown_sweep_names_those_there_are() -> None:
    fresh()
    with pytest.raises(InputError, match=r"\(there: study\), but got studdy"):
        ledger.read("studdy")
    with pytest.raises(InputError, match=r"letters, digits"):
        ledger.read("../etc")


def test_a_ledger_of_another_version_is_refused() -> None:
    _, book = fresh()
    first, *rest = book.paths.ledger.read_text().splitlines(keepends=True)
    book.paths.ledger.write_text(json.dumps(json.loads(first) | {"version": 99}) + "\n" + "".join(rest))
    with pytest.raises(InputError, match="version: must be 4 or 5 or 6; what wrote it reads it, but got 99"):
        ledger.read("study")


def test_a_full_disk_is_refused_in_words_and_keeps_what_was_written() -> None:
    made, book = fresh()
    book.write(record(made.trials[0]))
    book._file.close()
    book._file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(RefusedError, match="No space left on device") as refused:
        book.write(record(made.trials[1]))
    assert refused.value.exit_code == 3
    assert len(ledger.read("study").trials) == 1


def test_a_results_folder_that_can_t_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", "/proc/nowhere")
    with pytest.raises(RefusedError, match="results folder must be writable"):
        fresh()


def test_a_sweep_that_can_t_be_begun_leaves_no_folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RefusedError, match="No space left"):
        fresh()
    assert list(results.iterdir()) == []


def test_a_line_that_is_no_json_is_named() -> None:
    _, book = fresh()
    with book.paths.ledger.open("a") as file:
        file.write("rubbish\n")
    with pytest.raises(InputError, match=r"ledger.jsonl:3: a ledger holds JSON lines, but got b'rubbish"):
        ledger.read("study")


def test_a_ledger_has_one_driver_at_a_time_and_goes_on_behind_its_last_whole_line() -> None:
    made, book = fresh()
    book.write(record(made.trials[0]))
    with pytest.raises(RefusedError, match=rf"one driver at a time, but process {os.getpid()} on .* drives study"):
        ownership.reopen("study")
    book.close()  # as the death of a driver does
    with book.paths.ledger.open("ab") as torn:
        torn.write(b'{"kind": "tri')
    again = ownership.reopen("study")
    again.write(record(made.trials[1]))
    assert len(ledger.read("study").trials) == 2


def test_only_a_sweep_of_which_nothing_has_begun_may_be_discarded() -> None:
    made, book = fresh()
    book.note("node", {"node": "n0"})
    assert book.is_blank
    book.start(made.trials[0], at=1.0)
    assert not book.is_blank, "it has held GPUs"
    book.end("stopped")
    book.close()
    assert not ownership.reopen("study").is_blank


def test_a_sweep_of_which_only_results_were_used_again_is_not_blank() -> None:
    made, book = fresh()
    book.write(record(made.trials[0]))
    assert not book.is_blank


def test_a_full_disk_is_told_with_the_cure_that_keeps_what_was_measured() -> None:
    made, book = fresh()
    book._file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(RefusedError, match="then run again"):
        book.end("stopped")
    _, other = fresh()
    other.write(record(made.trials[0]))
    other._file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(RefusedError, match="then sweep resume study-2"):
        other.end("stopped")


def test_what_can_t_be_deleted_is_left_without_hiding_why_the_sweep_was_refused(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a file that is open can't be deleted, nor the folder that holds it."""
    _, book = fresh()
    was_open: list[bool] = []

    def rmtree(_: Path, ignore_errors: bool = False) -> None:
        was_open.append(not book._file.closed)
        if not ignore_errors:
            raise OSError(39, "Directory not empty")

    monkeypatch.setattr("shutil.rmtree", rmtree)
    book.discard()
    assert was_open == [False]
    assert [path.name.startswith(".study.") for path in results.iterdir()] == [True]
    assert ledger.names() == [], "it is no sweep"


def test_a_sweep_that_goes_while_one_looks_which_are_there_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh()
    _, going = fresh()
    is_file = Path.is_file

    def looked(path: Path) -> bool:
        found = is_file(path)
        if path == going.paths.ledger:
            going.discard()
        return found

    monkeypatch.setattr(Path, "is_file", looked)
    assert ledger.names() == ["study"]


def test_a_ledger_of_before_names_were_changed_is_read() -> None:
    text = TEXT.replace("repeats: 2", "repeats: 2, deadlines: {fork_server_s: 9}")
    made = plan.plan(sweep_file.parse(text, "x"))
    book = ownership.create(made, text)
    ended = TrialOutcome(status="failed", kind="no fork server", message="it did not answer")
    book.write(record(made.trials[0], outcome=ended))
    lines = book.paths.ledger.read_text()
    book.paths.ledger.write_text(lines.replace("fork_server_s", "nursery_s").replace("no fork server", "no nursery"))
    read = ledger.read("study")
    assert "nursery_s" in read.facts.file
    assert (read.facts.trials, read.facts.spec.deadlines.fork_server_s) == (made.trials, 9)
    assert [one.outcome for one in read.trials] == [ended]


def test_an_inference_of_an_earlier_ledger_has_its_witness() -> None:
    planned, book = fresh()
    inferred = TrialOutcome(status="infeasible", kind="device memory", message="3 GiB: too little", inferred_from="b64")
    book.write(record(planned.trials[0], outcome=inferred))
    lines = book.paths.ledger.read_text()
    told = '"kind":"device memory","message":"3 GiB: too little","inferred_from":"b64",'
    earlier = '"kind":"device memory (inferred)","message":"inferred from b64: 3 GiB: too little",'
    assert lines.count(told) == 1
    book.paths.ledger.write_text(lines.replace(told, earlier))
    assert [one.outcome for one in ledger.read("study").trials] == [inferred]
