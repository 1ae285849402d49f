"""Whether a node's GPUs, NVIDIA's driver and the CUDA toolkit that Horovod is built with go together. Standard library
only: set-up asks before there is an environment.

    python -m workers.node.toolkit [CUDA_HOME]

prints what it found, or what is wrong, and then ends with exit code 1.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from workers.contract.files import text

Version = tuple[int, ...]  # empty: not known
HOME = "/usr/local/cuda"
BUILT_WITH = "horovod-cuda"  # a file in the environment, by set-up: the toolkit's version
PATIENCE_S = 20.0

# By a toolkit's major version: the oldest compute capability that it compiles for, and the oldest driver that runs what
# it compiled (NVIDIA's release notes, and "CUDA Compatibility").
TOOLKITS: dict[int, tuple[Version, Version]] = {
    11: ((3, 5), (450, 80, 2)),
    12: ((5, 0), (525, 60, 13)),
    13: ((7, 5), (580, 65, 6)),
}
TENSORFLOW = 12  # the CUDA that TensorFlow 2.18 brings along
TENSORFLOW_CAPABILITY = (6, 0)  # the oldest that it has kernels for
REBUILD = "make clean setup GPU=1 CUDA_HOME=/usr/local/cuda-12"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    rule: str
    value: str
    cure: str

    def __str__(self) -> str:
        return f"{self.rule}, but {self.value}: {self.cure}"


def mismatches(capability: Version, toolkit: Version, driver: Version, name: str = "") -> list[Mismatch]:
    """Return what does not go together. What is not known is not judged. Pure."""
    found = []
    gpu = name or "the GPU"
    known = [major for major in TOOLKITS if toolkit and major <= toolkit[0]]
    least_capability, least_driver = TOOLKITS[max(known)] if known else ((), ())
    if capability and capability < least_capability:
        rule = f"CUDA {shown(toolkit)} compiles for compute capability {shown(least_capability)} and later"
        cure = f"install the CUDA 12 toolkit beside it, then {REBUILD}"
        found.append(Mismatch(rule=rule, value=f"{gpu} has {shown(capability)}", cure=cure))
    if capability and capability < TENSORFLOW_CAPABILITY:
        rule = f"TensorFlow 2.18 has kernels for compute capability {shown(TENSORFLOW_CAPABILITY)} and later"
        found.append(Mismatch(rule=rule, value=f"{gpu} has {shown(capability)}", cure="sweep on another GPU"))
    least = TOOLKITS[TENSORFLOW][1]
    if driver and driver < least:
        rule = f"TensorFlow's CUDA {TENSORFLOW} needs NVIDIA driver {shown_driver(least)} or later"
        found.append(Mismatch(rule=rule, value=f"this is {shown_driver(driver)}", cure="update the driver"))
    elif driver and driver < least_driver:
        rule = f"CUDA {shown(toolkit)} needs NVIDIA driver {shown_driver(least_driver)} or later"
        cure = f"update the driver, or build with CUDA 12: {REBUILD}"
        found.append(Mismatch(rule=rule, value=f"this is {shown_driver(driver)}", cure=cure))
    return found


def of_node(gpus: Iterable[tuple[str, Version]], toolkit: Version, driver: Version) -> list[Mismatch]:
    """Return what does not go together on a node, each thing once. Pure."""
    found = [one for name, capability in gpus for one in mismatches(capability, toolkit, driver, name)]
    return list(dict.fromkeys(found or mismatches((), toolkit, driver)))


def parsed(text: str) -> Version:
    """Return the first version in a text; empty where there is none."""
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def shown(version: Version) -> str:
    return ".".join(str(part) for part in version)


def shown_driver(version: Version) -> str:
    """NVIDIA writes the last part with two digits."""
    return ".".join(f"{part:02d}" if n else str(part) for n, part in enumerate(version))


def driver_here(path: str = "/sys/module/nvidia/version") -> Version:
    """Return the version of the driver that is loaded; empty without one."""
    return parsed(text(path))


def toolkit_here(home: str = "", built_with: Path = Path(sys.prefix) / BUILT_WITH) -> Version:
    """Return the toolkit's version in a folder; without one that with which Horovod was built, else the system's."""
    if not home and built_with.is_file():
        return parsed(built_with.read_text())
    said = _output([f"{home or os.environ.get('CUDA_HOME', HOME)}/bin/nvcc", "--version"])
    return parsed(said.partition("release")[2])


def gpus_here() -> list[tuple[str, Version]]:
    """Return the GPUs that NVIDIA's own tool lists, with their compute capabilities."""
    said = _output(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"])
    rows = (line.rpartition(",") for line in said.splitlines())
    return [(name.strip(), parsed(capability)) for name, _, capability in rows if name]


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def main(arguments: Sequence[str]) -> int:
    gpus, toolkit, driver = gpus_here(), toolkit_here("".join(arguments[:1])), driver_here()
    wrong = of_node(gpus, toolkit, driver)
    names = ", ".join(sorted({name for name, _ in gpus})) or "no GPU"
    found = f"CUDA {shown(toolkit) or 'unknown'}, driver {shown_driver(driver) or 'none'}, {names}"
    print("; ".join(str(one) for one in wrong) or found)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
