"""README's table of claims, and the page behind it, made of `results.json` and the words in `claims`.

    python benchmarks/table.py

A row is there once its figures were measured. A sign marks a claim whose last run did not meet its bounds, whose code
has changed since that run, or which rests on a run that is no measure of it: one with other arguments than the
benchmark's own, on a machine that others used, or with packages of versions that the project no longer takes. The page
(`benchmarks/README.md`) says why, when and where each ran, and what its figures leave out.
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
PAGE = "benchmarks/README.md"
BEGIN, END = "<!-- made by make claims -->", "<!-- what make claims makes ends here -->"
HEAD = "| claim | ours | the alternative, in the same run | |\n|---|---|---|---|"
MISSED, CHANGED, DOUBTFUL = "✗", "†", "‡"
MEANING = {
    MISSED: "a bound was not met",
    CHANGED: "its code has changed since",
    DOUBTFUL: "not measured as it should be",
}
NAMED = 8  # files that have changed, at most
SIGNS = {"<=": "≤", ">=": "≥"}

Found = Mapping[str, Result]
Claims = Sequence[Claim]
Marks = Sequence[tuple[str, str]]  # each sign with its reason


def in_readme(found: Found, claims: Claims = CLAIMS, root: Path = ROOT) -> str:
    """Return what stands between README's two marks."""
    marks = {claim.benchmark: _marks(claim, found.get(claim.benchmark), root) for claim in claims}
    rows = [row for claim in claims for row in _rows(claim, found.get(claim.benchmark), marks[claim.benchmark])]
    return "\n".join([BEGIN, HEAD, *rows, "", _filled([*_legend(marks), _state(found, claims, root), _how()]), END])


def on_page(found: Found, claims: Claims = CLAIMS, root: Path = ROOT) -> str:
    """Return what stands between the page's two marks: a part for each benchmark."""
    parts = [_part(claim, found.get(claim.benchmark), root) for claim in claims]
    return "\n\n".join([BEGIN, *parts, END])


def _rows(claim: Claim, result: Result | None, marks: Marks) -> Iterator[str]:
    figures = result.figures if result else {}
    signs = "".join(f" {sign}" for sign in dict(marks))
    for row in claim.rows:
        if quoted(vars(row).values()) <= figures.keys():
            cells = f"{row.claim}{signs if row.claim else ''}", *_cells(row, figures)
            yield "| " + " | ".join(cells) + " |"


def _cells(row: ClaimRow, figures: Mapping[str, float]) -> tuple[str, str, str]:
    ours, peer, last = (text.format(**figures) for text in (row.ours, row.peer_figures, row.last))
    return ours, f"{row.peer} {peer}".strip(), last


def _marks(claim: Claim, result: Result | None, root: Path) -> list[tuple[str, str]]:
    if not result:
        return []
    marks = []
    if not result.met:
        marks.append((MISSED, f"not met: {_misses(result)}"))
    if results.changed(claim, result, root):
        marks.append((CHANGED, MEANING[CHANGED]))
    if result.arguments:
        marks.append((DOUBTFUL, f"run with other arguments: {' '.join(result.arguments)}"))
    if why := results.disturbed(result):
        marks.append((DOUBTFUL, why))
    if packages := results.outdated(claim, result, root):
        marks.append((DOUBTFUL, f"measured with {', '.join(packages)}"))
    return marks


def _misses(result: Result) -> str:
    if not result.figures:
        return "it did not run to its end"
    return ", ".join(f"`{name}` {result.figures[name]:.4g}, not {_bound(result.bounds[name])}" for name in result.unmet)


def _bound(text: str) -> str:
    return " ".join(SIGNS.get(word, word) for word in text.split())


def _legend(marks: Mapping[str, Marks]) -> Iterator[str]:
    seen = {sign for of_claim in marks.values() for sign, _ in of_claim}
    if told := [f"{sign} {meaning}" for sign, meaning in MEANING.items() if sign in seen]:
        yield f"{'; '.join(told)}."


def _how() -> str:
    return (
        "`make bench` runs all of them, `make bench ONE=launch` one, and makes this table of what it keeps in "
        "[results.json](benchmarks/results.json). [When and where each ran, its bounds, and what it leaves out]"
        f"({PAGE}). Trust a ratio more than the times that it is made of, and no further than its spread."
    )


def _state(found: Found, claims: Claims, root: Path) -> str:
    """Say how many claims hold, and whether one run on one machine has shown them all."""
    last = [(claim, found[claim.benchmark]) for claim in claims if claim.benchmark in found]
    good = [result for claim, result in last if results.is_good(claim, result, root)]
    is_whole = len(good) == len(claims) and len({(result.run, result.machine) for result in good}) == 1
    ending = ", all in one run" if is_whole else ""
    never = [claim.benchmark for claim in claims if not (one := found.get(claim.benchmark)) or not one.figures]
    words = f"Bounds met by the code as it is: {len(good)} of {len(claims)} benchmarks{ending}."
    return f"{words} Not measured yet: {', '.join(f'`{name}`' for name in never)}." if never else words


def _part(claim: Claim, result: Result | None, root: Path) -> str:
    """Say when and where a benchmark ran, its marks, its bounds and its notes."""
    head = f"## {claim.benchmark}"
    if not result:
        return f"{head}\n\nNot measured yet."
    lines = [f"- {sign} {why}." for sign, why in _marks(claim, result, root)]
    lines += [
        f"- `{name}` {result.figures[name]:.4g}, bound {_bound(bound)}"
        for name, bound in result.bounds.items()
        if name in result.figures
    ]
    texts = [text.format(**result.figures) for text in claim.notes if quoted([text]) <= result.figures.keys()]
    return "\n\n".join([head, _filled([_run(result)]), *(["\n".join(lines)] if lines else []), *map(_wrapped, texts)])


def _run(result: Result) -> str:
    took = f"{result.took_s / 60:.0f} minutes" if result.took_s >= 90 else f"{result.took_s:.0f} s"
    busy = f"{result.busy_before:.0%} of it busy just before"
    return f"{result.date[:10]}, {took}, commit {result.commit}, {result.machine}; {busy}{_pace(result)}."


def _pace(result: Result) -> str:
    if not result.pace_before_ms:
        return ""
    uneven, slower = results.unevenness(result), results.slowness(result)
    return f", its pace even to {uneven:.0%} and {slower:.0%} slower than at its best"


def _filled(sentences: Sequence[str]) -> str:
    return _wrapped(" ".join(sentences))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def replaced(text: str, section: str, file: str = README) -> str:
    """Return a file's text with this between its marks."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{file} must have '{BEGIN}' and '{END}' once each: put them around what is made")
    before, _, rest = text.partition(BEGIN)
    return before + section + rest.partition(END)[2]


def update(claims: Claims = CLAIMS, root: Path = ROOT) -> None:
    """Bring README and the page up to the results file and the code as they are."""
    found = results.read(root)
    for name, section in ((README, in_readme(found, claims, root)), (PAGE, on_page(found, claims, root))):
        file = root / name
        text = file.read_text()
        if (fresh := replaced(text, section, name)) != text:
            file.write_text(fresh)


def main() -> int:
    found = results.read()
    for claim in CLAIMS:
        if not (result := found.get(claim.benchmark)):
            continue
        if files := results.changed(claim, result):
            more = f" and {len(files) - NAMED} others" if len(files) > NAMED else ""
            print(f"{claim.benchmark}: changed since its run of {result.date[:10]}: {', '.join(files[:NAMED])}{more}")
        here = results.packages(claim)
        if others := [f"{name} {was}" for name, was in result.packages.items() if was != here.get(name, was)]:
            print(f"{claim.benchmark}: measured with what is not installed here: {', '.join(others)}")
    update()
    return 0


if __name__ == "__main__":
    sys.exit(main())
