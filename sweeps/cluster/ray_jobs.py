"""A cluster from afar, through Ray Jobs: sweeps are driven on its head, and so is every command that asks about them.

`submit` packs the project and the sweep file and has the head drive it. `relay` has the head run any other command, and
says here what it says there. Both need the cluster's token, and its launcher file or its dashboard's address: the file
says how to reach the head by SSH, and the dashboard is asked through that.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from sweeps import errors
from sweeps.cluster import driver_log, marked_output, private_ray, upload, versions
from sweeps.cluster.environment import variable
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record import ledger
from sweeps.spec import plan, reading, sweep_file
from sweeps.text import addresses, caller, screen
from workers.contract.paths import written_whole
from workers.contract.redact import masked

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

HERE = "http://127.0.0.1:8265"  # on a head
NAMED = re.compile(r"^results in .*/(?P<name>[^/\s]+)$", re.MULTILINE)
MLFLOW_PORT, JOBS_PORT = 5000, 8265  # of the head
STOPPED_WITHIN_S = 120  # before a driver that was told to stop is killed
QUIET_S = 15.0  # in which a driver mostly has named its sweep: then what it waits for is said
FOLLOWED_S = 90.0  # without being asked again: then whoever follows may have gone
ARRIVES_WITHIN_S = 5.0  # a job whose submission was interrupted, or never
TAKES_JOBS_WITHIN_S = 60.0  # a head that has just been started
LOOK_EVERY_S, LOOK_SELDOM_S = 0.2, 1.0
ON_HEAD = "sweeps.cli.on_head"
NOT_THERE = re.compile(rf"(module specification for '|No module named '?){re.escape(ON_HEAD)}")  # Python's words
NOT_KEPT = "no log of the sweep's driver is kept: `sweep gc` deletes it with the trials' logs"
ANSWERS_WITHIN_S = 60.0  # a cluster, any question; else the link to it is gone
SILENT_S = 30.0  # what is followed; then it is asked whether it is there
LOOKED_AT_EVERY = 10  # silences: has it said more than has come over the link?
GATEWAY = re.compile(r"status code 5\d\d")  # in what Ray's client makes of an answer that got lost on its way
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def submit(file: Path, overrides: tuple[str, ...], url: str, options: Sequence[str]) -> int:
    """Have the cluster drive a sweep; returns once it has begun, or has said why it does not: the exit code."""
    text = reading.read(file)
    planned = plan.plan(sweep_file.parse(text, str(file), overrides), str(file))
    put = ["--set", *overrides] if overrides else []
    sweep = upload.place(file)
    return drive(["run", str(sweep), "--address", "auto", *options, *put], planned.spec.name, url, sweep, text)


def drive(arguments: Sequence[str], name: str, url: str, sweep: Path | None = None, text: str = "") -> int:
    """The same for any command that drives a sweep; `text` is that of its file."""
    console = screen.beside()
    job = f"sweep-{name}-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="sweep-pack-") as folder, _client(url) as client:
        files = upload.pack(Path(folder), sweep, text)
        size_kb = sum((Path(folder) / path).stat().st_size for path in files) / 1024
        console.print(f"packed {len(files)} files, {size_kb:.0f} KB: {_listed(files)}", style="dim")
        with _ended_by_ctrl_c(client, job, console), _told_of(job):
            _start(client, job, ["python", "-m", "sweeps.cli", *arguments], _who(), folder)
            found = _named(client, job, console)
            log = client.get_job_logs(job)
            if found and driver_log.NOTHING_TO_RUN in log:
                return _said_to_its_end(client, job)
            if found:
                print(found)
        if found is None:
            return _did_not_begin(client, job, console)
        for line in log.splitlines():
            if line.startswith(versions.DIFFERS):
                console.print(line)
    console.print(f"  status  {caller.command('status', found, '-f')}")
    console.print(f"  stop    {caller.command('stop', found)}")
    return errors.DONE


@contextlib.contextmanager
def _ended_by_ctrl_c(client: JobSubmissionClient, job: str, console: Console) -> Iterator[None]:
    """Within the block a Ctrl-C ends the job, too: nothing runs on the cluster whose name nobody has been shown."""
    try:
        yield
    except KeyboardInterrupt:
        is_over = False
        with contextlib.suppress(KeyboardInterrupt, OSError, RuntimeError):
            console.print(f"ending {job} on the cluster … (Ctrl-C again leaves it)")
            is_over = _ended(client, job)
        if not is_over:
            console.print(f"{job} may go on; on the head {_ends(job)} ends it")
        elif name := _begun(client, job):
            console.print(_stopped(name))
        else:
            console.print(f"{job} has ended: nothing has begun")
        raise


@contextlib.contextmanager
def _told_of(job: str) -> Iterator[None]:
    """Within the block a link that breaks is said to leave a job behind that may run: whoever submits again would have
    all of it twice."""
    import requests

    try:
        yield
    except (ConnectionError, requests.RequestException, RuntimeError) as error:
        is_refused = isinstance(error, RuntimeError) and not GATEWAY.search(str(error))
        if is_refused or private_ray.NO_AGENT_YET in str(error):
            raise
        raise RefusedError(
            f"the cluster must answer until the sweep has its name, but: {_first_line(error)}\n"
            f"  {job} may have begun there, and goes on: {caller.command('list')} shows it once the cluster answers;\n"
            f"  on the head `{_ends(job)}` ends it"
        ) from None


def _begun(client: JobSubmissionClient, job: str) -> str:
    """The sweep that a job had begun when it was ended, if it had."""
    with contextlib.suppress(RuntimeError, OSError):  # there is no such job, or no answer
        if found := NAMED.search(client.get_job_logs(job)):
            return found["name"]
    return ""


def _ended(client: JobSubmissionClient, job: str) -> bool:
    """End a job, also one that is being submitted; whether it has, or will never be there."""
    arrives_by, give_up = time.monotonic() + ARRIVES_WITHIN_S, time.monotonic() + STOPPED_WITHIN_S
    has_been_told = False
    while time.monotonic() < give_up:
        try:
            if client.get_job_status(job) in ENDED:
                return True
            has_been_told = has_been_told or client.stop_job(job)
        except RuntimeError as error:
            if private_ray.NO_SUCH_JOB in str(error) and time.monotonic() > arrives_by:
                return True
        time.sleep(LOOK_EVERY_S)
    return False


def relay(arguments: Sequence[str], url: str, sends: Path | None = None) -> int:
    """Run a command on the head; what it says there is said here, and its exit code is ours. With a sweep file that it
    names, where there is one."""
    if not sends:
        return _relayed(_streamed(arguments, url))
    text, there = reading.read(sends), upload.place(sends)
    with tempfile.TemporaryDirectory(prefix="sweep-file-") as folder:
        upload.put(Path(folder), there, text)
        named = [str(there) if Path(part) == sends else part for part in arguments]
        return _relayed(_streamed(named, url, folder))


def _relayed(lines: Iterable[tuple[str, str]]) -> int:
    code = None
    for which, said in lines:
        if which == marked_output.CODE:
            code = int(said)
        else:
            print(said, file=sys.stdout if which == marked_output.OUT else sys.stderr, flush=True)
    assert code is not None
    return code


def report(name: str, out: Path, form: str, store: str, url: str) -> int:
    """Bring a sweep's report here."""
    if form != "html":
        rule = "must be html for a sweep on a cluster; run this on its head for the others"
        raise InputError("--format", [Mistake("", rule, form)])
    code, lines = 0, []
    for which, said in _streamed(["report", name, "--out", "-", *(["--store", store] if store else [])], url):
        if which == marked_output.CODE:
            code = int(said)
        elif which == marked_output.OUT:
            lines.append(said)
        else:
            print(said, file=sys.stderr)
    if code == errors.DONE:
        with written_whole(out) as path:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(out)
    return code


def bulletins(name: str, is_followed: bool, url: str) -> Iterator[dict[str, Any]]:
    """What a driver on the cluster says of its sweep, as it says it."""
    follow = ["--follow"] if is_followed else []
    for which, said in _streamed(["status", name, "--format", "json", *follow], url):
        if which == marked_output.OUT:
            yield json.loads(said)
        elif which == marked_output.ERR:
            print(said, file=sys.stderr)
        elif int(said):
            sys.exit(int(said))


def logs(name: str, is_followed: bool) -> int:
    """Of a sweep whose driver was submitted to the cluster that this machine is the head of."""
    job = ledger.driver(name).get("job")
    if not job:
        rule = "must be a sweep that was submitted: what a driver says in a terminal stays there"
        raise InputError("sweep", [Mistake("", f"{rule} (its trials' logs: {ledger.paths(name).logs})", name)])
    kept = driver_log.read(ledger.paths(name).logs)
    if kept and not (is_followed and ledger.is_driven(name)):
        print(kept, end="")
        return errors.DONE
    if is_followed and marked_output.leaves_job(job):
        return errors.DONE
    with _client(HERE) as client:
        if not _knows(client, job):
            print(NOT_KEPT, file=sys.stderr)
        elif is_followed:
            for line in _tailed(client, job):
                print(line, flush=True)
        else:
            print(_of_ours(client.get_job_logs(job)), end="")
    return errors.DONE


def _knows(client: JobSubmissionClient, job: str) -> bool:
    """Say whether the cluster's Ray has that job: it forgets all at each `ray up`."""
    return any(known.submission_id == job for known in client.list_jobs())


def stop(name: str) -> int:
    """End a running sweep as Ctrl-C would, and wait until it has ended."""
    if not ledger.is_driven(name):
        raise InputError("sweep", [Mistake("", "must be a sweep that is running", name)])
    last = ledger.holder(name)
    if not last:
        again = caller.command("stop", name)
        raise RefusedError(f"a driver must say who it is, but that of {name} has not yet; once more: {again}")
    if last["host"] != os.uname().nodename:
        there = caller.Caller().command("stop", name)
        raise RefusedError(f"a sweep is stopped where its driver runs; on {last['host']}: {there}")
    if job := last.get("job"):
        with _client(HERE) as client:
            client.stop_job(job)
    else:
        try:
            os.kill(last["pid"], signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            whose = f"process {last['pid']} of {last.get('user') or 'another user'}"
            raise RefusedError(f"a sweep is stopped by who runs it, but {name} is that of {whose}") from None
    give_up = time.monotonic() + STOPPED_WITHIN_S
    while _is_still_driven(name):
        if time.monotonic() > give_up:
            raise RefusedError(f"a driver must end within {STOPPED_WITHIN_S} s, but process {last['pid']} does not")
        time.sleep(LOOK_EVERY_S)
    if name in ledger.names():
        print(_stopped(name, is_submitted="job" in last))
    else:
        print(f"{name} is stopped; nothing of it had been measured, and nothing of it is left")
    return errors.DONE


def _is_still_driven(name: str) -> bool:
    try:
        return ledger.is_driven(name)
    except (InputError, FileNotFoundError):  # one in a terminal of which nothing had begun: its driver has deleted it
        return False


def _stopped(name: str, is_submitted: bool = True) -> str:
    return f"{name} is stopped; to go on: {caller.command('resume', name, is_submitted=is_submitted)}"


def _streamed(arguments: Sequence[str], url: str, folder: str = "") -> Iterator[tuple[str, str]]:
    """What a command says on the head, line by line, and its exit code as the last. One that is followed is asked
    again and again; a driver's log that it names is followed here."""
    again, log = (marked_output.CODE, str(marked_output.ASK_AGAIN)), ""
    with _client(url) as client:
        said = again
        for n in itertools.count():
            with contextlib.closing(_asked(client, arguments, folder)) as answer:
                for said in answer:
                    if said[0] == marked_output.JOB:
                        log = said[1]
                    elif said[0] != marked_output.CODE and not (n and said[1].startswith(versions.DIFFERS)):
                        yield said
            if said != again:
                break
        if log and _knows(client, log):
            yield from ((marked_output.OUT, line) for line in _tailed(client, log))
        elif log:
            yield marked_output.ERR, NOT_KEPT
        yield said


def _asked(client: JobSubmissionClient, arguments: Sequence[str], folder: str) -> Generator[tuple[str, str]]:
    """What a command says on the head, once; its exit code comes last."""
    job = f"ask-{uuid.uuid4().hex[:12]}"
    is_followed = not {"-f", "--follow"}.isdisjoint(arguments)
    variables = {marked_output.FOLLOWED_S: f"{FOLLOWED_S:g}"} if is_followed else {}
    _start(client, job, ["python", "-m", ON_HEAD, *arguments], {}, folder, variables)
    try:
        for line in (_tailed if is_followed else _lines)(client, job):
            if parsed := marked_output.parsed(line):
                yield parsed
                if parsed[0] == marked_output.CODE:
                    return
        raise RefusedError(_why(client, job))
    finally:
        _forget(client, job)


def _start(
    client: JobSubmissionClient,
    job: str,
    command: Sequence[str],
    about: dict[str, str],
    folder: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    if secret := next((part for part in command if masked(part) != part), ""):
        rule = "a command must hold no secret: Ray shows it to everyone; the head may hold it, in ~/.pgpass"
        raise InputError("--address", [Mistake("", rule, masked(secret))])
    environment = {ledger.JOB: job, private_ray.JOB_ENDS_WITHIN_S: str(STOPPED_WITHIN_S), "PYTHONUNBUFFERED": "1"}
    environment |= {versions.ASKED_BY: versions.here(), caller.CALLED: caller.as_json(), **variables}
    runtime: dict[str, Any] = {"env_vars": environment} | ({"working_dir": folder} if folder else {})
    give_up = time.monotonic() + TAKES_JOBS_WITHIN_S
    while True:
        try:
            client.submit_job(entrypoint=shlex.join(command), submission_id=job, runtime_env=runtime, metadata=about)
            return
        except RuntimeError as error:  # right after `ray up` the head answers before it can run anything
            if private_ray.NO_AGENT_YET not in str(error) or time.monotonic() > give_up:
                raise
        time.sleep(LOOK_EVERY_S)


def _who() -> dict[str, str]:
    return {"user": getpass.getuser(), "host": os.uname().nodename}


def _named(client: JobSubmissionClient, job: str, console: Console) -> str | None:
    """What the driver has called its sweep; nothing if it has ended without one. However long that takes, for whoever
    leaves before knows of no sweep that runs on: what it waits for is said."""
    began, said = time.monotonic(), ""
    while True:
        is_over = client.get_job_status(job) in ENDED
        log = client.get_job_logs(job)
        if found := NAMED.search(log):
            return found["name"]
        if is_over:
            return None
        if is_late := time.monotonic() - began >= QUIET_S:
            if not said:
                console.print(f"{job} has not begun yet; Ctrl-C ends it. From a shell on the head `{_ends(job)}` does")
            if (last := _last_words(client, job, log)) != said:
                console.print(f"  it says: {last}")
                said = last
        time.sleep(LOOK_SELDOM_S if is_late else LOOK_EVERY_S)


def _ends(job: str) -> str:
    """The command for a shell on the head."""
    return f"RAY_AUTH_MODE=token ray job stop {job}"


def _did_not_begin(client: JobSubmissionClient, job: str, console: Console) -> int:
    log = _of_ours(client.get_job_logs(job)).strip()
    info = client.get_job_info(job)
    console.print(log or info.message)
    code = info.driver_exit_code
    return code if code in (errors.WRONG_INPUT, errors.SOME_FAILED) else errors.REFUSED


def _said_to_its_end(client: JobSubmissionClient, job: str) -> int:
    """Say here what a driver says that runs no trial, such as a complete sweep's results; its exit code is ours."""
    for line in _lines(client, job):
        print(line, flush=True)
    code = client.get_job_info(job).driver_exit_code
    return errors.REFUSED if code is None else code


def _of_ours(log: str) -> str:
    """Without what Ray adds to a job's log."""
    return private_ray.OWN_LINES.sub("", log)


def _tailed(client: JobSubmissionClient, job: str) -> Iterator[str]:
    """What a job says, line by line, up to a second late. It is fetched as it is said, however long that is followed,
    and once more at the end."""
    import aiohttp

    loop = asyncio.new_event_loop()
    tail = client.tail_job_logs(job)
    coming, rest, said = loop.create_task(_next(tail)), "", 0
    silences, is_behind = 0, False
    try:
        while True:
            if loop.run_until_complete(asyncio.wait({coming}, timeout=SILENT_S))[0]:
                whole, end, rest = (rest + coming.result()).rpartition("\n")
                for line in _split(whole + end):
                    yield line
                    said += 1
                coming = loop.create_task(_next(tail))
                silences, is_behind = 0, False
                continue
            if client.get_job_status(job) in ENDED:  # which has not come over the link
                break
            silences += 1
            if is_behind:  # still
                raise ConnectionError("nothing comes over the link any more")
            if silences % LOOKED_AT_EVERY == 0:
                is_behind = len(_split(client.get_job_logs(job))) > said + bool(rest)
    except StopAsyncIteration:  # a link that is cut ends like a log
        if client.get_job_status(job) not in ENDED:
            raise ConnectionError(f"the link was cut, and {job} goes on") from None
    except aiohttp.WSServerHandshakeError as error:
        raise ConnectionError(f"whatever stands between must let WebSockets pass (status {error.status})") from None
    except aiohttp.ClientError as error:
        raise ConnectionError(_first_line(error)) from None
    finally:
        coming.cancel()  # one that was interrupted in the middle
        with contextlib.suppress(Exception, asyncio.CancelledError):
            loop.run_until_complete(coming)
        with contextlib.suppress(Exception):
            loop.run_until_complete(cast(AsyncGenerator[str], tail).aclose())
        loop.close()
    yield from _split(client.get_job_logs(job))[said:]  # what has not come, if the link was cut at the very end


def _split(log: str) -> list[str]:
    """Its lines without what Ray adds, also a last one that has no end."""
    lines = log.split("\n")
    return [line for line in lines[:-1] if _of_ours(f"{line}\n")] + [line for line in lines[-1:] if line]


async def _next(tail: AsyncIterator[str]) -> str:
    try:
        return await anext(tail)
    except RuntimeError:  # by which Ray tells some of the ends that a link can have; others are like a log's
        raise StopAsyncIteration from None


def _lines(client: JobSubmissionClient, job: str) -> Iterator[str]:
    """What a job says, as it says it, all of it fetched again each time: for one that is soon over."""
    said = 0
    while True:
        is_over = client.get_job_status(job) in ENDED
        log = _of_ours(client.get_job_logs(job))
        end = log.rfind("\n") + 1
        yield from log[said:end].split("\n")[:-1]  # `splitlines` would split at more
        said = max(said, end)
        if is_over:
            yield from filter(None, [log[said:]])
            return
        time.sleep(LOOK_EVERY_S)


def _why(client: JobSubmissionClient, job: str) -> str:
    """Why a command has not ended on the head as commands do."""
    log = client.get_job_logs(job)
    if NOT_THERE.search(log):
        return versions.said([versions.OTHER_CODE])
    return f"the cluster must run the command, but says: {_last_words(client, job, log)}"


def _last_words(client: JobSubmissionClient, job: str, log: str) -> str:
    """Of a job; what Ray says of one that has said nothing."""
    last = next(reversed(_of_ours(log).strip().split("\n")))
    if words := (marked_output.parsed(last) or ("", last))[1]:
        return words
    info = client.get_job_info(job)
    return _first_line(info.message or info.status)


def _forget(client: JobSubmissionClient, job: str) -> None:
    """A question leaves no job behind."""
    with contextlib.suppress(RuntimeError, OSError):
        if client.get_job_status(job) not in ENDED:
            client.stop_job(job)
            give_up = time.monotonic() + 5
            while client.get_job_status(job) not in ENDED and time.monotonic() < give_up:
                time.sleep(LOOK_EVERY_S)
        client.delete_job(job)


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
        ["ssh", *key, *options, *forward, to, "cat"],  # which ends with our end of its input, however we end
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for us: a question that is under way is taken back through the tunnel
    ) as line:

        def ended() -> RefusedError:
            assert line.stderr
            return RefusedError(_unreached(to, head["head"], line.stderr.read()))

        try:
            while not _is_open(port):
                if line.poll() is not None:
                    raise ended()
                time.sleep(LOOK_EVERY_S)
            yield f"http://127.0.0.1:{port}", ended
        finally:
            line.terminate()


def _unreached(to: str, host: str, said: str) -> str:
    last = next(iter(reversed(said.strip().splitlines())), "nothing")  # before it stand SSH's banners
    cure = f"\n  if the head was installed anew: ssh-keygen -R {host}" if "Host key verification" in last else ""
    return f"SSH must reach the head {to}, but says: {last}{cure}"


def _is_open(port: int) -> bool:
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _client(address: str) -> Iterator[JobSubmissionClient]:
    """Raises a `RefusedError` for all that a user can cause: no such address, no token, other versions."""
    if not address.startswith(addresses.URL):
        with tunnel(Path(address), _free_port(), JOBS_PORT) as (url, _):
            yield from _connected(url, address)
        return
    if is_in_clear(address):
        said = f"the token goes to {masked(address)} in clear text; --address cluster.yaml takes it through SSH"
        print(said, file=sys.stderr)
    yield from _connected(address, address)


def is_in_clear(url: str) -> bool:
    """Say whether others can read what is sent to a URL."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and not re.fullmatch(r"localhost|127(\.\d+){3}|::1", parts.hostname or "")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def _connected(url: str, address: str) -> Iterator[JobSubmissionClient]:
    """The client of a job server, which was named by the address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    import requests

    try:
        with variable(addresses.JOB_SERVER, url):  # which Ray would rather heed than what it is given
            client = private_ray.client_of(url, ANSWERS_WITHIN_S)
        logging.getLogger("ray").setLevel(logging.WARNING)  # it tells of each upload, and has just set this anew
        theirs = private_ray.version_there(client)
        if theirs != ray.__version__:
            raise RefusedError(
                f"client and cluster must have one version of Ray, but here is {ray.__version__} and there {theirs}\n"
                f"  {caller.current().ray_up} brings the cluster to this project's (ends sweeps), make setup your side"
            )
        yield client
    except (ConnectionError, requests.RequestException) as error:
        raise RefusedError(f"a cluster must answer at {address}, but: {_first_line(error)}") from None
    except (RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RefusedError(_refusal(address, str(error))) from None


def _refusal(url: str, said: str) -> str:
    if re.search(r"\b(401|403)\b|[Aa]uthenticat|token", said):
        return (
            f"the cluster at {url} must be shown its token, but what is in ~/.ray/auth_token is missing or another\n"
            "  copy ~/.ray/auth_token from whoever has called `ray up`"
        )
    return f"the cluster at {url} refuses: {_first_line(said)}"


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _listed(files: Sequence[Path]) -> str:
    tops: dict[str, int] = {}
    for path in files:
        tops[path.parts[0]] = tops.get(path.parts[0], 0) + 1
    return ", ".join(f"{top}/ ({count})" if count > 1 else top for top, count in tops.items())


def cluster_file(path: Path) -> dict[str, Any]:
    """A launcher file as far as it says how to reach the head."""
    content = reading.mapping(reading.read(path), str(path))
    provider, auth = content.get("provider") or {}, content.get("auth") or {}
    head = provider.get("external_head_ip") or provider.get("head_ip")
    if not head and (kind := provider.get("type", "local")) != "local":
        rule = (
            "must be of machines that are there (local), since a cloud's file does not say where its head is: call"
            f" `ray dashboard {path}` and give --address http://127.0.0.1:{JOBS_PORT}; for MLflow"
            f" `ray dashboard {path} --port {MLFLOW_PORT} --remote-port {MLFLOW_PORT}` and"
            f" http://127.0.0.1:{MLFLOW_PORT} in a browser; or `ray attach {path}` and the command there"
        )
        raise InputError(str(path), [Mistake("provider.type", rule, kind)])
    if not head:
        raise InputError(str(path), [Mistake("provider.head_ip", "must be given", None)])
    return {"head": head, "user": auth.get("ssh_user"), "key": auth.get("ssh_private_key")}
