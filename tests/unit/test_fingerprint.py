"""A result names the machine and the software that it was made with, the same way each time."""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import files
from workers.node import fingerprint, readings

ROOT = Path(__file__).parents[2]

CPUINFO = """\
processor\t: {0}
model name\t: A processor @ 2.60GHz
cpu MHz\t\t: 26{0}0.122
physical id\t: {1}
core id\t\t: {2}
"""


def test_facts_are_the_same_at_each_call() -> None:
    assert fingerprint.hardware() == fingerprint.hardware()
    assert fingerprint.software() == fingerprint.software()


facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def backwards(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    return [backwards(it) for it in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(), facts, max_size=5))
def test_a_digest_does_not_depend_on_the_order_of_facts(some: dict[str, Any]) -> None:
    assert fingerprint.digest(some) == fingerprint.digest(backwards(some))
    assert len(fingerprint.digest(some)) == 10


def test_another_fact_has_another_digest() -> None:
    assert fingerprint.digest({"memory_gib": 64}) != fingerprint.digest({"memory_gib": 128})


def test_no_fact_names_the_machine() -> None:
    told = json.dumps([fingerprint.hardware(), fingerprint.software({})])
    addresses = [path.read_text().strip() for path in Path("/sys/class/net").glob("*/address")]
    names = [platform.node(), *addresses, *(files.text(path) for path in ("/etc/machine-id", "/etc/hostname"))]
    for name in names:
        if len(name) > 3:
            assert name not in told


def test_sockets_and_cores_are_told_from_threads() -> None:
    threads = [CPUINFO.format(i, i // 4, i % 2) for i in range(8)]  # two sockets, two cores, two threads each
    told = fingerprint.cpu("\n".join(threads))
    assert told == {"model": "A processor @ 2.60GHz", "sockets": 2, "cores": 4, "threads": 8}


def node(root: Path, disks: tuple[str, str], interface: str, link: str = "100000") -> dict[str, Any]:
    """A node whose devices got these names at this boot."""
    files = {
        "proc/cpuinfo": CPUINFO.format(0, 0, 0),
        "proc/meminfo": f"MemTotal:       {131_900_000 + len(interface)} kB\nMemFree: {len(disks[0])} kB\n",
        f"sys/block/{disks[0]}/device/model": "Fast disk  ",
        f"sys/block/{disks[0]}/device/serial": f"S{root}",
        f"sys/block/{disks[0]}/size": str(2 << 31),
        f"sys/block/{disks[0]}/queue/rotational": "0",
        f"sys/block/{disks[1]}/device/model": "Large disk",
        f"sys/block/{disks[1]}/size": str(16 << 31),
        f"sys/block/{disks[1]}/queue/rotational": "1",
        f"sys/class/net/{interface}/speed": link,
        f"sys/class/net/{interface}/address": f"{root}",
        f"sys/class/net/{interface}/device/vendor": "0x1",
        "sys/class/net/docker0/speed": "10000",
        "sys/class/infiniband/mlx5_0/hca_type": "MT4129",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return fingerprint.hardware(f"{root}/proc", f"{root}/sys")


def test_what_a_container_may_not_use_is_a_fact_and_no_other_machine_has_another_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "nvml", lambda: (None, "no driver"))
    own, limit = tmp_path / "proc/self/cgroup", tmp_path / "sys/fs/cgroup/pod/cpu.max"
    for path, told in ((own, "0::/pod/c1\n"), (limit, "max 100000\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(told)
    (tmp_path / "proc/cpuinfo").write_text("\n".join(CPUINFO.format(i, 0, i) for i in range(8)))

    def facts(cores: int) -> dict[str, Any]:
        return fingerprint.hardware(f"{tmp_path}/proc", f"{tmp_path}/sys", range(cores))

    whole = facts(8)
    assert "container" not in whole
    assert facts(6) == whole | {"container": {"usable_cores": 6}}
    limit.write_text("250000 100000\n")
    assert facts(8) == whole | {"container": {"usable_cores": 3, "cpu_quota": 2.5}}
    limit.write_text("800000 100000\n")
    assert facts(8) == whole, "a quota of all of it keeps nothing back"


def test_equal_nodes_have_equal_digests_whatever_their_devices_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "nvml", lambda: (None, "no driver"))
    one = node(tmp_path / "one", ("nvme0n1", "sda"), "eth0")
    other = node(tmp_path / "other", ("nvme1n1", "sdb"), "enp1s0f0")
    assert one == other
    assert fingerprint.digest(one) == fingerprint.digest(other)
    assert one["disks"] == [
        {"is_rotational": False, "model": "Fast disk", "size_gib": 2048},
        {"is_rotational": True, "model": "Large disk", "size_gib": 16384},
    ]
    assert one["interfaces"] == [{"speed_mbit_per_s": 100_000}]
    assert one["infiniband"] == [{"model": "MT4129", "rates": ["400 Gb/sec (4X NDR)"]}]
    assert one["memory_gib"] == 126
    slower = node(tmp_path / "slower", ("nvme0n1", "sda"), "eth0", link="10000")
    assert fingerprint.digest(slower) != fingerprint.digest(one)


def test_a_node_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert fingerprint.hardware(f"{tmp_path}/proc", f"{tmp_path}/sys")["kernel"]


class NvmlError(Exception):
    pass


def test_gpus_are_told_with_their_links_and_without_what_they_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> int:
        raise NvmlError("Not Supported")

    limits_w = [300.0, 300.0, 150.2]
    library = types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        NVML_CLOCK_GRAPHICS=0,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda gpu: "NVIDIA X",
        nvmlDeviceGetMemoryInfo=lambda gpu: types.SimpleNamespace(total=(80 << 30) - gpu),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda gpu: 5,
        nvmlDeviceGetMaxPcieLinkWidth=refuse,
        nvmlDeviceGetPowerManagementLimit=lambda gpu: 1000 * limits_w[gpu],
        nvmlDeviceGetApplicationsClock=lambda gpu, kind: refuse(gpu) if kind else 1312,
        nvmlDeviceGetP2PStatus=lambda one, other, kind: 0 if one + other == 1 else 1,
    )
    monkeypatch.setattr(readings, "nvml", lambda: (library, ""))
    told = fingerprint.hardware()
    own = {"name": "NVIDIA X", "memory_gib": 80, "pcie_generation": 5, "power_limit_w": 300, "clock_mhz": 1312}
    assert told["gpus"] == [own, own, own | {"power_limit_w": 150}]
    assert told["nvlinks"] == ["0-1"]
    limits_w[0] = 250.0  # nvidia-smi -pl 250
    assert fingerprint.digest(fingerprint.hardware()) != fingerprint.digest(told)


def test_variables_that_bear_on_a_trial_are_told_and_seats_and_secrets_are_not() -> None:
    kept = {"HOROVOD_CYCLE_TIME": "1", "NCCL_BUFFSIZE": "4", "TF_XLA_FLAGS": "x", "XLA_FLAGS": "y"}
    others = {"HOROVOD_RANK": "3", "HOROVOD_LOCAL_SIZE": "2", "TF_VAR_password": "p", "TF_TOKEN_host": "t", "PATH": "/"}
    assert fingerprint.in_force({**others, **kept}) == kept
    assert fingerprint.software({**others, **kept})["environment"] == kept


def test_the_precedence_that_the_system_gives_to_a_rank_is_read_back(tmp_path: Path) -> None:
    session = tmp_path / "autogroup"
    session.write_text("/autogroup-77 nice -10\n")
    code = "import os; os.nice(3); from workers.node import precedence as p; print(p.in_force({!r}))"
    expected = {"niceness": str(min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)), "session_niceness": "-10"}
    for file, told in ((session, expected), (tmp_path / "none", {"niceness": expected["niceness"]})):
        command = [sys.executable, "-c", code.format(str(file))]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert ast.literal_eval(ran.stdout) == told


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, env=env)
    return tmp_path


def test_a_checkout_tells_its_commit_and_whether_it_is_dirty(checkout: Path) -> None:
    clean = fingerprint.commit(checkout)
    assert len(clean["commit"]) == 40
    assert clean["is_dirty"] is False
    (checkout / "new.py").write_text("1")
    assert fingerprint.commit(checkout) == {**clean, "is_dirty": True}


def test_what_is_no_checkout_has_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = checkout / "site-packages"
    installed.mkdir()
    assert fingerprint.commit(installed) == {"commit": "unknown"}
    monkeypatch.setenv("PATH", str(installed))  # no git
    assert fingerprint.commit(checkout) == {"commit": "unknown"}


def test_software_names_versions_and_how_horovod_was_built() -> None:
    told = fingerprint.software()
    assert {"tensorflow", "horovod", "ray", "mlflow", "numpy"} <= told["packages"].keys()
    assert told["horovod_build"].keys() == {"gloo", "nccl", "mpi", "cuda"}
    assert told["python"] == platform.python_version()


def test_it_imports_nothing_heavy() -> None:
    """A node says what it is made of before anything else starts there."""
    code = "from workers.node import fingerprint as f; f.hardware(); f.software(); import sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"tensorflow", "horovod", "ray", "mlflow", "numpy"} & set(ran.stdout.split())
