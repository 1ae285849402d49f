"""`sweep plan FILE --next SWEEP`: of a plan's cells, which one to measure next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sweeps import errors
from sweeps.analysis import cells, conditions, named, plain, predict
from sweeps.errors import InputError, Mistake
from sweeps.spec import plan, space
from sweeps.spec.reading import read
from sweeps.spec.sweep_file import parse
from sweeps.text import caller, tables

SHOWN = 5
UNPLANNED = (
    "an earlier version stored {0} without its nodes, so cells it has measured may count as not measured; mend it with"
    " `{1}` where its ledger is"
)
WORTH = 0.95  # of an interval, that a trial must narrow it to


def show(file: Path, overrides: tuple[str, ...], sweep: str, form: tables.Format) -> int:
    """Order the cells by how much one more trial of each would narrow what a sweep's trials predict of the rest."""
    from sweeps.store import query

    place = caller.named(file)
    spec = parse(read(file), place, overrides)
    trials = plain(query.trials(sweep))
    nodes = query.sweep(sweep)["nodes"]
    planned = plan.plan(spec, place, nodes)
    configs = [*planned.cells.values()] or [*plan.grid(spec, nodes)]
    models = predict.fit(trials)
    if not models:
        rule = f"must have {predict.FEWEST_CELLS} cells with images/s, and say on how many nodes"
        raise InputError("plan --next", [Mistake(sweep, rule, f"{(trials['images_per_s'] > 0).sum()} trials with one")])
    table = cells(trials)
    if several := conditions(table):
        raise InputError("plan --next", [Mistake(sweep, "must have been measured alike", named(table, several))])
    if not nodes:
        print(UNPLANNED.format(sweep, caller.command("sync", sweep)), file=sys.stderr)
    shapes = predict.shapes(configs, trials)
    found = predict.next_trials(trials, shapes)
    axes = [axis for axis in [*planned.axes] if axis in found] or ["batch_size", "gpus"]
    made = found[["cell", *axes, "nodes", "is_measured", "tells", "opens", "predicts", "within", "then"]]
    if form != "table":
        tables.show(made, form)
        return errors.DONE
    if found.empty:
        print(f"{sweep} has measured every cell of {place} that its trials can tell of: there is nothing to predict")
        return errors.DONE
    written = made.head(SHOWN).assign(**{axis: made[axis].head(SHOWN).map(space.shown) for axis in axes})
    for column in ("within", "then"):
        written[column] = [f"± {value:.2%}" if value == value else "–" for value in written[column]]
    if not found["opens"].any():
        written = written.drop(columns=["tells", "opens"])
    tables.show(written, "table")
    best = found.iloc[0]
    where = ", ".join(f"{axis} {space.shown(best[axis])}" for axis in axes)
    again = " once more" if best["is_measured"] else ""
    print(f"\nNext: {where}{again}: {_gained(best)}")
    for model in models:
        print(_describe(model))
    return errors.DONE


def _gained(best: Any) -> str:
    if best["opens"]:
        return (
            f"{best['opens']} of the cells not measured depend on {best['tells'].replace(', ', ' and ')}, which no"
            f"\ntrial of the sweep has shown: nothing is predicted of them before. It is the smallest that shows it."
        )
    if best["within"] != best["within"]:
        return "but no single trial shows all that the cells not measured depend on"
    gained = (
        f"narrows the images/s predicted of {best['predicts']} cells, on average"
        f"\nfrom ± {best['within']:.2%} to ± {best['then']:.2%}"
    )
    if best["then"] <= WORTH * best["within"]:
        return gained
    return f"{gained}\nThat is little: what is left is how cells differ from the model, which no single trial changes."


def _describe(model: predict.Model) -> str:
    at = ", ".join(f"{name} {space.shown(value)}" for name, value in model.at.items())
    terms = ", ".join(
        f"{name.removesuffix('_ms').replace('_', ' ')} {ms:.3g}" for name, ms in model.terms.items() if ms
    )
    return f"  {at or 'step time'}, in ms: {terms} (fitted to {model.cells} cells, off by {model.spread:.1%})"
