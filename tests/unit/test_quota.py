"""What a container may use of its machine's cores, on planted control groups."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from tests.unit.records import config
from workers.contract import quota
from workers.inputs import opening
from workers.node.topology import Core, Topology

AFFINITY = range(64)
V2 = "0::/kubepods/pod1/c2\n"
V1 = "5:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n1:name=systemd:/docker/c1\n0::/system.slice\n"


def planted(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (folder / "own").write_text(own)
    return folder / "cgroup", folder / "own"


def v1(group: str, quota_us: int, period_us: int = 100_000) -> dict[str, str]:
    return {f"{group}/cpu.cfs_quota_us": str(quota_us), f"{group}/cpu.cfs_period_us": str(period_us)}


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (V2, {"kubepods/pod1/c2/cpu.max": "400000 100000"}, 4),
        # the smallest on the way up counts, wherever it is
        (V2, {"kubepods/pod1/c2/cpu.max": "max 100000", "kubepods/pod1/cpu.max": "250000 100000"}, 2.5),
        (V2, {"kubepods/pod1/c2/cpu.max": "800000 100000", "kubepods/cpu.max": "100000 50000"}, 2),
        (V2, {"kubepods/pod1/c2/cpu.max": "200000 100000", "kubepods/cpu.max": "800000 100000"}, 2),
        (V2, {"kubepods/other/cpu.max": "100000 100000"}, math.inf),
        # a container that sees itself as the root
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/../c9\n", {"cpu.max": "300000 100000"}, 3),
        (V2, {"cpu.max": "300000 100000"}, 3),
        # where the machine still has both versions
        (V2, {"unified/kubepods/cpu.max": "300000 100000"}, 3),
        (V1, v1("cpu,cpuacct/docker/c1", 400_000), 4),
        (V1, v1("cpu/docker/c1", 50_000), 0.5),
        (V1, v1("cpu,cpuacct/docker/c1", -1) | v1("cpu,cpuacct/docker", 300_000), 3),
        (V1, v1("cpu,cpuacct/docker/c1", 600_000) | v1("cpu,cpuacct", 800_000, 400_000), 2),
        (V1, v1("cpu,cpuacct", 250_000), 2.5),
        (V1, v1("memory/docker/c1", 100_000), math.inf),
        (V1, v1("cpu,cpuacct/docker/c1", -1), math.inf),
        ("", {}, math.inf),
    ],
)
def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path, own: str, files: dict[str, str], cores: float) -> None:
    groups, said = planted(tmp_path, own, files)
    assert quota.quota(groups, said) == cores
    assert quota.cores(groups, said, AFFINITY) == (math.ceil(cores) if cores < 64 else 64)


def test_the_smaller_of_affinity_and_quota_counts_and_only_what_is_kept_back_is_a_fact(tmp_path: Path) -> None:
    groups, own = planted(tmp_path, V2, {"kubepods/cpu.max": "350000 100000"})
    assert quota.facts(64, groups, own, AFFINITY) == {"usable_cores": 4, "cpu_quota": 3.5}
    assert quota.described(64, groups, own, AFFINITY) == "4 of 64 cores (the container's quota)"
    assert quota.facts(64, groups, own, range(2)) == {"usable_cores": 2, "cpu_quota": 3.5}
    assert quota.described(64, groups, own, range(2)) == "2 of 64 cores (the affinity of its processes)"
    assert quota.facts(2, groups, own, range(2)) == {}
    assert quota.described(2, groups, own, range(2)) == ""
    free, none = planted(tmp_path / "free", V2, {"kubepods/cpu.max": "max 100000"})
    assert quota.facts(64, free, none, AFFINITY) == {}
    assert quota.facts(64, free, none, range(8)) == {"usable_cores": 8}


def test_auto_makes_no_more_decode_threads_than_the_quota_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Topology(tuple(Core(0, (cpu,)) for cpu in AFFINITY))
    trial = dataclasses.replace(config(), data="photographs", decode_threads="auto")
    for cores, threads in ((64, 60), (6, 2)):
        monkeypatch.setattr(quota, "cores", lambda cores=cores: cores)
        assert opening.cores_here(trial, 1, machine).decode_threads == threads
