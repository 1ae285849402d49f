"""README's table of claims: made of what was measured, and marked where that no longer holds."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import claims
import results
import table
from tests.unit.planted_claims import BENCHMARKS, CLAIM, FIGURES, OTHER, ROOT, SCRIPT, measured


def said(*args: Any) -> str:
    """What README and the page say, in one line."""
    return " ".join((table.in_readme(*args) + table.on_page(*args)).split())


def rows(tree: Path, result: Any) -> list[str]:
    """The lines of the claim."""
    text = table.in_readme({"it": result} if result else {}, (CLAIM,), tree)
    return [line for line in text.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize(("file", "make"), [(table.README, table.in_readme), (table.PAGE, table.on_page)])
def test_readme_and_the_page_are_what_the_results_and_the_code_make(file: str, make: Callable[[Any], str]) -> None:
    text = (ROOT / file).read_text()
    assert text == table.replaced(text, make(results.read())), "run `make claims`, and look at what it marks"


def scripts() -> Iterator[Path]:
    """Those that come to a verdict."""
    for path in sorted(BENCHMARKS.glob("*.py")):
        names = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if is_plain_call(node)}
        if "conclude" in names:
            yield path


def is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_each_benchmark_has_its_rows_in_readme_and_each_row_its_benchmark() -> None:
    assert sorted(path.stem for path in scripts()) == sorted(claim.benchmark for claim in claims.CLAIMS)


def test_the_first_row_of_a_benchmark_has_a_claim_which_its_marks_stand_at() -> None:
    assert all(claim.rows and claim.rows[0].claim for claim in claims.CLAIMS)


def patterns(script: str) -> list[re.Pattern[str]]:
    """What the keys of a script's dictionaries can be: a field of an f-string can be anything."""
    keys = []
    for node in ast.walk(ast.parse(script)):
        match node:
            case ast.Dict():
                keys += node.keys
            case ast.DictComp():
                keys.append(node.key)
            case ast.Subscript(ctx=ast.Store()):
                keys.append(node.slice)
    return [re.compile(text) for text in map(pattern, keys) if text.replace(".+", "")]


def pattern(key: ast.AST | None) -> str:
    match key:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr():
            return "".join(".+" if isinstance(part, ast.FormattedValue) else pattern(part) for part in key.values)
    return ""


def unprinted(claim: Any, script: str) -> set[str]:
    """The quoted figures that no key of the script's can be."""
    return {name for name in claim.quoted() if not any(known.fullmatch(name) for known in patterns(script))}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_each_figure_that_readme_quotes_is_one_that_its_benchmark_prints(claim: Any) -> None:
    assert claim.quoted()
    assert not unprinted(claim, (ROOT / claim.script).read_text())


def test_a_figure_that_no_benchmark_prints_is_found() -> None:
    script = 'figures = {"took_s": 1, f"{x}_over_y": 2}\nfigures["theirs_s"] = 3\n'
    assert unprinted(CLAIM, script) == {"more_s", "times"}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_with_all_its_figures_each_claim_is_written_out_in_four_columns(claim: Any) -> None:
    full = measured(ROOT, claim, figures=dict.fromkeys(claim.quoted(), 1234.5678))
    text = table.in_readme({claim.benchmark: full}, (claim,))
    assert "{" not in text
    assert sum(line.startswith("|") for line in text.splitlines()) == 2 + len(claim.rows)
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {5}


def test_what_is_recorded_is_of_benchmarks_that_there_are() -> None:
    assert results.read().keys() <= {claim.benchmark for claim in claims.CLAIMS}


def test_a_claim_that_holds_has_its_figures_and_no_mark(tree: Path) -> None:
    assert rows(tree, measured(tree)) == [
        "| how long it takes | 1.2 s | the others 5.0 s |  |",
        "|  |  | one more 7.5 s | 6× |",
    ]


def test_what_was_never_run_is_not_claimed(tree: Path) -> None:
    assert rows(tree, None) == []
    assert "Not measured yet: `it`." in said({}, (CLAIM,), tree)


def test_a_missed_bound_is_marked_with_the_figure_and_the_bound(tree: Path) -> None:
    missed = measured(tree, met=False, unmet=("took_s",), bounds={"took_s": "<= 1", "times": ">= 2"})
    assert rows(tree, missed)[0].startswith("| how long it takes ✗ | 1.2 s |")
    assert "✗ a bound was not met. " in said({"it": missed}, (CLAIM,), tree)
    assert "- ✗ not met: `took_s` 1.25, not ≤ 1." in said({"it": missed}, (CLAIM,), tree)
    assert "- `times` 6, bound ≥ 2" in said({"it": missed}, (CLAIM,), tree)


def test_a_run_that_broke_off_has_no_figures_and_is_told(tree: Path) -> None:
    broken = measured(tree, met=False, figures={}, bounds={})
    assert rows(tree, broken) == []
    text = said({"it": broken}, (CLAIM,), tree)
    assert "Not measured yet: `it`." in text
    assert "- ✗ not met: it did not run to its end." in text


def test_changed_code_is_marked_until_it_is_as_it_was(tree: Path) -> None:
    result = measured(tree)
    (tree / "code" / "one.py").write_text("N = 2\n")
    assert "| how long it takes † | 1.2 s |" in rows(tree, result)[0]
    assert results.changed(CLAIM, result, tree) == ["code/one.py"]
    (tree / "code" / "one.py").write_text(SCRIPT)
    assert "†" not in rows(tree, result)[0]


PROJECT = """
[project]
dependencies = ["ray[tune]==2.60.0", "numpy>=1.26,<2.1"]
[dependency-groups]
dev = ["Simple_JPEG>=1.7"]
"""


@pytest.fixture
def packed(tree: Path) -> Path:
    """The tree, with code that imports packages of the project and one that it does not name."""
    (tree / "pyproject.toml").write_text(PROJECT)
    (tree / "code" / "one.py").write_text(
        "import os\nimport numpy as np\ndef f():\n    from ray import tune\n    import simple_jpeg, keras.layers\n"
    )
    return tree


VERSIONS = {"keras": "3.15.1", "numpy": "2.0.2", "ray": "2.60.0", "simple-jpeg": ""}


def test_a_package_of_a_version_that_the_project_no_longer_takes_is_marked(packed: Path) -> None:
    assert "‡" not in rows(packed, measured(packed, packages=VERSIONS))[0]
    old = measured(packed, packages=VERSIONS | {"ray": "2.54.0", "numpy": "2.2.0", "simple-jpeg": "1.6"})
    assert rows(packed, old)[0].startswith("| how long it takes ‡ |")
    assert (
        "- ‡ measured with numpy 2.2.0, where the project takes <2.1,>=1.26, ray 2.54.0, where the project takes"
        " ==2.60.0, simple-jpeg 1.6, where the project takes >=1.7."
    ) in said({"it": old}, (CLAIM,), packed)
    (packed / "pyproject.toml").write_text(PROJECT.replace("2.60.0", "2.61.0"))
    now = measured(packed, packages=VERSIONS)
    assert "ray 2.60.0, where the project takes ==2.61.0" in said({"it": now}, (CLAIM,), packed)


def test_a_package_that_no_code_of_the_claim_imports_marks_nothing(packed: Path) -> None:
    result = measured(packed, packages=VERSIONS | {"mlflow": "1.0"})
    assert results.outdated(CLAIM, result, packed) == []


def test_an_entry_from_before_versions_were_kept_is_read_and_marked(packed: Path) -> None:
    results.write({"it": measured(packed)}, packed)
    entries = json.loads((packed / results.FILE).read_text())
    del entries["it"]["packages"]
    (packed / results.FILE).write_text(json.dumps(entries))
    (old,) = results.read(packed).values()
    assert old.figures == FIGURES
    assert "measured with keras of a version that was not kept, numpy of" in said({"it": old}, (CLAIM,), packed)


def test_the_versions_of_a_claim_are_those_that_are_installed_here(packed: Path) -> None:
    import numpy as np

    assert results.packages(CLAIM, packed).keys() == VERSIONS.keys()
    assert results.packages(CLAIM, packed)["numpy"] == np.__version__
    assert results.packages(CLAIM, packed)["simple-jpeg"] == "", "it is not installed, nor is there such a package"


def test_a_run_with_other_arguments_is_marked_and_does_not_count_as_met(tree: Path) -> None:
    other = measured(tree, arguments=("--trials", "2"))
    assert rows(tree, other)[0].startswith("| how long it takes ‡ |")
    assert "- ‡ run with other arguments: --trials 2." in said({"it": other}, (CLAIM,), tree)
    assert "by the code as it is: 0 of 1 benchmarks." in said({"it": other}, (CLAIM,), tree)


def test_a_row_whose_figures_a_run_did_not_print_is_not_claimed(tree: Path) -> None:
    old = measured(tree, figures={"took_s": 1.25, "theirs_s": 5.0})
    assert rows(tree, old) == ["| how long it takes | 1.2 s | the others 5.0 s |  |"]


def test_notes_that_quote_a_figure_wait_for_it(tree: Path) -> None:
    assert "It took" not in said({}, (CLAIM,), tree)
    assert "Always said." in said({"it": measured(tree, figures={}, bounds={})}, (CLAIM,), tree)
    assert "It took 1.25 s." in said({"it": measured(tree)}, (CLAIM,), tree)


def test_all_bounds_count_as_met_together_only_in_one_run_on_one_machine_by_the_code_as_it_is(tree: Path) -> None:
    def state(**fields: Any) -> str:
        found = {"it": measured(tree), "other": measured(tree, OTHER, **fields)}
        return str(re.search("Bounds met[^.]*", said(found, (CLAIM, OTHER), tree))[0])  # type: ignore[index]

    words = "Bounds met by the code as it is:"
    assert state() == f"{words} 2 of 2 benchmarks, all in one run"
    assert state(run="2026-11-21T01:00:00Z") == f"{words} 2 of 2 benchmarks"
    assert state(machine="4 cores") == f"{words} 2 of 2 benchmarks"
    assert state(met=False, unmet=("n",), bounds={"n": "<= 2"}) == f"{words} 1 of 2 benchmarks"
    assert state(code={"benchmarks/other.py": "0f0f"}) == f"{words} 1 of 2 benchmarks"
    assert state(busy_before=0.5) == f"{words} 1 of 2 benchmarks"


def test_a_run_beside_others_is_marked_with_the_reason(tree: Path) -> None:
    beside = measured(tree, busy_before=0.506)
    assert rows(tree, beside)[0].startswith("| how long it takes ‡ | 1.2 s |")
    assert "- ‡ 51% of the machine was busy just before." in said({"it": beside}, (CLAIM,), tree)
    assert not results.is_good(CLAIM, beside, tree)


def test_the_best_pace_of_a_machine_is_remembered_from_run_to_run(tree: Path) -> None:
    earlier = [
        measured(tree, machine=machine, pace_best_ms=best) for machine, best in (("2 cores", 8.0), ("4 cores", 3))
    ]
    now = ((10.0, 12.0), (9.0, 9.0))
    assert results.best_pace_ms(now, "2 cores", "0f0f", []) == 9.0
    assert results.best_pace_ms(now, "2 cores", "0f0f", earlier) == 8.0, "of this machine"
    assert results.best_pace_ms(now, "2 cores", "1e1e", earlier) == 9.0, "an other computation says nothing of this one"


def test_a_machine_that_shows_later_how_fast_it_can_be_tells_it_of_what_it_measured_before(tree: Path) -> None:
    results.write({"it": measured(tree), "other": measured(tree, OTHER, pace_best_ms=5.0)}, tree)
    assert results.slowness(results.read(tree)["it"]) == pytest.approx(1.02)
    results.write({"it": measured(tree), "other": measured(tree, OTHER, pace_best_ms=5.0, machine="4 cores")}, tree)
    assert results.slowness(results.read(tree)["it"]) < 0.02


def test_when_and_where_each_ran_is_said(tree: Path) -> None:
    found = {"it": measured(tree), "other": measured(tree, OTHER, commit="fff0000 with changes", busy_before=0.126)}
    text = said(found, (CLAIM, OTHER), tree)
    pace = "its pace even to 2% and 1% slower than at its best."
    assert f"## it 2026-11-22, 60 s, commit abc1234, 2 cores; 0% of it busy just before, {pace}" in text
    changed = "2026-11-22, 60 s, commit fff0000 with changes, 2 cores"
    assert f"## other {changed}; 13% of it busy just before, {pace}" in text


def test_the_table_replaces_what_stands_between_its_marks_and_nothing_else(tree: Path) -> None:
    readme = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    fresh = table.in_readme({}, (CLAIM,), tree)
    assert table.replaced(readme, fresh) == f"before\n{fresh}\nafter\n"
    assert table.replaced(table.replaced(readme, fresh), fresh) == f"before\n{fresh}\nafter\n"
    with pytest.raises(SystemExit, match="once each"):
        table.replaced("no marks", fresh)
