"""The launcher files that we ship: valid by Ray's own schema, and alike where they should be."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sweeps.cli import main
from sweeps.run import preflight
from sweeps.spec import arrangements, plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit import commands

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FILES = ("cluster.yaml", "clusters/aws.yaml")


def loaded(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / file).read_text()))


@pytest.mark.parametrize("file", FILES)
def test_a_launcher_file_is_valid_by_rays_schema(file: str) -> None:
    ray = importlib.util.find_spec("ray")
    assert ray
    assert ray.origin
    schema = json.loads((Path(ray.origin).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(loaded(file), schema)


@pytest.mark.parametrize("file", FILES)
def test_what_it_brings_to_the_nodes_is_there(file: str) -> None:
    mounts = loaded(file)["file_mounts"]
    for here in mounts.values():
        assert here == "~/.ray/auth_token" or (ROOT / here).exists()
    assert (ROOT / "scripts/node").stat().st_mode & stat.S_IXUSR


def test_both_files_do_the_same_on_a_node() -> None:
    ours, aws = (loaded(file) for file in FILES)
    for key in (
        "file_mounts",
        "rsync_exclude",
        "setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    ):
        assert ours[key] == aws[key]


def test_nothing_below_the_sites_part_names_a_site() -> None:
    text = (ROOT / "cluster.yaml").read_text()
    site, rest = text.split("# ── The rest")
    assert "10.0.0.1" in site
    assert "10.0.0." not in rest
    assert "ubuntu" not in rest


def blocks() -> dict[str, list[str]]:
    """Return all that we show to be typed, in blocks, by where it stands: commands without their prompt."""
    found = {"sweep --help": main.TAIL.split("\n\n")}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        found[page.name] = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for file in (*map(ROOT.joinpath, FILES), *(ROOT / "search_spaces").glob("*.yaml")):
        head = "".join(re.findall(r"^#.*\n", file.read_text(), re.MULTILINE))
        found[file.name] = [re.sub(r"^# ?", "", head, flags=re.MULTILINE)]
    prompt = re.compile(r"^(\$ | +)", re.MULTILINE)
    return {place: [prompt.sub("", block).replace("\\\n", " ") for block in those] for place, those in found.items()}


def test_wherever_ray_up_is_shown_the_token_and_the_users_own_part_come_first() -> None:
    """Without a token it is Ray's traceback; the addresses that we ship are nobody's."""
    every = [(place, block) for place, those in blocks().items() for block in those]
    shown = [(place, block) for place, block in every if re.search("^ray up", block, re.MULTILINE)]
    assert {place for place, _ in shown} == {"sweep --help", "README.md", "cluster.md", "cluster.yaml"}
    for place, block in shown:
        before, *_ = re.split("^ray up", block, maxsplit=1, flags=re.MULTILINE)
        assert re.search("^ray get-auth-token --generate ", before, re.MULTILINE), place
        if place != "cluster.yaml":  # which is that file
            assert re.search("^nano cluster.yaml .*marked as yours", before, re.MULTILINE), place
    aws = next(block for block in blocks()["aws.yaml"] if "ray up" in block)
    assert "ray get-auth-token --generate; ray up clusters/aws.yaml" in aws


def submitted() -> list[str]:
    shown = [line for those in blocks().values() for block in those for line in block.splitlines()]
    return [line for line in shown if line.startswith("sweep submit search_spaces/")]


@pytest.mark.parametrize("line", submitted())
def test_what_is_shown_to_be_submitted_fits_the_nodes_of_the_file_that_is_shipped(line: str) -> None:
    """Two nodes, taken for ones of 4 GPUs each."""
    words = shlex.split(line, comments=True)
    given = commands.read(words[1:]).params
    nodes = [Node(name, 32, 4, "V100") for name in loaded("cluster.yaml")["provider"]["worker_ips"]]
    file = ROOT / words[2]
    planned = plan.plan(sweep_file.parse(file.read_text(), file.name, given["overrides"]), file.name, nodes)
    assert arrangements.check_capacity(planned.trials or preflight.some(planned), nodes) == {}


def test_each_place_that_shows_how_to_begin_on_a_cluster_is_looked_at() -> None:
    shown = {place for place, those in blocks().items() if "sweep submit search_spaces" in "".join(those)}
    assert {"sweep --help", "README.md", "cluster.md", "cluster.yaml"} <= shown


TERMINALS_ONLY = "# as Ubuntu has it\ncase $- in *i*) ;; *) return;; esac\nexport MINE=kept\n"
SAID = 'echo "$SWEEP_RESULTS $MLFLOW_TRACKING_URI"'


@pytest.fixture(params=FILES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The home of a node that `ray up` has set up twice, but for packages; its Ray keeps what it is started with."""
    there = tmp_path / "ray-sweeps"
    shutil.copytree(ROOT / "scripts", there / "scripts")
    programs = there / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    for name, does in (("ray", "env > ~/of-ray"), ("setsid", "true")):
        (programs / name).write_text(f"#!/bin/bash\n{does}\n")
        (programs / name).chmod(0o755)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("a token")
    (tmp_path / ".bashrc").write_text(TERMINALS_ONLY)
    up = loaded(request.param)
    for command in [*up["initialization_commands"][-1:], *up["setup_commands"][1:]] * 2:
        in_shell(tmp_path, "-c", command)
    return tmp_path


def in_shell(home: Path, *arguments: str, **variables: str) -> str:
    """What bash says, started with nothing but its home."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **variables}
    return subprocess.run(["bash", *arguments], env=environment, capture_output=True, text=True, check=True).stdout


def test_a_shell_on_a_node_finds_what_the_drivers_there_write(node: Path) -> None:
    in_shell(node, str(node / "ray-sweeps/scripts/node"), "worker", "10.0.0.10", SSH_CONNECTION="a 1 10.0.0.11 22")
    of_ray = dict(line.split("=", 1) for line in (node / "of-ray").read_text().splitlines() if "=" in line)
    drivers = f"{of_ray['SWEEP_RESULTS']} {of_ray['MLFLOW_TRACKING_URI']}\n"
    assert drivers == "/shared/ray-sweeps/results http://127.0.0.1:5000\n"
    assert in_shell(node, "-ic", SAID) == drivers, "ray attach"
    assert in_shell(node, "-c", SAID, SSH_CLIENT="10.0.0.1 1 22") == drivers, "ssh HEAD 'sweep list'"
    assert in_shell(node, "-ic", "command -v ray") == f"{node}/ray-sweeps/.venv/bin/ray\n"


@pytest.mark.parametrize("fails", [0, 2, 3])
def test_a_node_whose_ray_does_not_start_is_started_again_twice(node: Path, fails: int) -> None:
    """Ray's launcher would leave it out for good."""
    ray = node / "ray-sweeps/.venv/bin/ray"
    starts = '[ "$1" = start ] || exit 0; [ "$(grep -c ^start ~/calls)" -gt FAILS ]'
    ray.write_text(f'#!/bin/bash\necho "$1" >> ~/calls\n{starts.replace("FAILS", str(fails))}\n')
    worker = (str(node / "ray-sweeps/scripts/node"), "worker", "10.0.0.10")
    if fails < 3:
        in_shell(node, *worker, SSH_CONNECTION="a 1 10.0.0.11 22")
    else:
        with pytest.raises(subprocess.CalledProcessError) as ended:
            in_shell(node, *worker, SSH_CONNECTION="a 1 10.0.0.11 22")
        assert ended.value.returncode == 3
    assert (node / "calls").read_text().split() == ["start", *["stop", "start"] * min(fails, 2)]


def test_a_shell_on_a_node_keeps_what_its_user_has_set_up(node: Path) -> None:
    text = (node / ".bashrc").read_text()
    assert text.endswith(TERMINALS_ONLY)
    assert text.count("scripts/shell ]") == 1, "however often `ray up` comes by"
    assert in_shell(node, "-ic", "echo $MINE") == "kept\n"
    shutil.rmtree(node / "ray-sweeps")
    assert in_shell(node, "-ic", "echo $MINE") == "kept\n", "also without the project"
