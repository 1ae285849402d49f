"""What a result was made with: the machine and the software, as facts that can be compared by a short digest.

Nothing here changes from one day to the next on a machine that nobody changed, and nothing names the machine: two
equal nodes have equal facts. What can't be read is left out. Imports no TensorFlow and starts no device.

The project's part of the software is the content of the package `workers`, which is all of it that runs on a node:
whoever edits it there has another fingerprint, whatever git says or if there is none, and whoever edits anything else
has the same. The process that forks a node's ranks takes it of what it has loaded, see `workers.launch.preload`. The
packages that a rank computes with are known by their content too, see `installed`: one that was built anew, with a
patch or other flags, has the version that it had.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import mmap
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.contract import environment, quota, redact
from workers.contract.files import text
from workers.contract.messages import Framework
from workers.contract.packages import version_of
from workers.node import installed, readings

PROJECT = "ray-sweeps"
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
OF_CUDA = ("nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cudnn", "nvidia-nccl")
NVIDIA_PACKAGES: dict[Framework, tuple[str, ...]] = {
    "tensorflow": tuple(f"{name}-cu12" for name in OF_CUDA),
    "torch": (*(f"{name}-cu{major}" for name in OF_CUDA for major in (12, 13)), *(OF_CUDA[:2])),
}
PACKAGES: dict[Framework, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "keras", "horovod", "ray", "mlflow", "numpy"),
    "torch": ("torch", "triton", "ray", "mlflow", "numpy"),
}
COMPUTING: dict[Framework, tuple[str, ...]] = {  # known by their content too
    "tensorflow": ("tensorflow", "keras", "horovod", "numpy", *NVIDIA_PACKAGES["tensorflow"]),
    "torch": ("torch", "triton", "numpy", *NVIDIA_PACKAGES["torch"]),
}
NCCL_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64")
# Classes that Horovod's library has if, and only if, it was built with what they need. Their names stand near its
# beginning, before its code.
HOROVOD_BUILT = {
    "gloo": b"GlooAllreduceE",
    "nccl": b"NCCLAllreduceE",
    "mpi": b"MPIAllreduceE",
    "cuda": b"GPUOpContextE",
}
VARIABLES = (
    *(
        *environment.READ_LATE,
        "TF_",
        "XLA_",
        "GLOO_",
        "UCX_",
        "OMP_",
        "KMP_",
        "MKL_",
        "ONEDNN_",
        "DNNL_",
        "KERAS_BACKEND",
    ),
    *("NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "LD_PRELOAD", "MALLOC_"),
)
OF_TERRAFORM = ("TF_VAR_", "TF_TOKEN_", "TF_CLI_")  # not TensorFlow's, and often secret
NAMES_WITHIN = 8 << 20  # bytes
GIT_PATIENCE_S = 2.0


def digest(facts: Mapping[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def hardware(proc: str = "/proc", sys: str = "/sys", affinity: Collection[int] | None = None) -> dict[str, Any]:
    """Return the node, as far as a container lets it be used. Devices come without their names, which may change places
    from boot to boot, and sorted."""
    library, _ = readings.nvml()
    processors = cpu(text(f"{proc}/cpuinfo"))
    return _without_blanks(
        {
            "cpu": processors | {"caches": _caches(sys)},
            "container": quota.facts(
                processors["threads"], Path(sys, "fs/cgroup"), Path(proc, "self/cgroup"), affinity
            ),
            "memory_gib": _memory_gib(text(f"{proc}/meminfo")),
            "numa_nodes": len(glob.glob(f"{sys}/devices/system/node/node[0-9]*")),
            "gpus": _gpus(library) if library else [],
            "nvlinks": _nvlinks(library) if library else [],
            "nvidia_driver": text(f"{sys}/module/nvidia/version"),
            "interfaces": _sorted(_interface(path) for path in glob.glob(f"{sys}/class/net/*/device")),
            "infiniband": _sorted(_infiniband(path) for path in glob.glob(f"{sys}/class/infiniband/*")),
            "disks": _sorted(_disk(f"{sys}/block/{name}") for name in readings.whole_disks(sys)),
            "kernel": os.uname().release,
        }
    )


def cpu(cpuinfo: str) -> dict[str, Any]:
    """Return what /proc/cpuinfo tells. `cores` are physical, `threads` what the system schedules on."""
    processors = [
        {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())}
        for block in cpuinfo.split("\n\n")
    ]
    processors = [it for it in processors if "processor" in it]
    sockets = {it.get("physical id", "0") for it in processors}
    cores = {(it.get("physical id", "0"), it.get("core id", it["processor"])) for it in processors}
    models = sorted({it["model name"] for it in processors if "model name" in it})
    return {
        "model": ", ".join(models) or platform.machine(),
        "sockets": len(sockets),
        "cores": len(cores),
        "threads": len(processors),
    }


def _caches(sys: str) -> dict[str, str]:
    """Return the caches of the first core, by level and kind."""
    caches = {}
    for path in sorted(glob.glob(f"{sys}/devices/system/cpu/cpu0/cache/index*")):
        kind = {"Data": "d", "Instruction": "i"}.get(text(f"{path}/type"), "")
        caches[f"L{text(f'{path}/level')}{kind}"] = text(f"{path}/size")
    return caches


def _memory_gib(meminfo: str) -> int:
    """Return the memory in whole GiB: the kernel keeps some MiB for itself, now more, now less."""
    total = re.match(r"MemTotal:\s+(\d+) kB", meminfo)
    return round(int(total[1]) / 2**20) if total else 0


def _interface(path: str) -> dict[str, Any]:
    speed = text(f"{os.path.dirname(path)}/speed")
    driver = f"{path}/driver"
    return {
        "driver": os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else "",
        "speed_mbit_per_s": int(speed) if speed.isdecimal() else None,  # -1 where it has none
    }


def _infiniband(path: str) -> dict[str, Any]:
    rates = [text(f"{port}/rate") for port in sorted(glob.glob(f"{path}/ports/*"))]
    return {"model": text(f"{path}/hca_type"), "rates": rates}


def _disk(path: str) -> dict[str, Any]:
    sectors = text(f"{path}/size")
    return {
        "model": text(f"{path}/device/model"),
        "size_gib": round(int(sectors) * readings.SECTOR / 2**30) if sectors else None,
        "is_rotational": text(f"{path}/queue/rotational") == "1",
    }


def _gpus(library: Any) -> list[dict[str, Any]]:
    """Return the link is the widest that card and slot allow, and power and clocks are the limits that were set: what
    is in force falls when a GPU rests."""
    return [
        _without_blanks(
            {
                "name": _ask(library, "nvmlDeviceGetName", gpu),
                "memory_gib": _gpu_gib(library, gpu),
                "pcie_generation": _ask(library, "nvmlDeviceGetMaxPcieLinkGeneration", gpu),
                "pcie_width": _ask(library, "nvmlDeviceGetMaxPcieLinkWidth", gpu),
                "power_limit_w": _gpu_limit_w(library, gpu),
                "clock_mhz": _ask(library, "nvmlDeviceGetApplicationsClock", gpu, library.NVML_CLOCK_GRAPHICS),
                "memory_clock_mhz": _ask(library, "nvmlDeviceGetApplicationsClock", gpu, library.NVML_CLOCK_MEM),
            }
        )
        for gpu in _handles(library)
    ]


def _gpu_gib(library: Any, gpu: Any) -> int | None:
    memory = _ask(library, "nvmlDeviceGetMemoryInfo", gpu)
    return round(memory.total / 2**30) if memory else None


def _gpu_limit_w(library: Any, gpu: Any) -> int | None:
    """As `nvidia-smi -pl` has set it."""
    limit_mw = _ask(library, "nvmlDeviceGetPowerManagementLimit", gpu)
    return round(limit_mw / 1000) if limit_mw else None


def _nvlinks(library: Any) -> list[str]:
    """Return the pairs of GPUs that reach each other over NVLink, directly or over switches."""
    gpus = _handles(library)
    over_nvlink = library.NVML_P2P_CAPS_INDEX_NVLINK
    return [
        f"{one}-{other}"
        for one in range(len(gpus))
        for other in range(one + 1, len(gpus))
        if _ask(library, "nvmlDeviceGetP2PStatus", gpus[one], gpus[other], over_nvlink) == library.NVML_P2P_STATUS_OK
    ]


def _handles(library: Any) -> list[Any]:
    handles = [_ask(library, "nvmlDeviceGetHandleByIndex", index) for index in range(library.nvmlDeviceGetCount())]
    return [handle for handle in handles if handle is not None]


def _ask(library: Any, question: str, *about: Any) -> Any:
    try:
        return getattr(library, question)(*about)
    except library.NVMLError:
        return None


def software(environ: Mapping[str, str] = os.environ, framework: Framework = "tensorflow") -> dict[str, Any]:
    """Versions, how they were built, the content of what ranks of a framework run on a node, and the variables that
    bear on a trial."""
    is_tensorflow = framework == "tensorflow"
    return _without_blanks(
        {
            "python": platform.python_version(),
            "packages": {name: version_of(name) for name in (*PACKAGES[framework], *NVIDIA_PACKAGES[framework])},
            **package_contents(framework),
            "tensorflow_build": _tensorflow_build() if is_tensorflow else {},
            "horovod_build": _horovod_build() if is_tensorflow else {},
            **_nccl(),
            "code": code(contents()),
            "environment": in_force(environ),
        }
    )


def told(software: Mapping[str, Any], env_from: Collection[str]) -> dict[str, Any]:
    """Return these facts as they may be recorded, with their digest: without the values of variables that a sweep takes
    from its nodes. The digest knows these: a node is what it is, whoever names its variables, and is another when one
    is set anew."""
    variables = software.get("environment", {})
    hidden = {name: redact.HIDDEN for name in variables if name in env_from}
    return _without_blanks({"digest": digest(software), **software, "environment": {**variables, **hidden}})


def package_contents(framework: Framework = "tensorflow") -> dict[str, Any]:
    """Return the fact that says what lies in the packages that a rank computes with."""
    return _without_blanks({"package_contents": installed.contents(COMPUTING[framework])})


def contents(package: Path = PACKAGE) -> dict[str, bytes]:
    """Return a package's sources by path, as they lie there now."""
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in sorted(package.rglob("*.py"))}


def code(sources: Mapping[str, bytes]) -> str:
    """Return a digest of sources by path."""
    content = hashlib.sha256()
    for path, source in sources.items():
        content.update(f"{path} {len(source)}\n".encode() + source)
    return content.hexdigest()[:16]


def project() -> dict[str, Any]:
    """Return the project's version and commit: for people. They say too much and too little to be part of a
    fingerprint."""
    return _without_blanks({"version": version_of(PROJECT), **commit(ROOT)})


def in_force(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Horovod, NCCL, TensorFlow and XLA read, but for those that tell a rank its seat."""
    return {
        name: redact.shown(name, value)
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES)
        and not name.startswith(OF_TERRAFORM)
        and not (name.startswith("HOROVOD_") and name.endswith(environment.OF_THE_SEAT))
    }


def commit(checkout: Path) -> dict[str, Any]:
    """Return what git tells, asked once. An installed copy has no checkout, even where a folder above it is one."""
    unknown = {"commit": "unknown"}
    if not (checkout / ".git").exists():
        return unknown
    command = ["git", "--no-optional-locks", "-C", str(checkout), "status", "--porcelain=v2", "--branch"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_PATIENCE_S).stdout
    except (OSError, subprocess.SubprocessError):
        return unknown
    found = re.search(r"^# branch\.oid ([0-9a-f]+)$", said, re.MULTILINE)
    changes = [line for line in said.splitlines() if not line.startswith("#")]
    return {"commit": found[1], "is_dirty": bool(changes)} if found else unknown


def _folder(package: str) -> Path | None:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _tensorflow_build() -> dict[str, str]:
    """Return what TensorFlow was built against. The module that says so is read, not run."""
    folder = _folder("tensorflow")
    source = text(f"{folder}/python/platform/build_info.py") if folder else ""
    found = re.findall(r"'(cuda|cudnn)_version', '([\d.]+)'", source)
    return dict(found)


def _horovod_build() -> dict[str, bool]:
    folder = _folder("horovod")
    libraries = sorted(folder.glob("tensorflow/mpi_lib*.so")) if folder else []
    if not libraries:
        return {}
    with open(libraries[0], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        built = {name: library.find(symbol, 0, NAMES_WITHIN) >= 0 for name, symbol in HOROVOD_BUILT.items()}
    return built if any(built.values()) else {}  # it talks by one of them, or its names can't be read


def _nccl() -> dict[str, str]:
    """Of the system's library: the version, which its file's name tells, and the content. A wheel's is among the
    packages."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *NCCL_FOLDERS]
    for folder in folders:
        file = os.path.realpath(f"{folder}/libnccl.so.2")
        if found := re.fullmatch(r"libnccl\.so\.(\d+\.\d+\.\d+)", os.path.basename(file)):
            return {"nccl": found[1], "nccl_content": installed.digest_of(file)[:16]}
    return {}


def _sorted(facts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((_without_blanks(it) for it in facts), key=lambda it: json.dumps(it, sort_keys=True))


def _without_blanks(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what couldn't be read. What is false stays."""
    kept = {name: _without_blanks(value) if isinstance(value, dict) else value for name, value in facts.items()}
    return {name: value for name, value in kept.items() if value is False or value}
