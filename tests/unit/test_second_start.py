"""What a second `make demo` does before its first trial, counted: nothing is made again, and no heavy library is loaded
until the sweep has said what it is."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_command_line import HEAVY
from workers.inputs import dataset

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
# As make runs them where no variable leads to a cluster.
MADE = (ROOT / "Makefile").read_text().replace(" $(HERE)", "")
DATA, RUN = (shlex.split(line) for line in re.findall(r"@\.venv/bin/sweep (.*)", MADE))
STARTS_RAY = 7
PROGRAM = f"""
import sys
from sweeps.cli import main
from sweeps.run import terms

def site(*_):  # where trials would run: here a Ray of its own begins to start
    print(*sys.modules, file=sys.stdout)
    raise SystemExit({STARTS_RAY})

terms.open_site = site
code = main.main({{words!r}})
print(*sys.modules)
sys.exit(code)
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A place where the demo's images were made before, for all that is looked at again."""
    given = dict(zip(DATA[3::2], DATA[4::2], strict=True))
    width, height = map(int, given["--size"].split("x"))
    counts = {name: int(given[f"--{name}"]) for name in ("images", "shards", "classes")}
    recipe = dataset.Recipe(**counts, width_px=width, height_px=height, seed=0, split="train")
    (folder := tmp_path / DATA[2]).mkdir(parents=True)
    for name in recipe.names:
        (folder / name).write_bytes(b"images")
    (folder / dataset.MANIFESTS["train"]).write_text(json.dumps(dataset.manifest(folder, recipe)))
    (tmp_path / "search_spaces").symlink_to(ROOT / "search_spaces")
    return tmp_path


def started(words: list[str], there: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """A command of the demo, up to its first trial; and the heavy libraries that it had loaded by then."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(words=words)],
        cwd=there, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran, {*ran.stdout.split()} & HEAVY


def test_images_that_are_there_are_not_made_again(made: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in (made / DATA[2]).iterdir()}
    ran, loaded = started(DATA, made)
    assert (ran.returncode, "nothing to do" in ran.stdout) == (0, True), ran.stderr
    assert loaded == {"numpy"}
    assert {path: path.stat().st_mtime_ns for path in (made / DATA[2]).iterdir()} == files


def test_a_sweep_has_said_what_it_is_before_anything_heavy_is_loaded(made: Path) -> None:
    ran, loaded = started(RUN, made)
    assert ran.returncode == STARTS_RAY, ran.stderr
    assert ran.stderr.startswith("demo: ")
    assert loaded == set()
    assert not (made / "results").exists(), "it has no name yet"
