"""The launcher files that we ship: valid by Ray's own schema, and alike where they should be."""

from __future__ import annotations

import importlib.util
import json
import stat
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

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
