"""README's table of claims, made of `results.json` and the words in `claims`.

    python benchmarks/table.py

A claim is marked whose last run did not meet its bounds, whose run had other arguments than the benchmark's own, whose
code has changed since that run, or whose packages were of versions that the project no longer takes; what was never run
says so.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import results
from claims import CLAIMS, Claim, ClaimRow, quoted
from results import ROOT, Result

README = "README.md"
BEGIN, END = "<!-- made by make claims -->", "<!-- what make claims makes ends here -->"
HEAD = "| claim | ours | the alternative, in the same run | |\n|---|---|---|---|"
NOT_MEASURED = "not measured"
SIGNS = {"<=": "≤", ">=": "≥"}


def made(found: Mapping[str, Result], claims: Sequence[Claim] = CLAIMS, root: Path = ROOT) -> str:
    """Return what stands between README's two marks."""
    rows = [line for claim in claims for line in _rows(claim, found.get(claim.benchmark), root)]
    notes = [text for claim in claims for text in _notes(claim, found.get(claim.benchmark))]
    below = [_how(), _state(found, claims), *_runs(found, claims), *notes]
    return "\n".join(
        [
            BEGIN,
            HEAD,
            *rows,
            "",
            textwrap.fill(" ".join(below), 120, break_on_hyphens=False, break_long_words=False),
            END,
        ]
    )


def _rows(claim: Claim, result: Result | None, root: Path) -> Iterator[str]:
    marks = _marks(claim, result, root) if result else ""
    for row in claim.rows:
        cells = _cells(row, result.figures if result else {})
        yield "| " + " | ".join((f"{row.claim}{marks if row.claim else ''}", *cells)) + " |"


def _cells(row: ClaimRow, figures: Mapping[str, float]) -> tuple[str, str, str]:
    if not quoted(vars(row).values()) <= figures.keys():
        return NOT_MEASURED, row.peer, ""
    ours, peer, last = (text.format(**figures) for text in (row.ours, row.peer_figures, row.last))
    return ours, f"{row.peer} {peer}".strip(), last


def _marks(claim: Claim, result: Result, root: Path) -> str:
    marks = []
    if not result.met:
        marks.append(f"✗ not met: {_misses(result)}")
    if result.arguments:
        marks.append(f"(run with other arguments: {' '.join(result.arguments)})".replace("|", "\\|"))
    if results.changed(claim, result, root):
        marks.append("(code has changed since)")
    if packages := results.outdated(claim, result, root):
        marks.append(f"(measured with {', '.join(packages)})")
    return "".join(f" **{mark}**" for mark in marks)


def _misses(result: Result) -> str:
    if not result.figures:
        return "it did not run to its end"
    return ", ".join(f"`{name}` {result.figures[name]:.4g}, not {_bound(result.bounds[name])}" for name in result.unmet)


def _bound(text: str) -> str:
    return " ".join(SIGNS.get(word, word) for word in text.split())


def _notes(claim: Claim, result: Result | None) -> list[str]:
    figures = result.figures if result else {}
    return [text.format(**figures) for text in claim.notes if quoted([text]) <= figures.keys()]


def _how() -> str:
    return (
        "`make bench` runs all of them, `make bench ONE=launch` one; their results are kept in "
        "[results.json](benchmarks/results.json), of which `make claims` makes this table."
    )


def _state(found: Mapping[str, Result], claims: Sequence[Claim]) -> str:
    """Say how many met all their bounds, and whether they did so together."""
    last = [found[claim.benchmark] for claim in claims if claim.benchmark in found]
    good = [result for result in last if result.met and not result.arguments]
    is_together = len(good) == len(claims) and len({result.run for result in good}) == 1
    ending = ", all in one run" if is_together else ""
    return f"Bounds met in the last run: {len(good)} of {len(claims)} benchmarks{ending}."


def _runs(found: Mapping[str, Result], claims: Sequence[Claim]) -> Iterator[str]:
    """Say which ran when, on what; and which never did."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for claim in claims:
        if result := found.get(claim.benchmark):
            together.setdefault((result.machine, result.date[:10], result.commit), []).append(claim.benchmark)
    for (machine, day, commit), names in together.items():
        busy = max(found[name].busy_before for name in names)
        yield f"{_listed(names)}: {day}, commit {commit}, {machine}, at most {busy:.0%} of it busy just before."
    if never := [claim.benchmark for claim in claims if claim.benchmark not in found]:
        yield f"Not measured yet: {_listed(never)}."
    if found:
        yield "Trust the ratios more than the times."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def replaced(readme: str, section: str) -> str:
    """Return README's text with this between its marks."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise SystemExit(f"README.md must have '{BEGIN}' and '{END}' once each: put them around the table of claims")
    before, _, rest = readme.partition(BEGIN)
    return before + section + rest.partition(END)[2]


def update(claims: Sequence[Claim] = CLAIMS, root: Path = ROOT) -> None:
    """Bring README up to the results file and the code as they are."""
    file = root / README
    text = file.read_text()
    if (fresh := replaced(text, made(results.read(root), claims, root))) != text:
        file.write_text(fresh)


def main() -> int:
    found = results.read()
    for claim in CLAIMS:
        if not (result := found.get(claim.benchmark)):
            continue
        if files := results.changed(claim, result):
            print(f"{claim.benchmark}: changed since its run of {result.date[:10]}: {', '.join(files)}")
        here = results.packages(claim)
        if others := [f"{name} {was}" for name, was in result.packages.items() if was != here.get(name, was)]:
            print(f"{claim.benchmark}: measured with what is not installed here: {', '.join(others)}")
    update()
    return 0


if __name__ == "__main__":
    sys.exit(main())
