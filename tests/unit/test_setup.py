"""What set-up asks for, and that it asks once. The commands that it calls are scripts here, which note their calls."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from sweeps.text import addresses

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PATH = "/usr/bin:/bin"  # what set-up itself needs of the system
STANDS_IN = {  # for a Python: its version, whether it has pip, what pip does
    "python": """
case "$*" in
  *version_info*) case {version} in 3.11.*|3.12.*) exit 0 ;; *) exit 1 ;; esac ;;
  *realpath*) echo "$0" ;;
  --version) echo Python {version} ;;
  '-m pip --version') exit {without_pip} ;;
  '-m pip install'*) mkdir -p .tools/bin && cp "$(dirname "$0")/uv-that-pip-brings" .tools/bin/uv ;;
esac
""",
    "uv": """
case "$1 $2" in
  '--version ') echo uv {version} ;;
  'python install') exit {cannot_bring} ;;
  'python find') echo /brought/python3.11 ;;
  'sync '*) mkdir -p .venv ;;
esac
""",
}


class Machine:
    """A copy of what set-up reads, and a folder of commands, each of which notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._commands, self._noted = folder / "tree", folder / "bin", folder / "noted"
        for path in (self.tree / "scripts", self._commands):
            path.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "scripts/setup"):
            (self.tree / name).write_text((ROOT / name).read_text())
        (self.tree / "scripts/setup").chmod(0o755)
        for name in ("g++", "python3", "python3.11", "python3.12", "python", "uv"):
            self.command(name, "exit 127" if name != "g++" else "")
        self._noted.write_text("")

    def command(self, name: str, does: str) -> None:
        script = self._commands / name
        script.parent.mkdir(parents=True, exist_ok=True)
        note = f'echo "$(basename "$0") $*" >> {self._noted}\n'
        certificates = f'case "$1" in sync|pip) env | grep ^UV_ >> {self._noted};; esac\n'
        script.write_text(f"#!/bin/sh\n{note}{certificates}{does}")
        script.chmod(0o755)

    def python(self, name: str, version: str, without_pip: int = 0) -> None:
        self.command(name, STANDS_IN["python"].format(version=version, without_pip=without_pip))

    def uv(self, name: str = "uv", version: str = "0.13.9", cannot_bring: int = 0) -> None:
        self.command(name, STANDS_IN["uv"].format(version=version, cannot_bring=cannot_bring))

    def made(self, *goals: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`make` of these goals with HOME and PATH alone, and what more is given."""
        environment = {"HOME": str(self.tree), "PATH": f"{self._commands}:{PATH}", "GPU": "0", **variables}
        return subprocess.run(
            ["make", *goals], cwd=self.tree, env=environment, capture_output=True, text=True, check=False
        )

    def noted(self) -> list[str]:
        """The calls since this was asked last."""
        lines = self._noted.read_text().splitlines()
        self._noted.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("name", "version"), [("python3.11", "3.11.2"), ("python3.12", "3.12.3"), ("python3", "3.12.3")]
)
def test_set_up_takes_the_python_that_is_there(machine: Machine, name: str, version: str) -> None:
    machine.python(name, version)
    machine.uv()
    ran = machine.made("setup")
    assert ran.returncode == 0, ran.stderr
    (python,) = (line for line in machine.noted() if line.startswith("UV_PYTHON="))
    assert Path(python).name == name


def test_the_pythons_that_set_up_takes_are_those_of_the_package() -> None:
    allowed = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert [minor for minor in range(8, 15) if f"3.{minor}.1" in allowed] == [11, 12]
    assert "((3, 11), (3, 12))" in (ROOT / "scripts/setup").read_text()


def test_elsewhere_uv_brings_a_python(machine: Machine) -> None:
    machine.python("python3", "3.9.2")
    machine.uv()
    assert machine.made("setup").returncode == 0
    noted = machine.noted()
    assert "uv python install --quiet 3.11" in noted
    assert "UV_PYTHON=/brought/python3.11" in noted


def test_where_none_can_be_brought_the_cure_is_named(machine: Machine) -> None:
    machine.python("python3", "3.9.2")
    machine.uv(cannot_bring=1)
    ran = machine.made("setup")
    assert ran.returncode
    assert "must find Python 3.11 or 3.12, but got Python 3.9.2" in ran.stderr
    assert "PYTHON=/path/to/python3.11" in ran.stderr
    assert not [line for line in machine.noted() if line.startswith("uv sync")]


def test_a_python_that_is_named_is_the_one_or_is_refused(machine: Machine) -> None:
    machine.python("python3.11", "3.11.2")
    machine.python("mine", "3.12.1")
    machine.python("old", "3.9.2")
    machine.uv()
    assert machine.made("setup", PYTHON="mine").returncode == 0
    assert next(line for line in machine.noted() if line.startswith("UV_PYTHON=")).endswith("/mine")
    ran = machine.made("setup", "-B", PYTHON="old")
    assert ran.returncode
    assert "PYTHON must be Python 3.11 or 3.12, but old is Python 3.9.2" in ran.stderr


@pytest.mark.parametrize("theirs", ["", "0.8.22"])
def test_uv_comes_by_pip_where_there_is_none_or_an_old_one(machine: Machine, theirs: str) -> None:
    machine.python("python3.11", "3.11.2", without_pip=1)  # another Python has it
    machine.python("python3", "3.9.2")
    machine.uv("uv-that-pip-brings")
    if theirs:
        machine.uv(version=theirs)
    else:
        (machine.tree.parent / "bin/uv").unlink()
    ran = machine.made("setup")
    assert ran.returncode == 0, ran.stderr
    assert next(line for line in machine.noted() if "pip install" in line).startswith("python3 -m pip install")


def test_why_pip_could_not_bring_uv_is_said_by_pip(machine: Machine) -> None:
    """On Debian 12 another call of pip would fail for another reason."""
    machine.python("python3.11", "3.11.2")
    (machine.tree.parent / "bin/uv").unlink()
    fails = """case "$*" in *'pip install'*) echo "ERROR: no route to the registry" >&2; exit 1 ;; esac"""
    works = STANDS_IN["python"].format(version="3.11.2", without_pip=0)
    machine.command("python3.11", f"{fails}\n{works}")
    ran = machine.made("setup")
    assert ran.returncode
    assert "ERROR: no route to the registry" in ran.stderr
    assert "setup: pip must bring uv, but could not" in ran.stderr


def test_the_systems_certificates_count_whatever_uv_calls_them(machine: Machine) -> None:
    """A company's proxy may sign TLS itself. Newer versions of uv know the first name, older ones only the second."""
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.made("setup")
    assert {"UV_SYSTEM_CERTS=1", "UV_NATIVE_TLS=1"} <= {*machine.noted()}
    machine.made("setup", "-B", UV_SYSTEM_CERTS="0", UV_NATIVE_TLS="0")  # who wants uv's own has them
    assert {"UV_SYSTEM_CERTS=0", "UV_NATIVE_TLS=0"} <= {*machine.noted()}


def test_a_second_demo_sets_nothing_up_and_goes_straight_to_the_sweep(machine: Machine) -> None:
    """That it starts in under 3 s is shown by what it calls, not by a clock: setting up takes minutes, and how long
    `sweep` itself takes to start is held by the tests of what it loads."""
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.made("setup")
    machine.command("../tree/.venv/bin/sweep", "")
    machine.noted()
    for _ in range(2):
        ran = machine.made("demo")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert [line.split()[1] for line in machine.noted()] == ["data", "run"]  # no pip, no uv, no Python
    planned = machine.made("-n", "demo").stdout.splitlines()
    assert planned[1].split()[1:] == ["run", "search_spaces/demo.yaml", "--fresh"]
    assert [line.split()[:2] for line in planned] == [[".venv/bin/sweep", "data"], [".venv/bin/sweep", "run"]]


@pytest.mark.parametrize("changed", ["pyproject.toml", "scripts/setup"])
def test_set_up_is_done_again_when_what_it_was_made_from_changes(machine: Machine, changed: str) -> None:
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.made("setup")
    ready = machine.tree / ".venv/ready"
    machine.noted()
    assert machine.made("setup").returncode == 0
    assert machine.noted() == []
    os.utime(machine.tree / changed, (ready.stat().st_atime, ready.stat().st_mtime + 1))
    machine.made("setup")
    assert [line for line in machine.noted() if line.startswith("uv sync")]


def test_a_set_up_of_the_other_kind_is_done_and_one_that_does_not_say_keeps_the_kind(machine: Machine) -> None:
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.command("../cuda/bin/nvcc", "echo release 12.5")
    packages = machine.tree / ".venv/lib/python3.11/site-packages"
    (packages / "nvidia/nccl/lib").mkdir(parents=True)

    def synced(gpu: str) -> tuple[bool, bool, bool]:
        """Whether uv was called, for GPUs, and found a Horovod already there."""
        (packages / "horovod-0.28.1.dist-info").mkdir(exist_ok=True)
        ran = machine.made("setup", GPU=gpu, CUDA_HOME=f"{machine.tree.parent}/cuda")
        assert ran.returncode == 0, ran.stderr
        calls = [line for line in machine.noted() if line.startswith("uv sync")]
        return bool(calls), "--extra gpu" in "".join(calls), (packages / "horovod-0.28.1.dist-info").exists()

    assert synced("0") == (True, False, False)
    assert synced("1") == (True, True, False)
    assert synced("1") == synced("") == (False, False, True)
    ready = (machine.tree / ".venv/ready").stat()
    os.utime(machine.tree / "pyproject.toml", (ready.st_atime, ready.st_mtime + 1))
    assert synced("") == (True, True, True)
    assert (machine.tree / ".venv/horovod-cuda").exists()
    assert synced("0") == (True, False, False)
    assert not (machine.tree / ".venv/horovod-cuda").exists()  # `sweep doctor` would speak of a toolkit


def test_pytorch_comes_when_it_is_asked_for_and_stays_until_it_is_not_wanted(machine: Machine) -> None:
    machine.python("python3.11", "3.11.2")
    machine.uv()

    def synced(**asked: str) -> tuple[bool, bool, bool]:
        """Whether uv was called, with PyTorch, and with where pip finds wheels."""
        ran = machine.made("setup", PIP_FIND_LINKS="/wheels https://wheels", **asked)
        assert ran.returncode == 0, ran.stderr
        calls = "\n".join(machine.noted())
        return "uv sync" in calls, "--extra torch" in calls, "UV_FIND_LINKS=/wheels,https://wheels" in calls

    assert synced() == (True, False, False)
    assert synced(TORCH="1") == (True, True, True)
    assert synced(TORCH="1") == synced() == (False, False, False)
    ready = (machine.tree / ".venv/ready").stat()
    os.utime(machine.tree / "pyproject.toml", (ready.st_atime, ready.st_mtime + 1))
    assert synced() == (True, True, True)
    assert synced(TORCH="0") == (True, False, False)
    ran = machine.made("setup", TORCH="yes")
    assert ran.returncode
    assert "TORCH must be 1 (with PyTorch) or 0 (without), but got yes" in ran.stderr


@pytest.mark.parametrize("torch", ["1", "0"])
def test_what_it_was_set_up_with_outlives_make_clean(machine: Machine, torch: str) -> None:
    """Messages advise `make clean setup PYTHON=…` as a cure: it must not take PyTorch away from who asked for it."""
    machine.python("python3.11", "3.11.2")
    machine.python("mine", "3.12.1")
    machine.uv()
    assert machine.made("setup", TORCH=torch).returncode == 0
    machine.noted()
    for goals in [("clean", "setup"), ("clean",), ("setup",)]:  # in one call or in two
        ran = machine.made(*goals, PYTHON="mine")
        assert ran.returncode == 0, ran.stderr
        calls = "\n".join(machine.noted())
        assert ("uv sync" in calls, "--extra torch" in calls) == ("setup" in goals, "setup" in goals and torch == "1")
    assert (machine.tree / ".venv/ready").read_text().split() == ["GPU=0", f"TORCH={torch}"]


def test_a_set_up_for_gpus_that_cannot_be_done_leaves_the_one_that_is_there(machine: Machine) -> None:
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.made("setup")
    machine.noted()
    for gpu, rule in [
        ("1", "must find CUDA's compiler"),
        ("yes", "GPU must be 1 (with CUDA) or 0 (without), but got yes"),
    ]:
        ran = machine.made("setup", GPU=gpu, CUDA_HOME="/nowhere")
        assert ran.returncode
        assert rule in ran.stderr
    assert machine.made("setup", GPU="").returncode == 0
    assert not [line for line in machine.noted() if line.startswith("uv sync")]


def test_a_set_up_that_fails_is_not_taken_for_one_that_is_done(machine: Machine) -> None:
    machine.python("python3.11", "3.11.2")
    machine.command("uv", STANDS_IN["uv"].format(version="0.13.9", cannot_bring=0) + '[ "$1" != sync ]')
    ran = machine.made("setup")
    assert ran.returncode
    assert "could not be installed" in ran.stderr
    assert not (machine.tree / ".venv/ready").exists()


@pytest.mark.parametrize("variable", [addresses.JOB_SERVER, addresses.RAY])
def test_the_demo_is_of_this_machine_in_a_shell_that_leads_to_a_cluster(machine: Machine, variable: str) -> None:
    machine.python("python3.11", "3.11.2")
    machine.uv()
    machine.made("setup")
    planned = machine.made("-n", "demo", **{variable: "/there/cluster.yaml"}).stdout.splitlines()
    assert planned[1].endswith("demo.yaml --fresh --address local")


def test_the_demo_says_how_its_images_are_made() -> None:
    demo = (ROOT / "search_spaces/demo.yaml").read_text()
    (said,) = re.findall(r"# made by: sweep (data make .*)", demo)
    (done,) = re.findall(r"bin/sweep (data make .*)", (ROOT / "Makefile").read_text())
    assert said == done
    assert f"--classes {yaml.safe_load(demo)['classes']}" in said
