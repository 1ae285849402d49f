"""A sweep's end: what was found is worked out once for console, report and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps.analysis import findings, study
from sweeps.cluster.site import Simulated
from sweeps.record import ledger, ownership
from sweeps.run import ending
from sweeps.run.terms import Setting, Terms
from sweeps.spec import plan, sweep_file
from sweeps.store import tracking
from sweeps.store.description import Conclusion
from tests.unit.records import record

TEXT = "{name: end, model: tiny, device: cpu, repeats: 2, space: {batch_size: [8, 16], gpus: 1}}"


def test_what_was_found_is_worked_out_once_and_told_in_all_three_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path))
    planned = plan.plan(sweep_file.parse(TEXT, "x"))
    book = ownership.create(planned, TEXT)
    for config in planned.trials:
        book.write(record(config, 100.0 * config.batch_size))
    book.end("complete")
    book.close()
    calls: list[str] = []
    stored: list[tuple[Path, Conclusion]] = []

    def counted(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def once(*given: Any) -> Any:
            calls.append(module.__name__)
            return whole(*given)

        monkeypatch.setattr(module, name, once)

    counted(findings, "find")
    counted(study, "read")
    monkeypatch.setattr(tracking, "attach", lambda facts, file, told: stored.append((file, told)))
    records = ledger.read("end").trials
    ending._conclude(planned, book, records, Setting(Terms(), Simulated(()), Console(), "end"), [], "", 0.0)
    assert calls == ["sweeps.analysis.study", "sweeps.analysis.findings"]
    ((page, told),) = stored
    found = findings.find(study.read("end"))
    assert page == tmp_path / "end" / "report.html"
    assert found.answer.plain in capsys.readouterr().out
    assert found.answer.plain in told.markdown
    assert told.gpu_hours is not None
    assert "<h1" in page.read_text()
