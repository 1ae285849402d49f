"""README's table of claims: made of what was measured, and marked where that no longer holds."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import math
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import claims
import results
import run
import table
import verdicts

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

ROW = claims.ClaimRow(
    claim="how long it takes", ours="{took_s:.1f} s", peer="the others", peer_figures="{theirs_s:.1f} s"
)
SECOND = claims.ClaimRow(peer="one more", peer_figures="{more_s:.1f} s", last="{times:.0f}×")
CLAIM = claims.Claim(
    benchmark="it", code=("code",), rows=(ROW, SECOND), notes=("Always said.", "It took {took_s:.2f} s.")
)
OTHER = claims.Claim(benchmark="other", code=("code",), rows=(claims.ClaimRow(claim="another", ours="{n:.0f}"),))
FIGURES = {"took_s": 1.25, "theirs_s": 5.0, "more_s": 7.5, "times": 6.0}
SCRIPT = '"""What it measures."""\nN = 1\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two benchmarks and the code that they measure."""
    for name in ("benchmarks/it.py", "benchmarks/other.py", "code/one.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    return tmp_path


def measured(tree: Path, claim: Any = CLAIM, **fields: Any) -> Any:
    planted = results.Result(
        figures=FIGURES if claim is CLAIM else {"n": 3}, bounds={"took_s": "<= 2"}, met=True, unmet=(), arguments=(),
        run="2026-11-22T01:00:00Z", date="2026-11-22T01:10:00Z", took_s=60.0, commit="abc1234", machine="2 cores",
        busy_before=0.0, code=results.digests(claim, tree),
    )  # fmt: skip
    return dataclasses.replace(planted, **fields)


def said(*args: Any) -> str:
    """All in one line."""
    return " ".join(table.made(*args).split())


def rows(tree: Path, result: Any) -> list[str]:
    """The lines of the claim."""
    text = table.made({"it": result} if result else {}, (CLAIM,), tree)
    return [line for line in text.splitlines() if line.startswith("|")][2:]


# README, the words and the benchmarks of this project


def test_readme_has_the_table_that_the_results_and_the_code_make() -> None:
    text = (ROOT / table.README).read_text()
    assert text == table.replaced(text, table.made(results.read())), "run `make claims`, and look at what it marks"


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
def test_the_code_of_each_claim_is_there(claim: Any) -> None:
    assert results.digests(claim).keys() >= {claim.script, *(name for name in claim.code if "." in name)}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_with_all_its_figures_each_claim_is_written_out_in_four_columns(claim: Any) -> None:
    full = measured(ROOT, claim, figures=dict.fromkeys(claim.quoted(), 1234.5678))
    text = table.made({claim.benchmark: full}, (claim,))
    assert "{" not in text
    assert table.NOT_MEASURED not in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {5}


def source(module: str, root: Path) -> str:
    """The file of one of the project's modules, and of what a benchmark calls its neighbour; empty for any other."""
    inside = Path(*module.split("."))
    names = (inside.with_suffix(".py"), inside / "__main__.py", inside / "__init__.py")
    candidates = [*(names if module.partition(".")[0] in OWN else ()), Path("benchmarks") / f"{module}.py"]
    return next((path.as_posix() for path in candidates if (root / path).is_file() and does_something(root / path)), "")


def does_something(path: Path) -> bool:
    """A package's `__init__` that only says what the package is for moves no figure."""
    return path.name != "__init__.py" or len(parsed(path.read_text()).body) > 1


parsed = functools.cache(ast.parse)  # each file once, not once a claim


OWN = results.OF_THE_PROJECT


STARTED = re.compile(r"(\w+)\.py|(\w+):\w+|((?:sweeps|workers|tests)\.[\w.]+)(?::\w+)?")


def started(script: Path) -> Iterator[str]:
    """What a script may start, by any text of it that says as much: `tune_order.py`, `ready:run`, `sweeps.cli.main`."""
    for text in texts(script.read_text()):
        if said := STARTED.fullmatch(text):
            yield said[1] or said[2] or said[3]


@functools.cache
def texts(script: str) -> frozenset[str]:
    found = (node.value for node in ast.walk(parsed(script)) if isinstance(node, ast.Constant))
    return frozenset(value for value in found if isinstance(value, str))


def reached(script: str, root: Path) -> set[str]:
    """The files of the project that a benchmark imports or starts, its neighbours with what these do so too."""
    found: set[str] = set()
    left = [script]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            if name.startswith(("benchmarks/", "tests/")):
                modules = {*results.imports(root / name), *started(root / name)}
                left += [file for module in modules if (file := source(module, root))]
    return found


def missing(claim: Any, root: Path = ROOT) -> set[str]:
    return reached(claim.script, root) - {*results.digests(claim, root), *claim.beside, *claims.BESIDE}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_all_that_a_benchmark_imports_or_starts_marks_its_claim_or_is_said_to_stand_beside(claim: Any) -> None:
    assert not missing(claim), "name it in code, or in beside if it moves no figure"


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_what_stands_beside_a_claim_is_imported_and_is_none_of_its_code(claim: Any) -> None:
    assert {*claim.beside} <= reached(claim.script, ROOT)
    assert not {*claim.beside, *claims.BESIDE} & results.digests(claim).keys()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("from sweeps import one\n", "sweeps/one.py"),
        ("def f():\n    import sweeps.one\n", "sweeps/one.py"),
        ("from sweeps.one import N\n", "sweeps/one.py"),
        ("import other\n", "benchmarks/other.py"),
        ('START = ["python", "other.py"]\n', "benchmarks/other.py"),
        ('START = ["python", "-m", "sweeps.one"]\n', "sweeps/one.py"),
        ('ENTRY = "sweeps.one:run"\n', "sweeps/one.py"),
        ("import third\n", "sweeps/one.py"),
    ],
)
def test_an_import_that_a_claim_does_not_name_is_found(tree: Path, script: str, found: str) -> None:
    (tree / "sweeps").mkdir()
    (tree / "sweeps" / "one.py").write_text(SCRIPT)
    (tree / "benchmarks" / "third.py").write_text("from sweeps import one\n")
    assert missing(CLAIM, tree) == set()
    (tree / "benchmarks" / "it.py").write_text(script)
    assert found in missing(CLAIM, tree)
    named = dataclasses.replace(CLAIM, code=("code", "benchmarks/third.py", "benchmarks/other.py", "sweeps/one.py"))
    assert missing(named, tree) == set()


def test_what_is_recorded_is_of_benchmarks_that_there_are() -> None:
    assert results.read().keys() <= {claim.benchmark for claim in claims.CLAIMS}


# The marks, on planted results


def test_a_claim_that_holds_has_its_figures_and_no_mark(tree: Path) -> None:
    assert rows(tree, measured(tree)) == [
        "| how long it takes | 1.2 s | the others 5.0 s |  |",
        "|  |  | one more 7.5 s | 6× |",
    ]


def test_what_was_never_run_is_not_measured(tree: Path) -> None:
    assert rows(tree, None) == [
        "| how long it takes | not measured | the others |  |",
        "|  | not measured | one more |  |",
    ]
    assert "Not measured yet: `it`." in said({}, (CLAIM,), tree)


def test_a_missed_bound_is_marked_with_the_figure_and_the_bound(tree: Path) -> None:
    missed = measured(tree, met=False, unmet=("took_s",), bounds={"took_s": "<= 1", "times": ">= 2"})
    assert rows(tree, missed)[0].startswith("| how long it takes **✗ not met: `took_s` 1.25, not ≤ 1** | 1.2 s |")


def test_a_run_that_broke_off_has_no_figures_and_is_marked(tree: Path) -> None:
    broken = measured(tree, met=False, figures={}, bounds={})
    assert rows(tree, broken)[0] == (
        "| how long it takes **✗ not met: it did not run to its end** | not measured | the others |  |"
    )


def test_changed_code_is_marked_until_it_is_as_it_was(tree: Path) -> None:
    result = measured(tree)
    (tree / "code" / "one.py").write_text("N = 2\n")
    assert "| how long it takes **(code has changed since)** | 1.2 s |" in rows(tree, result)[0]
    assert results.changed(CLAIM, result, tree) == ["code/one.py"]
    (tree / "code" / "one.py").write_text(SCRIPT)
    assert "**" not in rows(tree, result)[0]


@pytest.mark.parametrize("edit", ["benchmarks/it.py", "code/new.py"])
def test_an_edit_of_the_benchmark_or_a_new_file_among_its_code_is_a_change(tree: Path, edit: str) -> None:
    result = measured(tree)
    (tree / edit).write_text("N = 2\n")
    assert results.changed(CLAIM, result, tree) == [edit]


def test_a_file_that_is_gone_is_a_change(tree: Path) -> None:
    (tree / "code" / "two.py").write_text(SCRIPT)
    result = measured(tree)
    (tree / "code" / "two.py").unlink()
    assert results.changed(CLAIM, result, tree) == ["code/two.py"]


def test_words_and_layout_are_no_change(tree: Path) -> None:
    result = measured(tree)
    (tree / "code" / "one.py").write_text('"""Said better."""\n\n# Why.\nN=1\n')
    assert not results.changed(CLAIM, result, tree)


def test_code_that_is_not_there_is_refused_with_its_name_and_the_cure(tree: Path) -> None:
    claim = dataclasses.replace(CLAIM, code=("code/away.py",))
    with pytest.raises(SystemExit, match=r"'code/away\.py' of it is not there: name in benchmarks/claims\.py"):
        results.digests(claim, tree)


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
    assert "**" not in rows(packed, measured(packed, packages=VERSIONS))[0]
    old = measured(packed, packages=VERSIONS | {"ray": "2.54.0", "numpy": "2.2.0", "simple-jpeg": "1.6"})
    assert rows(packed, old)[0].startswith(
        "| how long it takes **(measured with numpy 2.2.0, where the project takes <2.1,>=1.26, ray 2.54.0, where the "
        "project takes ==2.60.0, simple-jpeg 1.6, where the project takes >=1.7)** |"
    )
    (packed / "pyproject.toml").write_text(PROJECT.replace("2.60.0", "2.61.0"))
    assert "ray 2.60.0, where the project takes ==2.61.0" in rows(packed, measured(packed, packages=VERSIONS))[0]


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
    assert "(measured with keras of a version that was not kept, numpy of" in rows(packed, old)[0]


def test_the_versions_of_a_claim_are_those_that_are_installed_here(packed: Path) -> None:
    import numpy as np

    assert results.packages(CLAIM, packed).keys() == VERSIONS.keys()
    assert results.packages(CLAIM, packed)["numpy"] == np.__version__
    assert results.packages(CLAIM, packed)["simple-jpeg"] == "", "it is not installed, nor is there such a package"


@pytest.mark.parametrize(
    ("benchmark", "package"),
    [
        ("launch", "horovod"),
        ("launch", "ray"),
        ("parity", "tensorflow"),
        ("tracking", "mlflow"),
        ("intervals", "numpy"),
    ],
)
def test_the_claims_know_what_they_stand_on(benchmark: str, package: str) -> None:
    (claim,) = (one for one in claims.CLAIMS if one.benchmark == benchmark)
    assert results.packages(claim)[package]
    wrong = measured(ROOT, claim, packages=results.packages(claim) | {package: "0.1"})
    assert f"measured with {package} 0.1" in table.made({benchmark: wrong}, (claim,))


def test_a_run_with_other_arguments_is_marked_and_does_not_count_as_met(tree: Path) -> None:
    other = measured(tree, arguments=("--trials", "2"))
    assert "**(run with other arguments: --trials 2)**" in rows(tree, other)[0]
    assert "Bounds met in the last run: 0 of 1 benchmarks." in said({"it": other}, (CLAIM,), tree)


def test_a_row_whose_figures_a_run_did_not_print_is_not_measured(tree: Path) -> None:
    old = measured(tree, figures={"took_s": 1.25, "theirs_s": 5.0})
    assert rows(tree, old) == [
        "| how long it takes | 1.2 s | the others 5.0 s |  |",
        "|  | not measured | one more |  |",
    ]


def test_notes_that_quote_a_figure_wait_for_it(tree: Path) -> None:
    assert "It took" not in said({}, (CLAIM,), tree)
    assert "Always said." in said({}, (CLAIM,), tree)
    assert "It took 1.25 s." in said({"it": measured(tree)}, (CLAIM,), tree)


def test_all_bounds_count_as_met_together_only_in_one_run(tree: Path) -> None:
    def state(**fields: Any) -> str:
        found = {"it": measured(tree), "other": measured(tree, OTHER, **fields)}
        return str(re.search("Bounds met[^.]*", said(found, (CLAIM, OTHER), tree))[0])  # type: ignore[index]

    assert state() == "Bounds met in the last run: 2 of 2 benchmarks, all in one run"
    assert state(run="2026-11-21T01:00:00Z") == "Bounds met in the last run: 2 of 2 benchmarks"
    assert state(met=False, unmet=("n",), bounds={"n": "<= 2"}) == "Bounds met in the last run: 1 of 2 benchmarks"


def test_when_and_where_each_ran_is_said_once_for_those_alike(tree: Path) -> None:
    found = {"it": measured(tree), "other": measured(tree, OTHER, commit="fff0000 with changes", busy_before=0.126)}
    text = said(found, (CLAIM, OTHER), tree)
    assert "`it`: 2026-11-22, commit abc1234, 2 cores, at most 0% of it busy just before." in text
    assert "`other`: 2026-11-22, commit fff0000 with changes, 2 cores, at most 13% of it busy just before." in text
    alike = said({"it": measured(tree), "other": measured(tree, OTHER)}, (CLAIM, OTHER), tree)
    assert "`it`, `other`: 2026-11-22, commit abc1234, 2 cores" in alike


def test_the_table_replaces_what_stands_between_its_marks_and_nothing_else(tree: Path) -> None:
    readme = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    fresh = table.made({}, (CLAIM,), tree)
    assert table.replaced(readme, fresh) == f"before\n{fresh}\nafter\n"
    assert table.replaced(table.replaced(readme, fresh), fresh) == f"before\n{fresh}\nafter\n"
    with pytest.raises(SystemExit, match="once each"):
        table.replaced("no marks", fresh)


# The command that runs benchmarks


VERDICT = """
import sys
sys.path.insert(0, {benchmarks!r})
from verdicts import conclude
print("on the way")
sys.exit(conclude("it", {{"took_s": float((sys.argv[1:] or [1])[0]), **{others}}}, {{"took_s": "<= 2"}}))
"""

SKIPPED = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from verdicts import skip; skip('hosts need root')\n"


@pytest.fixture
def project(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree in which `it` comes to a verdict, and `other` ends before."""
    others = {name: figure for name, figure in FIGURES.items() if name != "took_s"}
    (tree / "benchmarks" / "it.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others=others))
    (tree / "benchmarks" / "other.py").write_text("print('on the way')\nraise SystemExit(3)\n")
    (tree / table.README).write_text(f"{table.BEGIN}\n{table.END}\n")
    (tree / results.FILE).write_text("{}")
    monkeypatch.setattr(run, "LISTENING_S", 0.01)
    return tree


def made_by(*asked: str, project: Path) -> int:
    return int(run.main(asked, (OTHER, CLAIM), project))


def test_a_run_keeps_its_figures_and_circumstances_and_makes_the_table(project: Path) -> None:
    assert made_by("it", project=project) == 0
    (result,) = results.read(project).values()
    assert result.figures == FIGURES | {"took_s": 1}
    assert result.bounds == {"took_s": "<= 2"}
    assert result.met
    assert result.arguments == ()
    assert result.code == results.digests(CLAIM, project)
    assert result.packages == results.packages(CLAIM, project)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.date)
    assert result.run <= result.date
    assert result.took_s > 0
    assert re.fullmatch(r".+ cores, \d+ GiB, Linux [\d.]+", result.machine)
    assert socket.gethostname() not in (project / results.FILE).read_text()
    readme = (project / table.README).read_text()
    assert "| how long it takes | 1.0 s | the others 5.0 s |  |" in readme
    assert readme == table.replaced(readme, table.made(results.read(project), (OTHER, CLAIM), project))


def test_one_that_breaks_off_is_kept_as_such_the_next_one_runs_and_the_end_is_a_failure(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by(project=project) == 1
    found = results.read(project)
    assert list(found) == ["it", "other"]
    assert (found["it"].met, found["other"].met, found["other"].figures) == (True, False, {})
    assert found["it"].run == found["other"].run
    assert capfd.readouterr().out.endswith("other: it did not run to its end\n")


def test_one_that_does_not_meet_its_bound_is_kept_with_its_figures_and_its_arguments(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by("it", "--", "3", project=project) == 1
    result = results.read(project)["it"]
    assert (result.met, result.unmet, result.figures["took_s"], result.arguments) == (False, ("took_s",), 3, ("3",))
    assert capfd.readouterr().out.endswith("it: took_s is 3.0, not <= 2\n")
    assert "✗ not met: `took_s` 3, not ≤ 2** **(run with other arguments: 3)**" in (project / table.README).read_text()


def test_one_that_this_machine_cannot_run_is_skipped_and_leaves_its_earlier_result(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by("it", project=project) == 0
    earlier = results.read(project)
    (project / "benchmarks" / "it.py").write_text(SKIPPED)
    (project / "benchmarks" / "other.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others={"n": 3}))
    assert made_by(project=project) == 0, "the other one was measured"
    found = results.read(project)
    assert found["it"] == earlier["it"]
    assert found["other"].met
    assert capfd.readouterr().out.endswith("it: skipped, its earlier result stays: hosts need root\nall bounds met\n")


def test_nothing_but_what_is_skipped_is_no_success(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "benchmarks" / "it.py").write_text(SKIPPED)
    assert made_by("it", project=project) == 1
    assert results.read(project) == {}
    assert capfd.readouterr().out.endswith("hosts need root\nnothing measured\n")


def test_the_shortest_comes_first_and_before_it_what_was_never_measured(tree: Path) -> None:
    found = {"it": measured(tree, took_s=60), "other": measured(tree, OTHER, took_s=3)}
    never = dataclasses.replace(CLAIM, benchmark="never")
    assert run.shortest_first((CLAIM, OTHER, never), found) == [never, OTHER, CLAIM]


def test_a_run_that_was_broken_off_goes_on_with_what_it_has_not_measured(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert made_by(project=project) == 1, "the other one breaks off"
    first = results.read(project)
    (project / "benchmarks" / "other.py").write_text(VERDICT.format(benchmarks=str(BENCHMARKS), others={"n": 3}))
    assert made_by("--go-on", project=project) == 0
    found = results.read(project)
    assert found["it"] == first["it"], "it was measured, and its code is as it was"
    assert found["other"].met
    assert found["other"].run == found["it"].run, "so they ran together"
    assert made_by("--go-on", project=project) == 0
    assert results.read(project) == found
    assert capfd.readouterr().out.endswith("nothing is left\n")


def test_going_on_measures_again_what_has_changed_since(project: Path) -> None:
    assert made_by("it", project=project) == 0
    (earlier,) = results.read(project).values()
    (project / "code" / "one.py").write_text("N = 2\n")
    assert made_by("--go-on", "it", project=project) == 0
    (again,) = results.read(project).values()
    assert again.code != earlier.code


def test_a_benchmark_that_is_started_by_hand_keeps_nothing(project: Path) -> None:
    subprocess.run([sys.executable, "benchmarks/it.py"], cwd=project, check=True, capture_output=True)
    assert results.read(project) == {}


def test_a_figure_that_readme_quotes_and_a_run_does_not_print_is_a_failure(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = project / "benchmarks" / "it.py"
    script.write_text(script.read_text().replace("'more_s'", "'less_s'"))
    assert made_by("it", project=project) == 1
    assert "it: README quotes more_s, but it prints no such figure" in capfd.readouterr().out


def test_an_unknown_name_is_refused_with_those_that_there_are(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert made_by("fast", project=project) == 2
    assert capfd.readouterr().err == "no benchmark is called 'fast'; there are other, it\n"
    assert results.read(project) == {}


def test_the_commit_is_said_with_whether_files_differ_from_it(project: Path) -> None:
    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        command = ["git", *settings, *arguments]
        return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout.strip()

    assert run.commit_at(project) == "unknown"
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    commit = git("rev-parse", "--short", "HEAD")
    assert run.commit_at(project) == commit
    (project / results.FILE).write_text('{"written": "by the run itself"}')
    (project / table.README).write_text("")
    assert run.commit_at(project) == commit
    (project / "code" / "one.py").write_text("N = 3\n")
    assert run.commit_at(project) == f"{commit} with changes"


# The verdict of a benchmark


@pytest.mark.parametrize(
    ("bound", "is_met"),
    [
        ("<= 1", True),
        ("<= 0.9", False),
        (">= 1", True),
        (">= 0.9 and <= 1.1", True),
        (">= 0.9 and <= 0.95", False),
        ("> 0.9", True),
        ("> 1", False),
    ],
)
def test_a_verdict_names_the_figures_whose_bounds_do_not_hold(
    bound: str, is_met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdicts.conclude("it", {"a": 1.0, "b": 2.0}, {"a": bound, "b": "<= 2"}) == (0 if is_met else 1)
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["met"], verdict["unmet"]) == (is_met, [] if is_met else ["a"])


def test_a_figure_that_is_no_number_meets_no_bound() -> None:
    assert verdicts.unmet({"a": math.nan}, {"a": ">= 0"}) == ["a"]
