"""What may import what, and who may use what Ray keeps to itself. Reads the files; runs nothing but one bare
`import sweeps`."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.cluster import private_ray
from tests.unit import sources

ROOT = Path(__file__).parents[2]

# The rooms of each plane, lowest first: a room imports what stands before it, and itself.
ORDER = {
    "sweeps": [
        "errors",
        "text",
        "spec",
        "record",
        "scheduling",
        "simulator",
        "analysis",
        "store",
        "report",
        "cluster",
        "run",
        "cli",
    ],
    "workers": ["contract", "node", "strategies", "inputs", "frameworks", "checks", "measure", "workloads", "launch"],
}
# What the control plane may use of the data plane: the contract and what is pure, and by room a little more.
ACROSS = {"contract", "measure"}
ACROSS_BY_ROOM = {
    "": {"workloads"},  # what a script of a user's calls: `sweeps.steps`
    "cli": {"inputs"},  # sets of images are made and checked there
    "cluster": {"checks", "node"},  # the doctor's questions
    "report": {"checks", "workloads"},  # `sweeps.report` is a call too
    "run": {"checks", "launch"},  # a gang is started there
    "simulator": {"node", "frameworks", "workloads"},  # what judges a real rank's steps judges simulated ones too
}
# Each heavy library has its homes; nobody else imports it.
OF_TENSORFLOW = {
    "workers.frameworks.tensorflow",
    "workers.strategies.horovod",
    "workers.inputs",
    "workers.checks.gpu_self_test",
    "workers.checks.machine_facts",
    "workers.launch.fork_server",
}
HOMES = {
    "ray.tune": {"sweeps.run.private_tune", "sweeps.run.ray_tune"},
    "ray": {"sweeps.cluster", "sweeps.run.metrics", "sweeps.run.ray_tune", "sweeps.run.private_tune", "workers.launch"},
    "mlflow": {"sweeps.store"},
    "optuna": {"sweeps.scheduling.search"},
    "horovod": {"workers.strategies.horovod", "workers.launch.fork_server", "workers.checks.machine_facts"},
    "tensorflow": OF_TENSORFLOW,
    "keras": OF_TENSORFLOW,
    "torch": {"workers.frameworks.torch", "workers.strategies.ddp", "workers.launch.fork_server"},
    "cv2": {"workers.inputs.plain"},
    "simplejpeg": {"workers.inputs.plain"},
}

# Each framework's package, and the libraries that are the framework: a rank of one holds no other.
FRAMEWORKS = {
    "tensorflow": {"workers.frameworks.tensorflow", "tensorflow", "keras"},
    "torch": {"workers.frameworks.torch", "torch"},
}

# What Ray keeps to itself has these homes, and tests/integration/test_private_names.py. All else uses public Ray: these
# of its modules, and these variables of the environment, each with the page of its documentation that names it.
PRIVATE = {"sweeps.cluster.private_ray", "sweeps.run.private_tune"}
PUBLIC = {
    "ray",
    "ray.autoscaler.sdk",
    "ray.job_submission",
    "ray.tune",
    "ray.tune.schedulers",
    "ray.tune.search",
    "ray.util.metrics",
    "ray.util.placement_group",
    "ray.util.scheduling_strategies",
}
DOCUMENTED = {
    "RAY_ADDRESS": "ray-core/starting-ray",
    "RAY_AIR_NEW_OUTPUT": "tune/api/doc/ray.tune.RunConfig (verbose)",
    "RAY_API_SERVER_ADDRESS": "cluster/running-applications/job-submission/quickstart",
    "RAY_AUTH_MODE": "ray-security/token-auth",
    "RAY_DEDUP_LOGS": "ray-observability/user-guides/configure-logging",
    "RAY_HEAD_IP": "cluster/vms/references/ray-cluster-configuration",
    "RAY_ROTATION_BACKUP_COUNT": "ray-observability/user-guides/configure-logging",
    "RAY_ROTATION_MAX_BYTES": "ray-observability/user-guides/configure-logging",
    "RAY_USAGE_STATS_ENABLED": "cluster/usage-stats",
    "RAY_enable_autoscaler_v2": "cluster/kubernetes/user-guides/configuring-autoscaling",
    "RAY_memory_monitor_refresh_ms": "ray-core/scheduling/ray-oom-prevention",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "tune/api/env",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "tune/api/env",
    "TUNE_GLOBAL_CHECKPOINT_S": "tune/api/env",
    "TUNE_MAX_PENDING_TRIALS_PG": "tune/api/env",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "tune/api/env",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER": "tune/api/env",
}
VARIABLE = re.compile(r"\b(?:RAY|TUNE)_\w+")
ON_NODES = ("scripts/node", "scripts/setup", "scripts/loopback/sitecustomize.py", "cluster.yaml", "clusters/aws.yaml")


@functools.cache
def modules() -> list[str]:
    files = [path for room in ("sweeps", "workers") for path in (ROOT / room).rglob("*.py")]
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files)


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one imports, wherever in the file, TYPE_CHECKING blocks included."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    for node in sources.nodes(source):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{name.name}" for name in node.names}
            parts = whole & {*modules(), "ray.tune"}
            found |= parts if parts == whole else parts | {node.module}
    return found


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def room(module: str) -> str:
    return (*module.split("."), "")[1]


@pytest.mark.parametrize("module", modules())
def test_imports_follow_the_rules_of_direction(module: str) -> None:
    plane, own = module.split(".")[0], room(module)
    for name in imports(module) & {*modules()}:
        if is_within(name, plane):
            rooms = ORDER[plane]
            assert not own or not room(name) or rooms.index(room(name)) <= rooms.index(own), f"{name} is above {own}"
        else:
            assert plane == "sweeps", "the data plane knows nothing of the control plane"
            assert room(name) in ACROSS | ACROSS_BY_ROOM.get(own, set()), f"{name} is the data plane's own"
    for name in imports(module):
        for library, homes in HOMES.items():
            if is_within(name, library):
                assert any(is_within(module, home) for home in homes), f"{library} is at home in {', '.join(homes)}"
                break


@pytest.mark.parametrize("plane", ORDER)
def test_every_room_is_in_the_order_and_nothing_lies_beside_them(plane: str) -> None:
    found = {path.stem for path in (ROOT / plane).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found == {*ORDER[plane], "__init__"}


def test_no_import_leads_back_to_where_it_began() -> None:
    graph = {module: imports(module) & {*modules()} - {module} for module in modules()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


def test_a_class_name_is_used_once() -> None:
    found: dict[str, list[str]] = {}
    for path in (path for folder in ("sweeps", "workers", "benchmarks") for path in (ROOT / folder).rglob("*.py")):
        for node in sources.nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


@pytest.mark.parametrize("own", FRAMEWORKS)
def test_a_framework_imports_no_other(own: str) -> None:
    package = [module for module in modules() if is_within(module, f"workers.frameworks.{own}")]
    others = {name for other in FRAMEWORKS.keys() - {own} for name in FRAMEWORKS[other]}
    assert any(is_within(name, own) for module in package for name in imports(module))
    for module in package:
        found = {name for name in imports(module) for other in others if is_within(name, other)}
        assert not found, (module, found)


def test_what_trains_on_images_knows_no_framework() -> None:
    frameworks = (
        "workers.frameworks.tensorflow",
        "workers.frameworks.torch",
        "tensorflow",
        "keras",
        "torch",
        "horovod",
    )
    for module in (name for name in modules() if is_within(name, "workers.workloads.images")):
        found = {name for name in imports(module) for framework in frameworks if is_within(name, framework)}
        assert not found, (module, found)


def test_the_contract_needs_only_the_standard_library() -> None:
    for module in (name for name in modules() if is_within(name, "workers.contract")):
        for name in imports(module):
            allowed = name.split(".")[0] in sys.stdlib_module_names or is_within(name, "workers.contract")
            assert allowed or name == "workers", (module, name)


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import sweeps"],
        ["-m", "sweeps.cli", "--help"],
        ["-m", "sweeps.cli", "plan", "search_spaces/demo.yaml"],
    ],
)
def test_planning_loads_no_heavy_library(command: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert loaded
    assert not loaded & {"ray", "tensorflow", "torch", "mlflow", "pandas", "horovod", "numpy", "optuna"}


def from_ray(tree: ast.Module) -> set[str]:
    """Every module of Ray's that a file imports, or imports from; `from ray import _raylet` is one too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages = ("ray", "ray.tune", "ray.util", "ray.autoscaler")  # of which modules are taken by name
            found |= {
                f"{node.module}.{name.name}"
                if name.name.startswith("_") or (node.module in packages and name.name.islower())
                else node.module
                for name in node.names
            }
    return {name for name in found if is_within(name, "ray")}


def of_others(tree: ast.Module) -> Iterator[str]:
    """Underscored names that a file takes of what it has not made itself, or gives as an argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.keyword) and (node.arg or "").startswith("_"):
            yield str(node.arg)


def texts(tree: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def private_uses(tree: ast.Module) -> list[str]:
    """What a file of ours takes of Ray that Ray keeps to itself."""
    found = sorted(from_ray(tree) - PUBLIC)
    said = texts(tree)
    if from_ray(tree):
        found += [*of_others(tree), *(text for text in said if re.fullmatch(r"_[a-z]\w+", text))]
    named = {name for text in said for name in VARIABLE.findall(text)} - DOCUMENTED.keys()
    hidden = {text for text in said if re.search(r"\bray(\.\w+)*\._|\b_raylet\b|__internal_", text)}
    undocumented = private_ray.VARIABLES & said
    return [*found, *sorted(named | hidden | undocumented)]


@pytest.mark.parametrize("module", sorted(set(modules()) - PRIVATE))
def test_what_ray_keeps_to_itself_stays_in_its_files(module: str) -> None:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = private_uses(sources.tree(source))
    assert not found, f"{', '.join(found)}: these belong in sweeps/cluster/private_ray.py or private_tune.py"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from ray import _raylet", "ray._raylet"),
        ("import ray._private.worker", "ray._private.worker"),
        ("def f():\n    from ray._private import state", "ray._private"),
        ("from ray.tune.execution.tune_controller import TuneController", "ray.tune.execution.tune_controller"),
        ("from ray.tune import tune as tune_module", "ray.tune.tune"),
        ("from ray.tune.experiment import Trial", "ray.tune.experiment"),
        ("import ray\nray.init(_temp_dir='/x')", "_temp_dir"),
        ("import ray\nray.init(**{'_temp_dir': '/x'})", "_temp_dir"),
        ("from ray.job_submission import Client\nprint(client._server_ray_version)", "_server_ray_version"),
        ("name = 'RAY_event_stats'", "RAY_event_stats"),
        ("name = 'REPORTER_UPDATE_INTERVAL_MS'", "REPORTER_UPDATE_INTERVAL_MS"),
        ("head = {'node:__internal_head__': 1}", "node:__internal_head__"),
        ("importlib.import_module('ray._private.state')", "ray._private.state"),
    ],
)
def test_a_private_use_is_seen(source: str, name: str) -> None:
    assert any(name in found for found in private_uses(ast.parse(source)))


@pytest.mark.parametrize("file", ON_NODES)
def test_a_node_is_told_variables_that_are_documented_or_watched(file: str) -> None:
    named = set(VARIABLE.findall((ROOT / file).read_text()))
    assert named <= DOCUMENTED.keys() | private_ray.VARIABLES
