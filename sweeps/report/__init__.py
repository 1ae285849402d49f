"""A sweep as one page that can be sent on: the data (`study`), the sections made of them, the page.

A section is a function from a study to its charts and tables, or to nothing where its data don't exist. Charts are
drawn here, and written as SVG or PNG, rather than by a library in the page: they print, follow the reader's colours and
are read aloud as they are; the page opens at once and weighs kilobytes where the smallest such library weighs a
megabyte.

In a training script of a user's own, `sweeps.report(loss=0.5)` is a call: this room bears the name of one.
"""

from __future__ import annotations

import datetime
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workers.contract.paths import written_whole

if TYPE_CHECKING:
    from sweeps.analysis.findings import Findings
    from sweeps.analysis.study import Study
    from sweeps.report.chart import Section
    from sweeps.store.description import Conclusion

Format = Literal["html", "png", "csv"]


def write(name: str, out: Path | None = None, form: Format = "html", store: str = "") -> Path:
    """Write a sweep's report; where it lies. PNG and CSV are a folder of one file a chart or table.

    One whose ledger is not here, or that is to be read from another `store`, comes into the current folder.
    """
    import re

    from sweeps.record import ledger

    file = "report.html" if form == "html" else f"report-{form}"
    found = _study(name, store)
    if found.stored is None:
        return written(found, out or ledger.paths(name).folder / file, form)
    return written(found, out or Path(f"{re.sub(r'[^A-Za-z0-9._-]', '_', name).lstrip('.')}-{file}"), form)


def as_text(name: str, store: str = "") -> str:
    """Return the report as one text."""
    return html(_study(name, store))


def _study(name: str, store: str) -> Study:
    """Return the study of its ledger, where it lies here; else as a tracking store knows it."""
    from sweeps.analysis import study
    from sweeps.record import ledger
    from sweeps.report import stored
    from sweeps.store import query

    if not store and (name in ledger.names() or not query.is_there()):
        return study.read(name)
    return stored.read(name, store)


def attach(name: str, file: Path, summary: Conclusion | None = None) -> str:
    """Log a report to the sweep's run in MLflow, with its first screen as the run's note (`summary`, where known);
    raises where the store does not take them. Return what is to be said of runs that may come late, if any may.

    One that was made without the ledger tells less than the run holds, and is not.
    """
    from sweeps.record import ledger
    from sweeps.store import late_runs, tracking

    if name not in ledger.names():
        return ""
    late = tracking.attach(ledger.facts(name), file, summary or conclusion(name))
    return late_runs.words(late, name) if late else ""


def conclusion(name: str) -> Conclusion:
    """Return what was found, for the sweep's own run: the report's first screen, and its findings."""
    from sweeps.analysis import study

    return concluded(study.read(name))


def concluded(study: Study, found: Findings | None = None) -> Conclusion:
    """`found`: what the study found, where that is known already: it takes most of a second."""
    from sweeps.analysis import findings
    from sweeps.report import answer
    from sweeps.store import description

    found = found or findings.find(study)
    return description.Conclusion(
        answer.markdown(answer.around(study, found)), found.tag(description.LONGEST), study.spent
    )


def written(study: Study, at: Path, form: Format = "html", found: Findings | None = None) -> Path:
    from sweeps.report import exports

    if form == "html":
        with written_whole(at) as file:
            file.write_text(html(study, found), encoding="utf-8")
    else:
        exports.write(sections(study), at, form, bool(study.facts.simulated))
    return at


def html(study: Study, found: Findings | None = None) -> str:
    from sweeps.analysis import findings
    from sweeps.report import answer, page

    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    source = f"results/{study.name}/ledger.jsonl" if study.stored is None else "the tracking store"
    made = f"Written {now} from {source}. This file needs no network."
    return page.html(
        study.name, answer.around(study, found or findings.find(study)), sections(study), study.facts.simulated, made
    )


def sections(study: Study) -> list[Section]:
    """Return the sections whose data exist, in the order of the page."""
    from sweeps.report import (
        alternatives,
        cost,
        curves,
        effects,
        feasibility,
        foresight,
        learning,
        machines,
        scaling,
        steps,
        telemetry,
        trials,
        twin,
    )

    made = [
        learning.section,
        scaling.section,
        twin.section,
        foresight.section,
        steps.section,
        curves.batch,
        curves.threads,
        alternatives.framework,
        alternatives.precision,
        cost.section,
        effects.section,
        feasibility.section,
    ]
    rest = [telemetry.section, machines.section, trials.table, trials.ends, trials.again]
    known = [] if study.measured.empty and not len(study.cells) else made
    return [section for make in (*known, *rest) if (section := make(study))]


class _Callable(types.ModuleType):
    def __call__(self, *, epoch: int | None = None, **figures: Any) -> None:
        """Say what a script has come to: see `here.report`."""
        from workers.workloads.script import here

        here.report(epoch=epoch, **figures)


sys.modules[__name__].__class__ = _Callable
