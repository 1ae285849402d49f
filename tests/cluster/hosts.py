"""Hosts made of namespaces on this machine: each has its own network address, processes, home folder and sshd.

They share the machine's kernel, processors and file system; what is below `shared` they all see, as on a cluster with
a network file system. Their links can be cut and slowed down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(sys.prefix)  # lent to every host, rather than made anew on each
NETWORK = "10.77.0"
BRIDGE = "sweep-br"
NEEDED = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "rsync": "rsync", "ssh": "openssh-client"}
SSHD = Path("/usr/sbin/sshd")
DISK = "sweep-disk"  # that the hosts share
FIRST = 10  # the head's address ends so; the others follow
HOME = "/root"


def lacking() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid():
        return "hosts of network namespaces need root"
    if ENVIRONMENT.name != ".venv":
        return "hosts are lent the project's .venv, and this is another environment"
    missing = [package for tool, package in NEEDED.items() if not shutil.which(tool)]
    missing += [] if SSHD.exists() else ["openssh-server"]
    if missing:
        return f"not installed: {', '.join(sorted(set(missing)))}"
    made = subprocess.run(["unshare", "-n", "-m", "-p", "-f", "--uts", "true"], capture_output=True, check=False)
    return "" if made.returncode == 0 else "the system lets nobody make namespaces"


class Host:
    def __init__(self, number: int, folder: Path, key: Path) -> None:
        self.name = f"node{number}"
        self.address = f"{NETWORK}.{FIRST + number}"
        self.space, self._link = f"sweep-{number}", f"sweep-v{number}"
        self._folder, self._key = folder, key
        self._init: subprocess.Popen[bytes] | None = None
        self.home = folder / "home"
        for path in (self.home / ".ssh", self.home / "ray-sweeps/.venv", folder / "ray", folder / "run"):
            path.mkdir(parents=True)
        shutil.copy(f"{key}.pub", self.home / ".ssh/authorized_keys")
        self._wire(number)

    def _wire(self, number: int) -> None:
        inside = f"sweep-i{number}"
        _ip(f"netns add {self.space}")
        _ip(f"link add {self._link} type veth peer name {inside}")
        _ip(f"link set {inside} netns {self.space}")
        _ip(f"link set {self._link} master {BRIDGE}", f"link set {self._link} up")
        for command in (f"addr add {self.address}/24 dev {inside}", f"link set {inside} up", "link set lo up"):
            _ip(f"-n {self.space} {command}")

    @property
    def _names(self) -> Path:
        return self._folder.parent / "hosts"

    def start(self) -> None:
        """Boot it: processes of its own, and sshd."""
        config = self._folder / "sshd_config"
        config.write_text(
            f"HostKey {self._key}\nListenAddress {self.address}\nPermitRootLogin yes\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nAuthorizedKeysFile {HOME}/.ssh/authorized_keys\nMaxStartups 100\n"
        )
        binds = {str(ENVIRONMENT): self.home / "ray-sweeps/.venv"}
        for needed in {Path(sys.base_prefix), ROOT}:  # what a home of its own would hide
            if needed.is_relative_to(HOME):
                (self.home / needed.relative_to(HOME)).mkdir(parents=True, exist_ok=True)
                binds[str(needed)] = self.home / needed.relative_to(HOME)
        script = [
            "set -e",
            f"hostname {self.name}",
            *(f"mount --bind {source} {target}" for source, target in binds.items()),
            "mkdir -p /tmp/ray /run/sshd",
            f"mount --bind {self._folder}/ray /tmp/ray",
            f"mount --bind {self._names} /etc/hosts",
            f"mount --rbind {self.home} {HOME}",
            f"exec {SSHD} -D -e -f {config}",
        ]
        inside = ["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc", "--uts", "sh", "-c", "\n".join(script)]
        with (self._folder / "sshd.log").open("ab") as log:
            self._init = subprocess.Popen(["ip", "netns", "exec", self.space, *inside], stdout=log, stderr=log)

    def kill(self) -> None:
        """The power goes: every process of it at once."""
        if self._init:
            inits = psutil.Process(self._init.pid).children()
            for process in inits or [psutil.Process(self._init.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # the first process of its namespace takes all others with it
            self._init.wait()
            self._init = None

    def processes(self) -> list[psutil.Process]:
        """Return its processes, as this machine sees them."""
        init = self._init  # another thread may kill it
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(init.pid).children(recursive=True) if init else []
        return []

    def run(self, command: str, timeout_s: float = 60) -> str:
        """By SSH, as its user would."""
        options = ["-i", str(self._key), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        ran = subprocess.run(
            ["ssh", *options, "-o", "LogLevel=ERROR", f"root@{self.address}", command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert ran.returncode == 0, f"{self.name}: {command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    @property
    def is_up(self) -> bool:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("true", timeout_s=5)
            return True
        return False

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        _ip(f"link set {self._link} down")
        try:
            yield
        finally:
            _ip(f"link set {self._link} up")

    @contextlib.contextmanager
    def throttled(self, mbit: int) -> Iterator[Callable[[int], None]]:
        """What it receives and what it sends, each at such a rate; what is given sets another one, and drops nothing
        that is under way."""
        inside = self._link.replace("-v", "-i")
        links = ([], self._link), (["ip", "netns", "exec", self.space], inside)

        def tc(what: str, limit: str = "") -> None:
            for where, link in links:
                _run([*where, *f"tc qdisc {what} dev {link} root {limit}".split()])

        def limit(mbit: int) -> str:
            return f"tbf rate {mbit}mbit burst 64kb latency 500ms"

        tc("add", limit(mbit))
        try:
            yield lambda mbit: tc("change", limit(mbit))
        finally:
            tc("del")

    def unmake(self) -> None:
        self.kill()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(f"link del {self._link}", f"netns del {self.space}")


@contextlib.contextmanager
def made(count: int, shared_mib: int = 0) -> Iterator[tuple[list[Host], Path]]:
    """So many hosts on one network, of which this machine is the laptop; and the folder that they share, on a disk of
    its own if that has a size."""
    _sweep_away()
    folder = Path(tempfile.mkdtemp(prefix="sweep-hosts-"))
    hosts: list[Host] = []
    try:
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")])
        _ip(f"link add {BRIDGE} type bridge", f"addr add {NETWORK}.1/24 dev {BRIDGE}", f"link set {BRIDGE} up")
        (folder / "shared").mkdir()
        if shared_mib:
            _run(["mount", "-t", "tmpfs", "-o", f"size={shared_mib}m", DISK, str(folder / "shared")])
        names = ["127.0.0.1 localhost", *(f"{NETWORK}.{FIRST + number} node{number}" for number in range(count))]
        (folder / "hosts").write_text("\n".join(names) + "\n")
        for number in range(count):
            hosts.append(Host(number, folder / f"node{number}", folder / "key"))
            hosts[-1].start()
        give_up = time.monotonic() + 30
        while not all(host.is_up for host in hosts):
            assert time.monotonic() < give_up, [path.read_text() for path in folder.glob("*/sshd.log")]
            time.sleep(0.2)
        yield hosts, folder
    finally:
        for host in hosts:
            host.unmake()
        _sweep_away()
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_away() -> None:
    """What a run that was killed has left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for space in (line.split()[0] for line in listed.splitlines() if line.startswith("sweep-")):
        _ip(f"netns del {space}")
    for link in Path("/sys/class/net").glob("sweep-*"):
        with contextlib.suppress(subprocess.CalledProcessError):  # it goes with its namespace, perhaps meanwhile
            _ip(f"link del {link.name}")
    for mount in (line.split() for line in Path("/proc/mounts").read_text().splitlines()):
        if mount[0] == DISK:
            _run(["umount", "--lazy", mount[1]])


def _ip(*commands: str) -> None:
    for command in commands:
        _run(["ip", *command.split()])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
