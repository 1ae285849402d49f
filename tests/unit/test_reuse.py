"""What is reused, pooled or compared was measured by the same code, on the same data, in the same arrangement."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis
from sweeps.analysis.comparison import compare
from sweeps.analysis.findings import doubts
from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.scheduling.cache import Cache
from tests.unit.placed import measured, reading
from tests.unit.planted import frame, repeats
from tests.unit.planted import trial as row_of
from tests.unit.records import config, record
from workers.contract import datafiles, messages
from workers.contract.messages import TrialConfig
from workers.launch.rank import Provenance


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

    assert (messages.joined(one) == messages.joined(other)) == (seats(one) == seats(other))
    assert messages.joined(one) == messages.joined(one[::-1])
    assert messages.digests(messages.joined(one)) == sorted({kind for kind, _ in one})


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
