"""Runs as columns: what earlier versions wrote as words is split into the facts that it was made of."""

from __future__ import annotations

from sweeps.store import arrays
from sweeps.store.tabular import Columns, Run

EARLIER = {
    "sweep.kind": "device memory (inferred)",
    "sweep.message": "inferred from b64: out of memory: 3 GiB",
}
NOW = {"sweep.kind": "device memory", "sweep.message": "out of memory: 3 GiB", "sweep.inferred_from": "b64"}
MEASURED = {"sweep.kind": "device memory", "sweep.message": "out of memory: 3 GiB"}


def test_an_inference_of_an_earlier_version_reads_as_one_of_today() -> None:
    told = {"old": EARLIER, "new": NOW, "measured": MEASURED, "bare": {"sweep.kind": EARLIER["sweep.kind"]}, "none": {}}
    columns = Columns([Run(run, "sweeps", "FINISHED", 0, 1) for run in told])
    columns.texts("tag", [(run, key, text) for run, tags in told.items() for key, text in tags.items()])
    table = columns.table()
    kind, message, witness = (arrays.texts(table, f"tag:{name}").tolist() for name in NOW)
    assert kind == ["device memory"] * 4 + [""]
    assert message == ["out of memory: 3 GiB"] * 3 + ["", ""]
    assert witness == ["b64", "b64", "", "", ""]
    assert arrays.category(table, "tag:sweep.kind", "").categories.tolist() == ["", "device memory"]


def test_why_ranks_of_an_earlier_version_were_not_pinned_reads_as_today() -> None:
    told = {
        "old": {"sweep.pinned": "not: too few cores"},
        "new": {"sweep.why_not_pinned": "too few cores"},
        "pinned": {"sweep.pinned": "compute 0"},
        "none": {},
    }
    columns = Columns([Run(run, "sweeps", "FINISHED", 0, 1) for run in told])
    columns.texts("tag", [(run, key, text) for run, tags in told.items() for key, text in tags.items()])
    table = columns.table()
    assert arrays.texts(table, "tag:sweep.why_not_pinned").tolist() == ["too few cores"] * 2 + ["", ""]
    assert arrays.texts(table, "tag:sweep.pinned").tolist() == ["", "", "compute 0", ""]


def test_a_store_without_ends_has_no_such_columns_to_split() -> None:
    columns = Columns([Run("r", "sweeps", "FINISHED", 0, 1)])
    columns.texts("param", [("r", "gpus", "2")])
    assert arrays.texts(columns.table(), "tag:sweep.inferred_from").tolist() == [""]
    assert not [name for name in columns.table().column_names if name.startswith("tag:")], "of values alone"
