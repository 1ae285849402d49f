"""How a cluster's head is reached from elsewhere: by its dashboard's address, or by the launcher file that says how SSH
gets there, through which the dashboard is asked then. Both need the cluster's token.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.cluster import private_ray
from sweeps.cluster.environment import variable
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.spec import reading
from sweeps.text import addresses, caller
from workers.contract.redact import masked

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

MLFLOW_PORT = 5000  # of the head
ANSWERS_WITHIN_S = 60.0  # a cluster, any question; else the link to it is gone
# What SSH runs on the head. It says so only once its own port is open here: whoever else listens there, whom the token
# must not reach, has SSH end. `cat` ends with our end of its input, however we end.
UP = "the tunnel is up"
THERE = f"echo {UP}; cat"


@contextlib.contextmanager
def tunnel(file: Path, port: int, there: int = MLFLOW_PORT) -> Iterator[tuple[str, Callable[[], RefusedError]]]:
    """To the MLflow, or another port, of the head that a launcher file describes, by SSH, as long as the block: its
    address here, and what waits for SSH to end by itself and says why it did."""
    head = cluster_file(file)
    key = ["-i", os.path.expanduser(head["key"])] if head["key"] else []
    to = f"{head['user']}@{head['head']}" if head["user"] else head["head"]
    options = ["-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    options += ["-o", "StrictHostKeyChecking=accept-new"]  # `ray up` asks less
    options += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
    if not shutil.which("ssh"):
        raise RefusedError(f"ssh must be installed to reach the head {to}, but is not: apt-get install openssh-client")
    forward = ["-L", f"127.0.0.1:{port}:127.0.0.1:{there}"]
    with subprocess.Popen(
        ["ssh", *key, *options, *forward, to, THERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for us: a question that is under way is taken back through the tunnel
    ) as line:

        def ended() -> RefusedError:
            assert line.stderr
            return RefusedError(_unreached(to, head["head"], line.stderr.read()))

        try:
            assert line.stdout
            if not any(said.strip() == UP for said in line.stdout):  # what else it says is the head's greeting
                raise ended()
            yield f"http://127.0.0.1:{port}", ended
        finally:
            line.terminate()


def _unreached(to: str, host: str, said: str) -> str:
    last = next(iter(reversed(said.strip().splitlines())), "nothing")  # before it stand SSH's banners
    cure = f"\n  if the head was installed anew: ssh-keygen -R {host}" if "Host key verification" in last else ""
    return f"SSH must reach the head {to}, but says: {last}{cure}"


@contextlib.contextmanager
def client(address: str) -> Iterator[JobSubmissionClient]:
    """Connect to a head, or raise a `RefusedError` for all that a user can cause: no such address, no token, other
    versions."""
    if not address.startswith(addresses.URL):
        with tunnel(Path(address), _free_port(), addresses.DASHBOARD_PORT) as (url, _):
            yield from _connected(url, address)
        return
    if is_in_clear(address):
        said = f"the token goes to {masked(address)} in clear text; --address cluster.yaml takes it through SSH"
        print(said, file=sys.stderr)
    yield from _connected(address, address)


def is_in_clear(url: str) -> bool:
    """Say whether others can read what is sent to a URL."""
    return url.startswith("http://") and not addresses.is_loopback(url)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def _connected(url: str, address: str) -> Iterator[JobSubmissionClient]:
    """Return the client of a job server, which was named by the address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    import requests

    try:
        with variable(addresses.JOB_SERVER, url):  # which Ray would rather heed than what it is given
            client = private_ray.client_of(url, ANSWERS_WITHIN_S)
        theirs = private_ray.version_there(client)
        if theirs != ray.__version__:
            raise RefusedError(
                f"client and cluster must have one version of Ray, but here is {ray.__version__} and there {theirs}\n"
                f"  {caller.current().ray_up} brings the cluster to this project's (ends sweeps), make setup your side"
            )
        yield client
    except (ConnectionError, requests.RequestException) as error:
        raise RefusedError(f"a cluster must answer at {address}, but: {first_line(error)}") from None
    except (RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RefusedError(_refusal(address, str(error))) from None


def _refusal(url: str, said: str) -> str:
    if re.search(r"\b(401|403)\b|[Aa]uthenticat|token", said):
        return (
            f"the cluster at {url} must be shown its token, but what is in ~/.ray/auth_token is missing or another\n"
            "  copy ~/.ray/auth_token from whoever has called `ray up`"
        )
    return f"the cluster at {url} refuses: {first_line(said)}"


def first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def cluster_file(path: Path) -> dict[str, Any]:
    """Return a launcher file as far as it says how to reach the head."""
    content = reading.mapping(reading.read(path), str(path))
    provider, auth = content.get("provider") or {}, content.get("auth") or {}
    head = provider.get("external_head_ip") or provider.get("head_ip")
    if not head and (kind := provider.get("type", "local")) != "local":
        rule = (
            "must be of machines that are there (local), since a cloud's file does not say where its head is: call"
            f" `ray dashboard {path}` and give --address http://127.0.0.1:{addresses.DASHBOARD_PORT}; for MLflow"
            f" `ray dashboard {path} --port {MLFLOW_PORT} --remote-port {MLFLOW_PORT}` and"
            f" http://127.0.0.1:{MLFLOW_PORT} in a browser; or `ray attach {path}` and the command there"
        )
        raise InputError(str(path), [Mistake("provider.type", rule, kind)])
    if not head:
        raise InputError(str(path), [Mistake("provider.head_ip", "must be given", None)])
    return {"head": head, "user": auth.get("ssh_user"), "key": auth.get("ssh_private_key")}
