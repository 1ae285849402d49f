"""What code and which packages a claim rests on: all that its benchmark comes to, and a change of them marks it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import claims
import results
import table
from tests.unit.planted_claims import CLAIM, ROOT, SCRIPT, measured


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_the_code_of_each_claim_is_there(claim: Any) -> None:
    assert results.digests(claim).keys() >= {claim.script, *(name for name in claim.code if "." in name)}


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
COMMAND = ("sweep", "sweeps.cli")  # in an environment's folder of programs, and what it is
PRODUCT = ("sweeps", "workers")
HANDS_ON = "sweeps/__init__.py"  # names from every room, each when it is asked for


def started(file: Path, root: Path) -> frozenset[str]:
    """What a file may start, by any text of it that says as much: `workers.launch.fork_server`; of what is no product
    code also `tune_order.py`, `ready:run`, and the command."""
    return started_by(file.read_text(), file.relative_to(root).parts[0] in PRODUCT)


@functools.cache
def started_by(code: str, is_product: bool) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(code)):
        match node:
            case ast.Constant(value=str(text)) if said := STARTED.fullmatch(text):
                found.add(said[3] or ("" if is_product else said[1] or said[2]))
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=text)) if text == COMMAND[0] and not is_product:
                found.add(COMMAND[1])
    return frozenset(found - {""})


def reached(script: str, root: Path) -> set[str]:
    """The files of the project that a benchmark imports or starts, with what these do so too."""
    found: set[str] = set()
    left = [script]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            if name != HANDS_ON:
                modules = {*results.imports(root / name), *started(root / name, root)}
                left += [file for module in modules if (file := source(module, root))]
    return found


def is_within(file: str, places: Sequence[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


def missing(claim: Any, root: Path = ROOT) -> set[str]:
    """What is reached and is neither code of the claim nor beside it."""
    left = reached(claim.script, root) - results.digests(claim, root).keys()
    return {file for file in left if not is_within(file, (*claim.beside, *claims.BESIDE))}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_all_that_a_benchmark_comes_to_marks_its_claim_or_is_said_to_stand_beside(claim: Any) -> None:
    assert not missing(claim), "name it in code, or in beside if it moves no figure"


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_what_stands_beside_a_claim_is_reached_is_not_its_code_and_is_no_more_than_a_room(claim: Any) -> None:
    others = reached(claim.script, ROOT) - results.digests(claim).keys()
    needless = [place for place in claim.beside if not any(is_within(file, [place]) for file in others)]
    assert set(needless) <= {*claims.AROUND}
    assert all("/" in place for place in (*claim.beside, *claims.BESIDE))


@pytest.mark.parametrize(
    ("benchmark", "files"),
    [
        (
            "launch",
            (
                "sweeps/run/private_tune.py", "sweeps/run/conductor.py", "sweeps/run/executor.py",
                "sweeps/scheduling/engine.py", "sweeps/record/ledger.py", "workers/launch/preload.py",
                "workers/node/start_from_source.py", "workers/strategies/rendezvous.py", "workers/node/fingerprint.py",
            ),
        ),
        (
            "parity",
            (
                "sweeps/run/private_tune.py", "workers/launch/rank.py", "workers/node/telemetry.py",
                "workers/node/readings.py",
            ),
        ),
        (
            "overhead",
            (
                "sweeps/run/private_tune.py", "sweeps/run/driver.py", "sweeps/run/ending.py", "sweeps/report/page.py",
                "sweeps/analysis/means.py", "sweeps/run/status.py", "sweeps/run/metrics.py",
            ),
        ),
        ("agreement", ("sweeps/scheduling/packing.py", "workers/launch/gang.py")),
    ],
)  # fmt: skip
def test_a_claim_is_marked_by_each_file_that_makes_it(benchmark: str, files: tuple[str, ...]) -> None:
    (claim,) = (one for one in claims.CLAIMS if one.benchmark == benchmark)
    code = results.digests(claim)
    assert {*files} <= code.keys()
    was = measured(ROOT, claim, code=code | {files[0]: "0" * 12}, figures={}, bounds={})
    assert "† its code has changed since" in table.on_page({benchmark: was}, (claim,))


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
        ("from sweeps import two\n", "sweeps/one.py"),
        ('START = [BIN / "sweep", "run"]\n', "sweeps/cli/__main__.py"),
    ],
)
def test_an_import_that_a_claim_does_not_name_is_found(tree: Path, script: str, found: str) -> None:
    (tree / "sweeps").mkdir()
    (tree / "sweeps" / "one.py").write_text(SCRIPT)
    (tree / "sweeps" / "two.py").write_text("from sweeps.one import N\n")
    (tree / "sweeps" / "cli").mkdir()
    (tree / "sweeps" / "cli" / "__main__.py").write_text(SCRIPT)
    (tree / "benchmarks" / "third.py").write_text("from sweeps import one\n")
    assert missing(CLAIM, tree) == set()
    (tree / "benchmarks" / "it.py").write_text(script)
    assert found in missing(CLAIM, tree)
    named = dataclasses.replace(CLAIM, code=("code", "benchmarks/third.py", "benchmarks/other.py", "sweeps"))
    assert missing(named, tree) == set()


def numbers_taken(claim: Any) -> Iterator[str]:
    """The files of workers/ whose numbers a claim's code takes by their names: a rule's settings, mostly."""
    for name in results.digests(claim):
        if not name.startswith("workers/") or not name.endswith(".py"):
            continue
        for node in ast.walk(parsed((ROOT / name).read_text())):
            file = source(node.module or "", ROOT) if isinstance(node, ast.ImportFrom) else ""
            if file.startswith("workers/") and numbers(file) & {one.name for one in node.names}:
                yield file


@functools.cache
def numbers(file: str) -> frozenset[str]:
    """The names that a file gives to numbers."""
    return frozenset(
        node.targets[0].id
        for node in parsed((ROOT / file).read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, int | float)
    )


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.benchmark)
def test_a_number_that_measured_code_takes_of_another_file_marks_the_claim(claim: Any) -> None:
    """Such as the steps that must be calm before a short window is believed."""
    assert {*numbers_taken(claim)} <= results.digests(claim).keys(), "name it in code"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("parity", ["workers/measure/step_shares.py", "workers/workloads/images/work.py"]),  # in the loop
        ("parity", ["workers/launch/rank.py"]),  # the niceness of a rank
        ("parity", [f"sweeps/run/{beside}.py" for beside in ("driver", "progress", "tracker")]),
        ("agreement", ["workers/measure/step_shares.py"]),
    ],
)
def test_what_a_trial_s_images_a_second_rest_on_marks_their_claims(name: str, files: list[str]) -> None:
    (claim,) = (claim for claim in claims.CLAIMS if claim.benchmark == name)
    assert {*files} <= results.digests(claim).keys()


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
    assert f"measured with {package} 0.1" in table.on_page({benchmark: dataclasses.replace(wrong, bounds={})}, (claim,))
