"""Where locks hold on one host alone, no two hosts have a sweep."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from sweeps.cluster import doctor
from sweeps.errors import RefusedError
from sweeps.record import mounts, ownership
from sweeps.spec import plan, sweep_file

pytestmark = pytest.mark.unit

MOUNTED = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
31 22 0:45 / /shared rw,relatime shared:9 - nfs4 head:/export rw,vers=4.2,hard,local_lock=none,addr=10.0.0.1
32 22 0:46 / /shared/old rw,relatime - nfs head:/old rw,vers=3,nolock,proto=tcp,local_lock=all,addr=10.0.0.1
33 22 0:47 / /shared/three rw,relatime - nfs head:/3 rw,vers=3,proto=tcp,local_lock=none,addr=10.0.0.1
34 22 0:48 / /shared/half rw,relatime - nfs4 head:/4 rw,vers=4.1,local_lock=flock,addr=10.0.0.1
35 22 0:49 / /shared/my\\040sweeps rw,relatime - nfs head:/5 rw,vers=3,nolock,local_lock=all
36 22 0:50 / /windows rw,relatime - cifs //head/x rw,vers=3.1.1,nobrl,uid=0
37 22 0:51 / /windows/sound rw,relatime - cifs //head/y rw,vers=3.1.1,uid=0
38 22 0:52 / /ssh rw,nosuid - fuse.sshfs me@head:/x rw,user_id=0
39 22 0:53 / /lustre rw - lustre a@tcp:/x rw,localflock
40 22 0:54 / /hidden rw - nfs head:/6 rw,nolock
41 22 254:2 / /hidden rw - ext4 /dev/vda2 rw
"""
TEXT = "{name: study, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16], gpus: 1}}"


@pytest.mark.parametrize(
    ("folder", "how"),
    [
        ("/results", ""),
        ("/shared/results", ""),
        ("/shared/old/results", "nfs with nolock"),
        ("/shared/older", ""),
        ("/shared/three/results", ""),
        ("/shared/half", "nfs4 with local_lock=flock"),
        ("/shared/my sweeps/results", "nfs with nolock"),
        ("/windows/results", "cifs with nobrl"),
        ("/windows/sound", ""),
        ("/ssh/results", "fuse.sshfs"),
        ("/lustre", "lustre with localflock"),
        ("/hidden/results", ""),
    ],
)
def test_a_mount_whose_locks_hold_on_one_host_alone_is_told(
    folder: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTED)
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mountinfo")
    assert mounts.locks_hold_here_alone(Path(folder)) == how
    assert [row.finding for row in doctor._locks(Path(folder))] == [f"{how}: they hold on this host alone"] * bool(how)


def test_the_mounts_of_this_machine_can_be_read() -> None:
    assert mounts.locks_hold_here_alone(Path("/proc")) == ""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(mounts, "locks_hold_here_alone", lambda _: "nfs with nolock")
    return tmp_path / "results"


def begun(host: str, ends: bool) -> Path:
    """By a driver on this host, which may have ended."""
    with contextlib.closing(ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)) as book:
        if ends:
            book.end("stopped")
    at = book.paths.ledger
    at.write_text(at.read_text().replace(f'"host":"{os.uname().nodename}"', f'"host":"{host}"'))
    return at


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("host", ["elsewhere", os.uname().nodename])
def test_a_sweep_that_another_host_may_drive_is_not_taken(host: str, ends: bool) -> None:
    at = begun(host, ends)
    before, is_free = at.read_bytes(), ends or host != "elsewhere"
    assert ownership.is_driven("study") is not is_free
    if is_free:
        ownership.reopen("study").close()
        return
    for takes in (ownership.reopen, lambda name: ownership.resting(name).__enter__()):
        with pytest.raises(RefusedError) as refused:
            takes("study")
        said = str(refused.value)
        assert "but that of study on elsewhere has not said that it ended, and no lock tells: nfs with nolock" in said
        assert f"{at.parent}\n  do this on elsewhere; or mount the folder on all hosts" in said
    assert at.read_bytes() == before


def test_where_locks_hold_between_hosts_a_driver_elsewhere_that_was_killed_is_followed_by_one_here(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun("elsewhere", ends=False)
    monkeypatch.setattr(mounts, "locks_hold_here_alone", lambda _: "")
    assert not ownership.is_driven("study")
    ownership.reopen("study").close()


def test_a_folder_that_another_host_may_be_beginning_is_left_to_it(results: Path) -> None:
    (results / "study").mkdir(parents=True)
    with contextlib.closing(ownership.create(plan.plan(sweep_file.parse(TEXT, "x")), TEXT)) as book:
        assert book.facts.name == "study-2"
