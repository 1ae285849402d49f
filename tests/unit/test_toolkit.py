"""A GPU, NVIDIA's driver and the CUDA toolkit go together, or it is said what doesn't and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.cluster import doctor
from workers.checks import node_checkup
from workers.node import toolkit

ROOT = Path(__file__).parents[2]
V100, T4, A100, H100, P100, K80 = (7, 0), (7, 5), (8, 0), (9, 0), (6, 0), (3, 7)

OLD = "TensorFlow's CUDA 12 needs NVIDIA driver 525.60.13 or later, but this is"


@pytest.mark.parametrize(
    ("capability", "cuda", "driver", "wrong"),
    [
        (V100, (12, 5), (535, 104, 5), []),
        (V100, (12, 9), (580, 65, 6), []),
        (V100, (13, 0), (580, 65, 6), ["CUDA 13.0 compiles for compute capability 7.5 and later, but the GPU has 7.0"]),
        (V100, (11, 8), (535, 104, 5), []),
        (V100, (14, 1), (), ["CUDA 14.1 compiles for compute capability 7.5 and later, but the GPU has 7.0"]),
        (P100, (13, 0), (580, 65, 6), ["CUDA 13.0 compiles for compute capability 7.5 and later, but the GPU has 6.0"]),
        (T4, (13, 0), (580, 65, 6), []),
        (H100, (13, 0), (580, 65, 6), []),
        (H100, (13, 0), (580, 65, 5), ["CUDA 13.0 needs NVIDIA driver 580.65.06 or later, but this is 580.65.05"]),
        (A100, (13, 0), (535, 104, 5), ["CUDA 13.0 needs NVIDIA driver 580.65.06 or later, but this is 535.104.05"]),
        (A100, (12, 0), (525, 60, 13), []),
        (A100, (12, 0), (525, 60, 12), [f"{OLD} 525.60.12"]),
        (A100, (11, 8), (470, 82, 1), [f"{OLD} 470.82.01"]),
        (A100, (), (470, 82, 1), [f"{OLD} 470.82.01"]),
        (K80, (11, 8), (470, 82, 1), [
            "TensorFlow 2.18 has kernels for compute capability 6.0 and later, but the GPU has 3.7",
            f"{OLD} 470.82.01",
        ]),
        (V100, (13, 0), (535, 104, 5), [
            "CUDA 13.0 compiles for compute capability 7.5 and later, but the GPU has 7.0",
            "CUDA 13.0 needs NVIDIA driver 580.65.06 or later, but this is 535.104.05",
        ]),
        (V100, (), (), []),
        ((), (13, 0), (), []),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said(
    capability: toolkit.Version, cuda: toolkit.Version, driver: toolkit.Version, wrong: list[str]
) -> None:
    found = toolkit.mismatches(capability, cuda, driver)
    assert [f"{one.rule}, but {one.value}" for one in found] == wrong
    assert all(one.cure for one in found)


versions = st.tuples(st.integers(10, 16), st.integers(0, 9))


@given(st.tuples(st.integers(3, 12), st.integers(0, 9)), versions, st.tuples(*[st.integers(400, 700)] * 3))
def test_a_newer_driver_and_a_newer_gpu_are_never_worse(
    capability: toolkit.Version, cuda: toolkit.Version, driver: toolkit.Version
) -> None:
    here = len(toolkit.mismatches(capability, cuda, driver))
    assert len(toolkit.mismatches(capability, cuda, (driver[0] + 1, *driver[1:]))) <= here
    assert len(toolkit.mismatches((capability[0] + 1, 0), cuda, driver)) <= here


def test_equal_gpus_of_a_node_are_told_once_and_an_old_driver_without_a_gpu_too() -> None:
    (one,) = toolkit.of_node([("Tesla V100", V100)] * 4 + [("T4", T4)], (13, 0), (580, 65, 6))
    assert "Tesla V100 has 7.0" in str(one)
    assert len(toolkit.of_node([("A100", A100)] * 2, (13, 0), (535, 0, 0))) == 1
    assert len(toolkit.of_node([], (13, 0), (535, 0, 0))) == 1


FACTS: dict[str, Any] = {
    "gpus": [{"name": "Tesla V100", "memory_gib": 16.0, "capability": [7, 0]}],
    "gpu_precisions": ["fp32", "fp16"],
    "tensorflow_cuda": True,
    "driver": "535.104.05",
    "toolkit": "13.0",
}


def test_doctor_shows_driver_and_toolkit_and_a_row_with_a_cure_for_what_is_wrong() -> None:
    rows = [finding.row() for finding in doctor._gpus(FACTS) if finding.matter == "CUDA"]
    assert [(row[""], row["finding"]) for row in rows] == [
        ("✓", "toolkit 13.0, driver 535.104.05"),
        ("✗", "CUDA 13.0 compiles for compute capability 7.5 and later, but Tesla V100 has 7.0"),
        ("✗", "CUDA 13.0 needs NVIDIA driver 580.65.06 or later, but this is 535.104.05"),
    ]
    assert "CUDA_HOME=/usr/local/cuda-12" in rows[1]["cure"]
    sound = [f for f in doctor._gpus({**FACTS, "toolkit": "12.5"}) if f.matter == "CUDA"]
    assert [(finding.finding, finding.is_wrong) for finding in sound] == [("toolkit 12.5, driver 535.104.05", False)]


def test_a_node_of_a_cluster_says_the_same() -> None:
    said = [str(one) for one in node_checkup._mismatches(FACTS)]
    assert [one.partition(", but ")[0].split()[0] for one in said] == ["CUDA", "CUDA"]
    assert node_checkup._mismatches({**FACTS, "gpus": []}) == []
    assert node_checkup._mismatches({}) == []


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder of commands that speak as a V100's node does, with CUDA 13."""
    said = {
        "nvidia-smi": "Tesla V100-SXM2-16GB, 7.0\nTesla V100-SXM2-16GB, 7.0",
        "cuda/bin/nvcc": "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0",
    }
    for name, words in said.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{words}\nEND\n")
        path.chmod(0o755)
    return tmp_path


def set_up(node: Path) -> subprocess.CompletedProcess[str]:
    """`make setup GPU=1` in a copy of the tree, on that node, with a `uv` that says what it was asked to do."""
    root = node / "tree"
    if not root.exists():
        (root / "scripts").mkdir(parents=True)
        (root / "scripts/setup").write_text((ROOT / "scripts/setup").read_text())
        (root / "workers").symlink_to(ROOT / "workers")
        (node / "uv").write_text('#!/bin/sh\n[ "$1" = --version ] && echo uv 0.9.9 || { echo "uv $*"; exit 1; }\n')
        (node / "uv").chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "PATH": f"{node}:{os.environ['PATH']}",
        "CUDA_HOME": f"{node}/cuda",
        "GPU": "1",
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        ["bash", root / "scripts/setup"], env=environment, capture_output=True, text=True, check=False
    )


def test_set_up_stops_on_a_v100_with_cuda_13_before_it_installs_anything(node: Path) -> None:
    ran = set_up(node)
    assert ran.returncode == 2
    assert "CUDA 13.0 compiles for compute capability 7.5 and later, but Tesla V100-SXM2-16GB has 7.0" in ran.stderr
    assert "install the CUDA 12 toolkit" in ran.stderr
    assert "uv sync" not in ran.stdout


def test_set_up_goes_on_where_all_goes_together_and_says_what_it_found(node: Path) -> None:
    smi = node / "nvidia-smi"
    smi.write_text(smi.read_text().replace("Tesla V100-SXM2-16GB, 7.0", "NVIDIA H100, 9.0"))
    ran = set_up(node)
    assert "setup: CUDA 13.0, driver " in ran.stderr
    assert "NVIDIA H100" in ran.stderr
    assert "uv sync" in ran.stdout


def test_the_driver_is_the_one_that_is_loaded_and_the_toolkit_that_of_set_up(tmp_path: Path, node: Path) -> None:
    (tmp_path / "version").write_text("580.65.06\n")
    assert toolkit.driver_here(str(tmp_path / "version")) == (580, 65, 6)
    assert toolkit.shown_driver((580, 65, 6)) == "580.65.06"
    assert toolkit.driver_here(str(tmp_path / "none")) == ()
    (tmp_path / "horovod-cuda").write_text("release 12.5\n")
    assert toolkit.toolkit_here("", tmp_path / "horovod-cuda") == (12, 5)
    assert toolkit.toolkit_here(str(node / "cuda"), tmp_path / "horovod-cuda") == (13, 0)
    assert toolkit.toolkit_here(str(tmp_path / "none"), tmp_path / "none") == ()
