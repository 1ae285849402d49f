"""The shipped cluster.yaml, launched on hosts of this machine by a user with a home folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sweeps.record import ledger
from sweeps.run import status
from tests.cluster import database, hosts
from tests.cluster.hosts import ROOT, Host

JOINED_WITHIN_S = 150
BIN = Path(sys.executable).parent
SITE = {  # lines of the shipped file as they stand there
    "  head_ip: 10.0.0.10 ": "head",
    "  worker_ips: [10.0.0.11, 10.0.0.12] ": "workers",
    "  ssh_user: ubuntu ": "user",
    "  ssh_private_key: ~/.ssh/id_ed25519 ": "key",
    "    SWEEP_SHARED=/shared/ray-sweeps ": "shared",
    '    SWEEP_RACKS="10.0.0.11=r1 10.0.0.12=r1" ': "racks",
    "    MLFLOW_STORE= ": "store",
}
ANSWER = "answer: "
PLANTED = "pl4nted"  # in every value that is a secret
VALUES = (  # behind it and a dash
    *("of-a-node", "unasked", "of-the-laptop", "password", "beside-the-script", "in-a-file", "of-the-database"),
)


class Laptop:
    """Where a user sits: a home folder with a token and a key, and the project."""

    def __init__(self, hosts: list[Host], folder: Path, store: str = "") -> None:
        """`store`: MLflow's database, if it is not the one that the shipped file has."""
        self.home = folder / "laptop"
        self.home.mkdir()
        self.results = folder / "shared/results"
        self.head, *self.workers = hosts
        for host in hosts:  # as docs/cluster.md has it
            (host.home / ".ray-sweeps").mkdir(exist_ok=True)
            (host.home / ".ray-sweeps/environment").write_text(
                f"HF_TOKEN={PLANTED}-of-a-node\nAWS_SECRET_ACCESS_KEY={PLANTED}-unasked\n"
            )
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SWEEP_", "MLFLOW_"))}
        self.environment = kept | {
            "HF_TOKEN": f"{PLANTED}-of-the-laptop",
            "MLFLOW_TRACKING_PASSWORD": f"{PLANTED}-password",
            "HOME": str(self.home),
            "RAY_TMPDIR": str(self.home),
            "PYTHONPATH": str(ROOT),
            "RAY_API_SERVER_ADDRESS": str(self.home / "cluster.yaml"),
            "COLUMNS": "160",
            "PATH": f"{self._ssh()}:{os.environ['PATH']}",
        }
        self.call(BIN / "ray", "get-auth-token", "--generate")
        self._file = self._site(folder, store)
        self._is_up = False

    def _ssh(self) -> Path:
        """Where `ssh` is one that knows the hosts of this home: it would look in that of the system's user."""
        self.known_hosts = self.home / "known_hosts"
        script = self.home / "bin/ssh"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -o UserKnownHostsFile={self.known_hosts} "$@"\n')
        script.chmod(0o755)
        return script.parent

    def _site(self, folder: Path, store: str) -> Path:
        """The shipped file with its site's lines replaced, and nothing else."""
        racks = " ".join(f"{host.address}=r{n}" for n, host in enumerate(self.workers))
        new = {
            "head": f"  head_ip: {self.head.address} ",
            "workers": f"  worker_ips: [{', '.join(host.address for host in self.workers)}] ",
            "user": "  ssh_user: root ",
            "key": f"  ssh_private_key: {folder / 'key'} ",
            "shared": f"    SWEEP_SHARED={folder / 'shared'} ",
            "racks": f'    SWEEP_RACKS="{racks}" ',
            "store": f"    MLFLOW_STORE={store} ",
        }
        text = (ROOT / "cluster.yaml").read_text()
        for line, what in SITE.items():
            assert text.count(line) == 1, line
            text = text.replace(line, new[what])
        (self.home / "cluster.yaml").write_text(text)
        return self.home / "cluster.yaml"

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        self.call(BIN / "ray", "up", "-y", self._file, timeout_s=180)
        self._is_up = True
        try:
            yield
        finally:
            if self._is_up:
                self.down()

    def down(self) -> None:
        self.call(BIN / "ray", "down", "-y", self._file, timeout_s=120)
        self._is_up = False

    def call(self, *command: object, timeout_s: float = 120, code: int = 0, folder: Path = ROOT) -> str:
        """What a command says on its stdout, run in the project's folder as the docs have it."""
        ran = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert ran.returncode == code, f"{' '.join(map(str, command))}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout if code == 0 else ran.stdout + ran.stderr

    def sweep(self, *arguments: object, timeout_s: float = 120, code: int = 0, folder: Path = ROOT) -> str:
        return self.call(BIN / "sweep", *arguments, timeout_s=timeout_s, code=code, folder=folder)

    def swept(self, text: str, within_s: float = 1200) -> list[dict[str, Any]]:
        """The trials of a sweep file's text, once the cluster has run them all."""
        return self.ended(self.submitted(text), within_s)

    def submitted(self, text: str) -> str:
        """The name of a sweep file's text, as a sweep of the cluster."""
        planned = self.home / "swept.yaml"
        planned.write_text(text)
        return self.sweep("submit", planned, "--fresh").strip()

    def ended(self, name: str, within_s: float = 1200) -> list[dict[str, Any]]:
        """The trials of a sweep, once all have completed."""
        give_up = time.monotonic() + within_s
        while (told := json.loads(self.sweep("status", name, "--format", "json")))["state"] != "complete":
            assert time.monotonic() < give_up, f"{told}\n{self.logs()}"
            time.sleep(3)  # each look takes a processor's time from the ranks
        rows: list[dict[str, Any]] = json.loads(self.sweep("trials", name, "--format", "json"))
        assert {row["outcome"] for row in rows} == {"completed"}, rows
        return rows

    def look(self, name: str) -> dict[str, Any]:
        """What `sweep status` says of a sweep, from the folder that the hosts share: it takes no processor's
        time from the ranks."""
        with unittest.mock.patch.dict(os.environ, SWEEP_RESULTS=str(self.results)):
            return status.look(name)

    def record(self, name: str) -> ledger.SweepRecord:
        """What a sweep has in its ledger."""
        with unittest.mock.patch.dict(os.environ, SWEEP_RESULTS=str(self.results)):
            return ledger.read(name)

    @contextlib.contextmanager
    def started(self, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on until the block ends."""
        command = [str(part) for part in (BIN / "sweep", *arguments)]
        running = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)

    def wait_for_nodes(self) -> None:
        """Until Ray has the head and every worker."""
        give_up = time.monotonic() + JOINED_WITHIN_S
        while len(self.nodes()) < 1 + len(self.workers):
            assert time.monotonic() < give_up, self.nodes()
            time.sleep(2)

    def logs(self) -> str:
        """The last of what Ray's launcher of nodes and the drivers have logged on the head."""
        files = "$(ls -t job-driver-sweep-*.log | head -2) monitor.out monitor.err monitor.log"
        return self.head.run(f"cd /tmp/ray/session_latest/logs && tail -n 60 {files} 2>&1 || true")

    def nodes(self) -> list[dict[str, object]]:
        """That Ray has, as the head sees them."""
        return [node for node in self.ask("ray.nodes()") if node["Alive"]]

    def jobs(self) -> list[dict[str, str]]:
        """That the head has been given, by their ids; drivers that connect by themselves have none."""
        jobs = "ray.job_submission.JobSubmissionClient('http://127.0.0.1:8265').list_jobs()"
        return list(
            self.ask(f"[{{'id': job.submission_id, 'status': job.status}} for job in {jobs} if job.submission_id]")
        )

    def job_list(self) -> list[str]:
        """All that the head tells of each job to whoever has the token: its command, environment and end."""
        jobs = "ray.job_submission.JobSubmissionClient('http://127.0.0.1:8265').list_jobs()"
        return list(self.ask(f"[str(job) for job in {jobs}]"))

    def ask(self, question: str) -> Any:
        """What `question`, in Python and of Ray, comes to on the head; a JSON value."""
        begin = "import json, ray, ray.job_submission; ray.init('auto', logging_level='ERROR')"
        script = f"{begin}; print('{ANSWER}' + json.dumps({question}))"
        told = self.head.run(f"cd ~/ray-sweeps && RAY_AUTH_MODE=token .venv/bin/python -c {shlex.quote(script)}")
        (answer,) = (line for line in told.splitlines() if line.startswith(ANSWER))
        return json.loads(answer.removeprefix(ANSWER))


def look_for_planted(places: Sequence[str], apart_from: Path, since: Path) -> str:
    """Return a command that names the files there which hold a planted value, written after a file was. Others than the
    hosts write there too, so the values are looked for in full."""
    values = " ".join(f"-e {PLANTED}-{value}" for value in VALUES)
    found = f"find {' '.join(places)} -path {apart_from} -prune -o -type f -newer {since} -print0 2>/dev/null"
    return f"{found} | xargs -0 -r grep -lsF --binary-files=text {values} || true"


@contextlib.contextmanager
def on_hosts(*, with_postgres: bool = False) -> Iterator[Laptop]:
    """A user who has called `ray up` on the shipped cluster.yaml: a head and two nodes. MLflow is in PostgreSQL behind
    a password where that is asked for and installed, else in the file's own store."""
    with hosts.made(3) as (machines, folder):
        store = ""
        if with_postgres and (programs := database.programs()):
            store = database.Postgres(machines[0], folder, programs, password=f"{PLANTED}-of-the-database").store
        laptop = Laptop(machines, folder, store)
        with laptop.cluster():
            laptop.wait_for_nodes()
            yield laptop
