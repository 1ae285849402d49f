"""A rank is a GPU in words only where the sweep runs on GPUs: one place says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.errors import InputError
from sweeps.run import driver, forecast
from sweeps.run.terms import Terms
from sweeps.spec import plan, sweep_file
from tests.unit import sources

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
ROOMS = ("analysis", "report", "run", "scheduling")
OF_REAL_GPUS = {  # whatever a sweep's ranks are
    "sweeps/analysis/publication.py": "published tables are of GPUs",
    "sweeps/analysis/reproduction.py": "of a published table's row",
    "sweeps/analysis/setups.py": "what a machine has",
    "sweeps/report/cost.py": "joules that GPUs have said",
    "sweeps/report/telemetry.py": "readings of GPUs",
    "sweeps/report/trials.py": "replaced by what a rank is, and joules that GPUs have said",
    "sweeps/run/metrics.py": "counted on `device: gpu` alone",
    "sweeps/run/preflight.py": "how torch with CUDA is installed",
    "sweeps/run/reproduce.py": "what a machine has, and published rows",
    "sweeps/scheduling/growth.py": "Ray's resource",
}
TEXT = "name: x\nmodel: tiny\ndevice: {}\nspace: {{batch_size: 8, gpus: [1, 2]}}\nrepeats: 1\n"


def _texts(path: Path) -> Iterator[str]:
    """Yield every text of a file that is no docstring."""
    nodes = sources.nodes(path)
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def test_no_message_of_a_sweep_says_gpu_by_itself() -> None:
    said: dict[str, list[str]] = {}
    for room in ROOMS:
        for path in sorted((ROOT / "sweeps" / room).rglob("*.py")):
            if found := [text for text in _texts(path) if re.search(r"\bGPUs?\b", text)]:
                said[str(path.relative_to(ROOT))] = found
    assert {path: texts for path, texts in said.items() if path not in OF_REAL_GPUS} == {}
    assert said.keys() == OF_REAL_GPUS.keys(), "one that says it no more is none of the exceptions"


@pytest.mark.parametrize(("device", "rank"), [("gpu", "GPU"), ("cpu", "rank")])
def test_what_a_sweep_costs_and_has_left_is_told_in_its_own_word(device: str, rank: str) -> None:
    planned = plan.plan(sweep_file.parse(TEXT.format(device), "x"))
    assert forecast.unit(planned.spec) == f"{rank}-hours"
    with pytest.raises(InputError, match=f"must be {rank}-hours, more than 0"):
        Terms(budget=-1.0).gpu_hours(planned.spec)
    done: list[object] = [None] * planned.most
    assert f"trials on one {rank}," in driver._what_is_left(planned, done, is_over=False)  # type: ignore[arg-type]
