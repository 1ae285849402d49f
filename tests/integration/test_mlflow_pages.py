"""MLflow's own web pages of a sweep, in a real browser: what `sweep ui NAME` names shows what it should.

`MLFLOW_PICTURES=folder` keeps the pictures, to be looked at.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps import report
from sweeps.record.ledger import SweepRecord
from sweeps.store import query, saved_views, tracking
from tests.integration import browser
from tests.integration.test_tracking_server import Server
from tests.unit import studies

SWEEP = """
name: pages
model: resnet50
device: gpu
space:
  batch_size: [64, 128]
  gpus: [1, 2, 4]
  precision: [fp32, fp16]
steps: {warmup: 10, measured: 20}
repeats: 2
"""
TRIALS = 24
TOLD = "(document.body?.innerText ?? '').replace(/\\s+/g, ' ')"  # by a page, which begins without a body


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, blank: Path) -> Iterator[dict[str, str]]:
    """The addresses of a sweep's pages, at a server that holds it."""
    if reason := browser.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("store")
    shutil.copy(blank, folder)
    store = f"sqlite:///{folder / 'mlflow.db'}"
    study = studies.simulated(SWEEP, "nodes=1,gpus=4,gpu=v100")
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("MLFLOW_TRACKING_URI", store)
        tracking.sync(SweepRecord(study.facts, study.records, is_complete=True), report.concluded(study))
        place = query.place("pages")
        server = Server(store)
        server.start()
    yield saved_views.addresses(server.uri, *place)
    server.kill()


@pytest.fixture
def page() -> Iterator[browser.Page]:
    with browser.page(2000, 1300) as made:
        yield made


def keep(page: browser.Page, name: str) -> None:
    if folder := os.environ.get("MLFLOW_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.picture(Path(folder) / f"{name}.png")


def test_the_table_has_the_sweeps_trials_the_fastest_first_and_what_matters_beside_them(
    pages: dict[str, str], page: browser.Page
) -> None:
    page.visit(pages["trials"], f"{TOLD}.includes('{TRIALS} matching runs')")
    headings = "[...document.querySelectorAll('.ag-header-cell')].sort((a, b) => a.getBoundingClientRect().left - "
    headings += "b.getBoundingClientRect().left).map(cell => cell.innerText.trim())"
    page.wait(f"{headings}.includes('precision')")
    keep(page, "trials")
    found = page.run(headings)
    begin = found.index("axis/batch_size")
    assert found[begin : begin + 4] == ["axis/batch_size", "axis/gpus", "precision", "images_per_s"]
    assert "×4 fp16" in page.run("document.querySelector('[row-index=\"0\"]').innerText")


def test_the_charts_of_its_study_are_drawn(pages: dict[str, str], page: browser.Page) -> None:
    drawn = "document.querySelectorAll('.js-plotly-plot .scatterlayer .point').length"
    page.visit(pages["charts"], f"{drawn} >= {2 * TRIALS}")
    page.wait(f"{TOLD}.includes('axis/gpus vs. images_per_s_per_gpu')")
    keep(page, "charts")
    told = page.run(TOLD)
    for title in ("The study", "Parallel Coordinates", "axis/gpus vs. images_per_s", "axis/batch_size vs."):
        assert title in told
    assert not [error for error in page.errors if "shared view" in error]


def test_the_sweeps_own_run_says_what_was_found(pages: dict[str, str], page: browser.Page) -> None:
    page.visit(pages["verdict"], f"{TOLD}.includes('trains fastest')")
    keep(page, "verdict")
    told = page.run(TOLD)
    assert "Simulated on nodes=1,gpus=4,gpu=v100: nothing was measured" in told
