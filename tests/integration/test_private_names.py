"""Ray's private names, on the Ray that is installed: each is there, takes what we give it, and is looked up where ours
stands in its place. What has changed is said in words: what breaks, and where to look.

What loads these names is imported by the tests that need it: without one of them the others must still speak.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import ray

from sweeps.cluster import private_ray, ray_cluster
from tests.integration.clusters import eventually
from tests.integration.names_of_ray import OF_RAY, OF_TUNE, READ, VARIABLES, Name
from workers.contract import redact

KNOWN = "2.60.0"  # the Ray that all was read and measured on
ROOT = Path(__file__).parents[2]
RAY = Path(ray.__file__).parent
FILES = {"sweeps/cluster/private_ray.py": OF_RAY, "sweeps/run/private_tune.py": OF_TUNE}
NAMES = [(file, name) for file, names in FILES.items() for name in names]
LOOPBACK = "scripts/loopback/sitecustomize.py"


def thing(at: str) -> Any:
    """Return what Ray has by a name, `None` for what only its instances have; raises `LookupError`."""
    module, _, path = at.partition(":")
    try:
        here: Any = importlib.import_module(module)
    except ImportError as error:
        raise LookupError(at) from error
    for part in path.split("."):
        if hasattr(here, part):
            here = getattr(here, part)
        elif inspect.isclass(here) and part in of_instances(here):
            return None
        else:
            raise LookupError(at)
    return here


@functools.cache
def of_instances(kind: type) -> frozenset[str]:
    """What a class, or one that it is made of, stores on `self`."""
    return frozenset[str]().union(*(stored(one) for one in kind.__mro__ if one is not object))


def stored(kind: type) -> set[str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # not of Python
        return set()
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def changed(file: str, name: Name) -> str:
    """Say what is wrong with a name in the Ray that is installed, if anything is."""
    takes = "" if name.takes is None else f"({name.takes})"
    cure = f"{name.breaks}. Look in {file}"
    try:
        found = thing(name.at)
    except LookupError:
        return f"Ray {KNOWN} had {name.at}{takes}; this Ray, {ray.__version__}, has not: {cure}"
    if name.takes is not None:
        parameters = list(inspect.signature(inspect.unwrap(found)).parameters)
        wanted = name.takes.split(", ") if name.takes else []
        does_fit = set(wanted[:-1]) <= set(parameters) if wanted[-1:] == ["…"] else wanted == parameters
        if not does_fit:
            now = ", ".join(parameters)
            return f"Ray {KNOWN}'s {name.at} took {takes}; that of this Ray, {ray.__version__}, takes ({now}): {cure}"
    if name.asked_in and not is_looked_up(name):
        return (
            f"Ray {KNOWN}'s {name.asked_in} looked {name.at} up each time, where ours stood in its place; that of this "
            f"Ray, {ray.__version__}, does not: {cure}"
        )
    return ""


def is_looked_up(name: Name) -> bool:
    module, _, short = name.at.partition(":")
    try:
        by = inspect.unwrap(thing(name.asked_in))
    except LookupError:
        return False
    return short in by.__code__.co_names and by.__globals__ is vars(importlib.import_module(module))


def digest(function: Any) -> str:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def test_the_ray_that_is_pinned_is_the_one_that_was_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pinned,) = [pin.partition("==")[2] for pin in project["dependencies"] if pin.startswith("ray[")]
    assert pinned == KNOWN, f"another Ray than {KNOWN} is pinned: {pinned}; once all here passes with it, it is KNOWN"
    assert f"pyproject.toml pins, {KNOWN}," in str(private_ray.__doc__), "what stands there tells of another Ray"


@pytest.mark.parametrize(("file", "name"), NAMES, ids=[name.at for _, name in NAMES])
def test_a_private_name_is_what_it_was(file: str, name: Name) -> None:
    wrong = changed(file, name)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (Name("ray._private.nothing:here", "the tables"), f"Ray {KNOWN} had ray._private.nothing:here; this Ray, "),
        (Name("ray._private.state:jobz", "the tables", takes="a"), "had ray._private.state:jobz(a); this Ray, "),
        (Name("ray._private.node:Node._no_such", "the tables"), "has not: the tables. Look in sweeps/x.py"),
        (Name("ray._private.state:jobs", "the tables", takes="since"), "takes (): the tables. Look in sweeps/x.py"),
        (Name("ray:init", "the tables", takes="_tempdir, …"), "Ray 2.60.0's ray:init took (_tempdir, …); that of this"),
        (
            Name("ray._private.worker:t0", "the tables", asked_in="ray._private.worker:print_to_stdstream"),
            "does not: the tables. Look in sweeps/x.py",
        ),
    ],
)
def test_a_name_that_has_changed_is_missed_in_words(name: Name, words: str) -> None:
    assert words in changed("sweeps/x.py", name)


@pytest.mark.parametrize("at", READ)
def test_what_we_replace_and_count_on_reads_as_it_did(at: str) -> None:
    try:
        now = digest(thing(at))
    except LookupError:
        now = "nothing"
    assert now == READ[at], (
        f"Ray {KNOWN}'s {at} reads otherwise in this Ray, {ray.__version__}: read it beside sweeps/run/private_tune.py "
        f"(and Gang in sweeps/run/ray_tune.py), then note its text as read: {now}"
    )


@pytest.mark.parametrize("name", sorted(private_ray.VARIABLES))
def test_a_variable_is_still_read(name: str) -> None:
    read_in, breaks = VARIABLES[name]
    assert says(RAY / read_in, name), (
        f"Ray {KNOWN} read {name} in ray/{read_in}; this Ray, {ray.__version__}, does not: {breaks}. "
        "Look in sweeps/cluster/private_ray.py"
    )


def says(path: Path, text: str) -> bool:
    return path.exists() and text.encode() in content(path)


@functools.cache
def content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("file", FILES)
def test_each_private_name_that_is_used_is_gone_through(file: str) -> None:
    known = [name.at for name in FILES[file]]
    last = {at.rpartition(":")[2].rpartition(".")[2] for at in known}
    tree = ast.parse((ROOT / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert node.attr in last | own(file), f"{file} uses {node.attr}, which names_of_ray.py does not name"
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ray."):
            for name in node.names:
                here = f"{node.module}:{name.name}"
                is_known = any(at == here or at.startswith((f"{here}.", f"{node.module}.{name.name}:")) for at in known)
                assert is_known or here == "ray.job_submission:JobSubmissionClient", f"{file} takes {here} of Ray"


def module(file: str) -> ModuleType:
    return importlib.import_module(file.removesuffix(".py").replace("/", "."))


def own(file: str) -> set[str]:
    """What the classes of a file of ours store on `self`, and Ray's don't."""
    here = module(file)
    kinds = [kind for kind in vars(here).values() if inspect.isclass(kind) and kind.__module__ == here.__name__]
    return set().union(*(ours(kind) - of_ray(kind) for kind in kinds))


def ours(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value)} | stored(kind)


def of_ray(kind: type) -> set[str]:
    bases = [base for base in kind.__mro__[1:] if base.__module__.startswith("ray.")]
    return set().union(*(vars(base).keys() | stored(base) for base in bases))


@pytest.mark.parametrize("name", ["Loop", "Patient", "PlacedTrial", "Events"])
def test_what_we_put_in_the_place_of_rays_is_gone_through(name: str) -> None:
    kind = getattr(module("sweeps/run/private_tune.py"), name)
    known = {name.at.rpartition(".")[2] for name in OF_TUNE}
    assert {name for name in ours(kind) & of_ray(kind) if not name.startswith("__")} <= known


@pytest.mark.parametrize("name", ["Gang", "_Feed", "_Watcher", "_Scheduler", "_WhenLedgerFails"])
def test_no_other_class_of_ours_stands_in_the_way_of_a_private_name(name: str) -> None:
    kind = getattr(module("sweeps/run/ray_tune.py"), name)
    assert of_ray(kind)
    both = {name for name in ours(kind) & of_ray(kind) if name.startswith("_") and not name.startswith("__")}
    assert not both, (
        f"Ray {ray.__version__} has {both} itself: {name} in sweeps/run/ray_tune.py must name them otherwise"
    )


def test_all_that_would_be_printed_comes_to_us() -> None:
    from ray.tune.progress_reporter import TrialProgressCallback

    from sweeps.run import ray_tune

    heard = {name for name in vars(TrialProgressCallback) if name.startswith("on_") or name == "setup"}
    more = heard - vars(ray_tune._Watcher).keys()
    assert not more, (
        f"this Ray, {ray.__version__}, has its TrialProgressCallback hear of {more}, that of {KNOWN} did not; ours is "
        "not begun as that is. Look at _Watcher in sweeps/run/ray_tune.py"
    )


def test_tune_is_as_it_was_once_a_sweep_is_over() -> None:
    from ray.tune import tune
    from ray.tune.execution import class_cache

    from sweeps.run import private_tune

    before = tune.TuneController, class_cache.ENV_VARS_TO_PROPAGATE
    assert "AWS_SECRET_ACCESS_KEY" in before[1]
    with contextlib.suppress(KeyboardInterrupt), private_tune.our_loop():
        assert tune.TuneController is private_tune.Loop
        assert class_cache.ENV_VARS_TO_PROPAGATE
        assert not [name for name in class_cache.ENV_VARS_TO_PROPAGATE if redact.is_secret(name)]
        raise KeyboardInterrupt
    assert (tune.TuneController, class_cache.ENV_VARS_TO_PROPAGATE) == before


@pytest.mark.parametrize("path", ["dashboard/agent.py", "dashboard/dashboard.py", "autoscaler/_private/monitor.py"])
def test_rays_exporters_are_programs_that_loopback_knows(path: str) -> None:
    assert (RAY / path).exists(), (
        f"Ray {KNOWN} exported metrics from ray/{path}; this Ray, {ray.__version__}, has no such program: they may be "
        f"open to all who reach the node. Look in {LOOPBACK}"
    )


@pytest.mark.parametrize("is_on_path", [False, True])
def test_rays_exporters_listen_on_loopback_alone_if_told_to(tmp_path: Path, is_on_path: bool) -> None:
    program = tmp_path / "ray/dashboard/agent.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "import prometheus_client, psutil\n"
        "from ray._private import prometheus_exporter as exporter\n"
        "exporter.new_stats_exporter(exporter.Options('x', 0))\n"
        "prometheus_client.start_http_server(0)\n"
        "doors = [door.laddr.ip for door in psutil.Process().net_connections('tcp') if door.status == 'LISTEN']\n"
        "print(*doors)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts/loopback") if is_on_path else ""}
    ran = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    expected = ["127.0.0.1" if is_on_path else "0.0.0.0"] * 2
    assert ran.stdout.split() == expected, (
        f"Ray {KNOWN} served metrics by wsgiref, on all addresses unless told otherwise; this Ray, {ray.__version__}, "
        f"does not: they may be open to all who reach a node, or need {LOOPBACK} no more.\n{ran.stderr}"
    )


def test_what_a_node_waits_for_has_the_name_it_had() -> None:
    assert "-x raylet" in (ROOT / "scripts/node").read_text()
    assert (RAY / "core/src/ray/raylet/raylet").exists(), (
        f"Ray {KNOWN}'s process on a node was raylet; this Ray, {ray.__version__}, has none: a node does not notice "
        "that its head has gone. Look in scripts/node"
    )


def test_what_ray_adds_to_a_jobs_log_begins_as_it_did() -> None:
    jobs = RAY / "dashboard/modules/job"
    changed = (
        f"Ray {KNOWN} began a job's log by a line of job_manager.py and one of the entrypoint; this Ray, "
        f"{ray.__version__}, does otherwise: they stand in what `sweep logs` says. "
        "Look in sweeps/cluster/private_ray.py"
    )
    assert (jobs / "job_manager.py").exists(), changed
    assert says(jobs / "job_supervisor.py", "Running entrypoint for job"), changed


def test_a_head_that_is_starting_refuses_jobs_in_the_words_it_did() -> None:
    assert says(RAY / "dashboard/modules/job/job_head.py", private_ray.NO_AGENT_YET), (
        f"Ray {KNOWN}'s head said “{private_ray.NO_AGENT_YET}” while it was starting; that of this Ray, "
        f"{ray.__version__}, says otherwise: right after `ray up` a submission is refused. Look in "
        "sweeps/cluster/private_ray.py"
    )


def test_a_driver_of_another_python_is_refused_in_the_words_it_was() -> None:
    from ray._private import utils

    theirs = {"ray_version": ray.__version__, "python_version": "3.9.1"}
    with pytest.raises(RuntimeError) as refused:
        utils.check_version_info(theirs, "node 10.0.0.1")
    found = private_ray.OTHER_VERSION.match(str(refused.value))
    assert found, (
        f"Ray {KNOWN} named both versions of Ray and Python as it refused a driver; this Ray, {ray.__version__}, says "
        f"otherwise: a driver of another Python is shown a traceback. Look in sweeps/cluster/private_ray.py: {refused}"
    )
    assert found.groups() == (ray.__version__, "3.9.1", ray.__version__, platform.python_version())


def test_a_job_that_there_is_not_is_denied_in_the_words_it_was() -> None:
    assert says(RAY / "dashboard/modules/job/job_head.py", private_ray.NO_SUCH_JOB), (
        f"Ray {KNOWN}'s head said that a job “{private_ray.NO_SUCH_JOB}”; that of this Ray, {ray.__version__}, says "
        "otherwise: a Ctrl-C in `sweep submit` waits two minutes for nothing. Look in sweeps/cluster/private_ray.py"
    )


@pytest.fixture(scope="module")
def our_own(left_behind: Callable[[], list[str]]) -> Iterator[None]:
    with ray_cluster.connected(None, cpus=1):
        yield
    assert not left_behind()


def test_a_cluster_is_told_from_another_by_its_identity(our_own: None) -> None:
    head = ray.get_runtime_context().gcs_address
    try:
        known = private_ray.identity(head)
    except (AttributeError, TypeError) as error:
        pytest.fail(
            f"Ray {KNOWN}'s GcsClient had a cluster_id; that of this Ray, {ray.__version__}, has not ({error}): a head "
            "that was started anew at its address is taken for the one before. Look in sweeps/cluster/private_ray.py"
        )
    assert known == private_ray.identity(head)
    assert len(str(known)) > 40, (
        f"Ray {ray.__version__} says {known!r} of its cluster: look in sweeps/cluster/private_ray.py"
    )


def test_a_ray_of_our_own_keeps_its_files_in_its_folder(our_own: None) -> None:
    (node,) = ray.nodes()
    assert node["ObjectStoreSocketName"].startswith(f"{tempfile.gettempdir()}/sweep-"), (
        f"Ray {KNOWN} took the option _temp_dir; this Ray, {ray.__version__}, has its files in "
        f"{node['ObjectStoreSocketName']}: a Ray of our own leaves them behind. Look in sweeps/cluster/private_ray.py"
    )


def test_a_driver_that_is_killed_has_ended_at_once(our_own: None) -> None:
    code = (
        "import ray, sys, time\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')\n"
        "print(ray.get_runtime_context().get_job_id(), flush=True)\n"
        "time.sleep(600)\n"
    )
    head = ray.get_runtime_context().gcs_address
    with subprocess.Popen([sys.executable, "-c", code, head], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        job = driver.stdout.readline().strip()
        assert job
        assert private_ray.ended_drivers().isdisjoint({job, ray.get_runtime_context().get_job_id()})
        driver.send_signal(signal.SIGKILL)
    assert eventually(lambda: job in private_ray.ended_drivers(), patience_s=20)
    assert ray.get_runtime_context().get_job_id() not in private_ray.ended_drivers()


def test_rays_news_are_not_printed(our_own: None, capfd: pytest.CaptureFixture[str]) -> None:
    from ray._private import worker

    worker.print_to_stdstream({"pid": "raylet", "is_err": False, "lines": ["a node died"]}, ignore_prefix=False)
    assert capfd.readouterr() == ("", "")


def test_a_ray_of_our_own_has_no_process_that_nobody_asks(our_own: None) -> None:
    programs = ("log_monitor.py", "monitor.py", "dashboard.py")

    def running() -> list[str]:
        lines = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
        return [line for line in lines if any(f"/{program}" in line for program in programs)]

    assert eventually(lambda: not running(), patience_s=10), running()


def test_the_head_and_no_other_node_has_its_resource(our_own: None) -> None:
    assert private_ray.HEAD in ray.cluster_resources(), (
        f"Ray {KNOWN}'s head had a resource {private_ray.HEAD}; that of this Ray, {ray.__version__}, has not: sweeps "
        "can't share a cluster. Look in sweeps/cluster/private_ray.py"
    )


def niceness() -> int:
    return os.nice(0)


def test_workers_of_a_ray_of_our_own_yield_to_nobody(our_own: None) -> None:
    assert ray.get(ray.remote(niceness).remote()) == os.nice(0), VARIABLES["RAY_worker_niceness"].breaks


def test_our_loop_waits_as_ours_does(our_own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.run import private_tune

    monkeypatch.setattr(private_tune, "IDLE_S", 0.0)
    loop = private_tune.Loop(search_alg=MagicMock(searcher=None), storage=MagicMock())
    assert isinstance(loop._actor_manager, private_tune.Patient)
    assert loop._actor_manager._resource_manager
    assert not loop._actor_manager.next(timeout=60)  # there is nobody to wait for


class Nobody:
    """An actor that does nothing."""


def test_a_gang_holds_nothing_until_its_placement_group_is_there(our_own: None) -> None:
    from ray.air.execution import PlacementGroupResourceManager
    from ray.tune import PlacementGroupFactory

    from sweeps.run import private_tune

    told: list[str] = []
    manager = private_tune.Patient(PlacementGroupResourceManager())
    manager.tell_placed = lambda _: told.append("held")
    manager.tell_freed = lambda _: told.append("freed")
    cpus = ray.cluster_resources()["CPU"]
    other = ray.remote(Nobody).options(num_cpus=cpus).remote()
    ray.get(other.__ray_ready__.remote())
    manager.add_actor(
        Nobody,
        kwargs={},
        resource_request=PlacementGroupFactory([{"CPU": 1.0}]),
        on_start=lambda _: told.append("stands"),
    )
    assert not manager.next(timeout=2.0)
    assert not told, "another has the node"
    ray.kill(other)
    eventually(lambda: manager.next(timeout=1.0))
    assert told == ["held", "stands"]
    manager.cleanup()
    assert told == ["held", "stands", "freed"]


@pytest.mark.parametrize("is_judged", [True, False])
def test_our_loop_says_which_trial_holds_its_gpus(is_judged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.run import private_tune

    search = MagicMock(is_judged=is_judged, searcher=None)
    loop = private_tune.Loop(search_alg=search, storage=MagicMock())
    trial, actor = MagicMock(), MagicMock()
    loop._actor_to_trial[actor] = trial
    assert isinstance(loop._actor_manager, private_tune.Patient)
    loop._actor_manager.cleanup()  # as Tune does in the end
    loop._actor_manager.tell_placed(actor)
    loop._actor_manager.tell_placed(MagicMock())  # of a trial that was stopped
    search.held.assert_called_once_with(trial)
    monkeypatch.setattr(private_tune.TuneController, "_schedule_trial_reset", lambda *_: None)
    loop._schedule_trial_reset(following := MagicMock(), {}, "")
    search.held.assert_called_with(following)


def ended(loop: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[MagicMock, MagicMock]:
    """A trial, and its gang: it has ended there, and Tune may do with the gang what it likes."""
    from sweeps.run import private_tune

    monkeypatch.setattr(private_tune.TuneController, "stop_trial", lambda *_: None)
    trial, gang = MagicMock(), MagicMock()
    loop._trial_to_actor[trial] = gang
    loop._actor_manager._live_actors_to_ray_actors_resources[gang] = MagicMock(), MagicMock()
    loop.stop_trial(trial)
    return trial, gang


@pytest.mark.parametrize("then", ["the next trial", "its end", "the end of all"])
def test_our_loop_says_how_long_a_gang_held_its_gpus_for_no_trial(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.run import private_tune

    search = MagicMock(is_judged=False, searcher=None)
    loop: Any = private_tune.Loop(search_alg=search, storage=MagicMock())
    monkeypatch.setattr(private_tune.time, "time", lambda: 1000.0)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    monkeypatch.setattr(loop._actor_manager, "_resource_manager", MagicMock())
    trial, gang = ended(loop, monkeypatch)
    search.waited.assert_not_called()
    for _ in range(2):  # the second time nothing of it is left
        if then == "the next trial":
            loop._trial_to_actor[following := MagicMock()] = gang
            loop._schedule_trial_reset(following, {}, "")
        elif then == "the end of all":
            loop._actor_manager.cleanup()
        elif gang in loop._actor_manager.holding:
            loop._actor_manager._cleanup_actor(gang)
    search.waited.assert_called_once_with(trial, 1000.0)


def test_a_trial_that_is_given_up_before_its_gang_had_gpus_has_held_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeps.run import private_tune

    monkeypatch.setattr(private_tune.TuneController, "stop_trial", lambda *_: None)
    search, trial = MagicMock(is_judged=False, searcher=None), MagicMock()
    loop: Any = private_tune.Loop(search_alg=search, storage=MagicMock())
    for gang in (None, MagicMock()):
        if gang:
            loop._trial_to_actor[trial] = gang
        loop.stop_trial(trial)
        loop._waited(gang)
    search.waited.assert_not_called()


@pytest.mark.parametrize("is_ray_up_s", [True, False])
def test_a_sweep_that_waits_for_others_nodes_is_not_ended_by_a_warning_of_tunes(
    is_ray_up_s: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute in which none was running it would name the first of them, and there is none."""
    module = importlib.import_module("ray.tune.execution.insufficient_resources_manager")
    for name, value in ray_cluster.QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "_is_ray_cluster", lambda: is_ray_up_s)
    clock = iter(range(0, 100_000, 3600))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    module._get_insufficient_resources_warning_threshold.cache_clear()
    manager = module._InsufficientResourcesManager()
    for _ in range(4):
        manager.on_no_available_trials([])
    module._get_insufficient_resources_warning_threshold.cache_clear()
