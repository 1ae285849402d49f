"""What may import what. Reads the imports; runs nothing but one bare `import sweeps`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each heavy library has named homes; nobody else imports it.
HOMES = {
    "ray.tune": {"sweeps.runner"},
    "ray": {
        "sweeps.checkup",
        "sweeps.cluster",
        "sweeps.metering",
        "sweeps.service",
        "sweeps.runner",
        "sweeps.steward",
        "workers.group",
    },
    "mlflow": {"sweeps.bulk", "sweeps.tracking", "sweeps.remote"},
    "optuna": {"sweeps.search"},
    "horovod": {"workers.ring", "workers.nursery", "workers.probe"},
}
SWEEPS_MAY_USE = {
    "workers",
    "workers.checkup",
    "workers.contract",
    "workers.datafiles",
    "workers.group",
    "workers.paths",
    "workers.redact",
    "workers.schedules",
    "workers.sentinel",
    "workers.student",
    "workers.toolkit",
    "workers.usage",
}

SIMULATOR_MAY_USE = {  # what judges a real rank's steps, so that it judges simulated ones too; none needs TensorFlow
    "workers.explain",
    "workers.pinning",
    "workers.precision",
    "workers.rank",
    "workers.steady",
    "workers.throughput",
}


def modules() -> list[str]:
    files = [path for room in ("sweeps", "workers") for path in (ROOT / room).rglob("*.py")]
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files)


def imports(module: str) -> set[str]:
    """Every module that this one imports, wherever in the file, TYPE_CHECKING blocks included."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{name.name}" for name in node.names}
            found |= {node.module} | (whole & set(modules())) | ({"ray.tune"} & whole)
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("module", modules())
def test_imports_follow_the_rules_of_direction(module: str) -> None:
    for name in imports(module):
        if is_within(module, "workers"):
            assert not is_within(name, "sweeps"), "the data plane knows nothing of the control plane"
        elif is_within(name, "workers"):
            simulates = is_within(module, "sweeps.simulator") and name in SIMULATOR_MAY_USE
            assert name in SWEEPS_MAY_USE or simulates, f"{name} is the data plane's own"
        if is_within(module, "sweeps"):
            assert not is_within(name, "tensorflow")
            assert not is_within(name, "keras")
        for library, homes in HOMES.items():
            if is_within(name, library):
                assert module in homes, f"{library} is at home in {', '.join(sorted(homes))}"
                break


def test_what_both_sides_use_needs_only_the_standard_library() -> None:
    for module in (
        "workers.contract",
        "workers.datafiles",
        "workers.paths",
        "workers.redact",
        "workers.schedules",
        "workers.knobs",
        "workers.toolkit",
    ):
        for name in imports(module):
            assert name.split(".")[0] in {*sys.stdlib_module_names, "workers"}, (module, name)


@pytest.mark.parametrize("command", [["-c", "import sweeps"], ["-m", "sweeps.cli", "plan", "search_spaces/demo.yaml"]])
def test_planning_loads_no_heavy_library(command: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert loaded
    assert not loaded & {"ray", "tensorflow", "mlflow", "pandas", "horovod", "numpy", "optuna"}
