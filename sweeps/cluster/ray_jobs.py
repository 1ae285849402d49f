"""A cluster from afar, through Ray Jobs: sweeps are driven on its head, and so is every command that asks about them.

`submit` packs the project and the sweep file and has the head drive it. `relay` has the head run any other command, and
says here what it says there. How the head is reached is in `connection`, how what a job says is followed in `job_log`.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import os
import re
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sweeps import errors
from sweeps.cluster import (
    connection,
    driver_log,
    interrupt,
    job_log,
    job_traces,
    marked_output,
    private_ray,
    upload,
    versions,
)
from sweeps.cluster.job_traces import ENDED
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.record import ledger, ownership, processes
from sweeps.spec import own_code, plan, reading, sweep_file
from sweeps.text import addresses, caller, screen
from workers.contract.paths import written_whole
from workers.contract.redact import masked

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

HERE = f"http://127.0.0.1:{addresses.DASHBOARD_PORT}"  # on a head
STOPPED_WITHIN_S = 120  # before a driver that was told to stop is killed
QUIET_S = 15.0  # in which a driver mostly has named its sweep: then what it waits for is said
FOLLOWED_S = 90.0  # without being asked again: then whoever follows may have gone
ARRIVES_WITHIN_S = 5.0  # a job whose submission was interrupted, or never
TAKES_JOBS_WITHIN_S = 60.0  # a head that has just been started
LOOK_SELDOM_S = 1.0  # at a job that has not begun after a while
ON_HEAD = "sweeps.cli.on_head"
NOT_THERE = re.compile(rf"(module specification for '|No module named '?){re.escape(ON_HEAD)}")  # Python's words
NOT_KEPT = "no log of the sweep's driver is kept: `sweep gc` deletes it with the trials' logs"
NAMES = 10  # of files that are packed
GATEWAY = re.compile(r"status code 5\d\d")  # in what Ray's client makes of an answer that got lost on its way


def submit(file: Path, overrides: tuple[str, ...], url: str, options: Sequence[str]) -> int:
    """Have the cluster drive a sweep; returns once it has begun, or has said why it does not: the exit code."""
    text = reading.read(file)
    planned = plan.plan(sweep_file.parse(text, str(file), overrides), str(file))
    own_code.check(planned, str(file), is_whole=False)
    own = own_code.files(planned.spec, Path.cwd())
    put = ["--set", *overrides] if overrides else []
    sweep = upload.place(file)
    return drive(["run", str(sweep), "--address", "auto", *options, *put], planned.spec.name, url, sweep, text, own)


def drive(
    arguments: Sequence[str],
    name: str,
    url: str,
    sweep: Path | None = None,
    text: str = "",
    own: own_code.Files | None = None,
) -> int:
    """Do the same for any command that drives a sweep; `text` is that of its file, `own` its user's code."""
    console = screen.beside()
    job = f"sweep-{name}-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="sweep-pack-") as folder, connection.client(url) as client:
        job_traces.forget(client)
        files = upload.pack(Path(folder), sweep, text, own)
        size_kb = sum((Path(folder) / path).stat().st_size for path in files) / 1024
        console.print(f"packed {len(files)} files, {size_kb:.0f} KB: {_listed(files)}", style="dim")
        for line in own.words(NAMES) if own else ():
            console.print(f"  {line}", style="dim")
        with interrupt.terminate_as_interrupt(), _ended_by_ctrl_c(client, job, console), _told_of(job):
            _start(client, job, ["python", "-m", "sweeps.cli", *arguments], _who(), folder)
            named = _named(client, job, console)
            log = client.get_job_logs(job)
            if named and named.is_over:
                return _said_to_its_end(client, job)
            if named:
                print(named.sweep)
        if named is None:
            return _did_not_begin(client, job, console)
        for line in log.splitlines():
            if line.startswith(versions.DIFFERS):
                console.print(line)
    console.print(f"  status  {caller.command('status', named.sweep, '-f')}")
    console.print(f"  stop    {caller.command('stop', named.sweep)}")
    return errors.DONE


@contextlib.contextmanager
def _ended_by_ctrl_c(client: JobSubmissionClient, job: str, console: Console) -> Iterator[None]:
    """Within the block a Ctrl-C, or what is heard as one, ends the job, too: nothing runs on the cluster whose name
    nobody has been shown."""
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
            f"the cluster must answer until the sweep has its name, but: {connection.first_line(error)}\n"
            f"  {job} may have begun there, and goes on: {caller.command('list')} shows it once the cluster answers;\n"
            f"  on the head `{_ends(job)}` ends it"
        ) from None


def _begun(client: JobSubmissionClient, job: str) -> str:
    """Return the sweep that a job had begun when it was ended, if it had."""
    with contextlib.suppress(RuntimeError, OSError):  # there is no such job, or no answer
        if named := marked_output.named(client.get_job_logs(job)):
            return named.sweep
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
        time.sleep(job_log.LOOK_EVERY_S)
    return False


def relay(arguments: Sequence[str], url: str, sends: Path | None = None) -> int:
    """Run a command on the head; what it says there is said here, and its exit code is ours. With a sweep file that it
    names, where there is one."""
    if not sends:
        return _relay(_streamed(arguments, url))
    text, there = reading.read(sends), upload.place(sends)
    with tempfile.TemporaryDirectory(prefix="sweep-file-") as folder:
        upload.put(Path(folder), there, text)
        named = [str(there) if Path(part) == sends else part for part in arguments]
        return _relay(_streamed(named, url, folder))


def _relay(lines: Iterable[tuple[str, str]]) -> int:
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
    """Yield what a driver on the cluster says of its sweep, as it says it."""
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
    job = ownership.driver(name).get("job")
    if not job:
        rule = "must be a sweep that was submitted: what a driver says in a terminal stays there"
        raise InputError("sweep", [Mistake("", f"{rule} (its trials' logs: {ledger.paths(name).logs})", name)])
    kept = driver_log.read(ledger.paths(name).logs)
    if kept and not (is_followed and ownership.is_driven(name)):
        print(kept, end="")
        return errors.DONE
    if is_followed and marked_output.leaves_job(job):
        return errors.DONE
    with connection.client(HERE) as client:
        if not _knows(client, job):
            print(NOT_KEPT, file=sys.stderr)
        elif is_followed:
            for line in job_log.follow(client, job):
                print(line, flush=True)
        else:
            print(job_log.of_ours(client.get_job_logs(job)), end="")
    return errors.DONE


def _knows(client: JobSubmissionClient, job: str) -> bool:
    """Say whether the cluster's Ray has that job: it forgets all at each `ray up`."""
    return any(known.submission_id == job for known in client.list_jobs())


def stop(name: str) -> int:
    """End a running sweep as Ctrl-C would, and wait until it has ended."""
    if not ownership.is_driven(name):
        raise InputError("sweep", [Mistake("", "must be a sweep that is running", name)])
    last = ownership.holder(name)
    if not last:
        again = caller.command("stop", name)
        said = ownership.momentarily(name)
        raise RefusedError(f"a sweep is stopped by ending its driver, but {said}\n  once more after that: {again}")
    if last["host"] != os.uname().nodename:
        there = caller.Caller().command("stop", name)
        raise RefusedError(f"a sweep is stopped where its driver runs; on {last['host']}: {there}")
    if job := last.get("job"):
        with connection.client(HERE) as client:
            client.stop_job(job)
    else:
        try:
            processes.end(last["pid"], last.get("birth", ""))
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            whose = f"process {last['pid']} of {last.get('user') or 'another user'}"
            raise RefusedError(f"a sweep is stopped by who runs it, but {name} is that of {whose}") from None
    give_up = time.monotonic() + STOPPED_WITHIN_S
    while _is_still_driven(name):
        if time.monotonic() > give_up:
            raise RefusedError(f"a driver must end within {STOPPED_WITHIN_S} s, but process {last['pid']} does not")
        time.sleep(job_log.LOOK_EVERY_S)
    if name in ledger.names():
        print(_stopped(name, is_submitted="job" in last))
    else:
        print(f"{name} is stopped; nothing of it had been measured, and nothing of it is left")
    return errors.DONE


def _is_still_driven(name: str) -> bool:
    try:
        return ownership.is_driven(name)
    except (InputError, FileNotFoundError):  # one in a terminal of which nothing had begun: its driver has deleted it
        return False


def _stopped(name: str, is_submitted: bool = True) -> str:
    return f"{name} is stopped; to go on: {caller.command('resume', name, is_submitted=is_submitted)}"


def _streamed(arguments: Sequence[str], url: str, folder: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a command says on the head, line by line, and its exit code as the last. One that is followed is asked
    again and again; a driver's log that it names is followed here."""
    again, log = (marked_output.CODE, str(marked_output.ASK_AGAIN)), ""
    with connection.client(url) as client:
        said = again
        for n in itertools.count():
            with contextlib.closing(_ask(client, arguments, folder)) as answer:
                for said in answer:
                    if said[0] == marked_output.JOB:
                        log = said[1]
                    elif said[0] != marked_output.CODE and not (n and said[1].startswith(versions.DIFFERS)):
                        yield said
            if said != again:
                break
        if log and _knows(client, log):
            yield from ((marked_output.OUT, line) for line in job_log.follow(client, log))
        elif log:
            yield marked_output.ERR, NOT_KEPT
        yield said


def _ask(client: JobSubmissionClient, arguments: Sequence[str], folder: str) -> Generator[tuple[str, str]]:
    """Yield what a command says on the head, once; its exit code comes last."""
    job = f"ask-{uuid.uuid4().hex[:12]}"
    is_followed = not {"-f", "--follow"}.isdisjoint(arguments)
    variables = {marked_output.FOLLOWED_S: f"{FOLLOWED_S:g}"} if is_followed else {}
    _start(client, job, ["python", "-m", ON_HEAD, *arguments], {}, folder, variables)
    try:
        for line in (job_log.follow if is_followed else job_log.lines)(client, job):
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
        time.sleep(job_log.LOOK_EVERY_S)


def _who() -> dict[str, str]:
    return {"user": getpass.getuser(), "host": os.uname().nodename}


def _named(client: JobSubmissionClient, job: str, console: Console) -> marked_output.Named | None:
    """Return what the driver has called its sweep; nothing if it has ended without a name. It waits however long that
    takes, and says for what: whoever leaves before knows of no sweep that runs on."""
    began, said = time.monotonic(), ""
    while True:
        is_over = client.get_job_status(job) in ENDED
        log = client.get_job_logs(job)
        if named := marked_output.named(log):
            return named
        if is_over:
            return None
        if is_late := time.monotonic() - began >= QUIET_S:
            if not said:
                console.print(f"{job} has not begun yet; Ctrl-C ends it. From a shell on the head `{_ends(job)}` does")
            if (last := job_log.last_words(client, job, log)) != said:
                console.print(f"  it says: {last}")
                said = last
        time.sleep(LOOK_SELDOM_S if is_late else job_log.LOOK_EVERY_S)


def _ends(job: str) -> str:
    """Return the command for a shell on the head."""
    return f"RAY_AUTH_MODE=token ray job stop {job}"


def _did_not_begin(client: JobSubmissionClient, job: str, console: Console) -> int:
    log = job_log.of_ours(client.get_job_logs(job)).strip()
    info = client.get_job_info(job)
    console.print(log or info.message)
    code = info.driver_exit_code
    return code if code in (errors.WRONG_INPUT, errors.SOME_FAILED) else errors.REFUSED


def _said_to_its_end(client: JobSubmissionClient, job: str) -> int:
    """Say here what a driver says that runs no trial, such as a complete sweep's results; its exit code is ours."""
    for line in job_log.lines(client, job):
        print(line, flush=True)
    code = client.get_job_info(job).driver_exit_code
    return errors.REFUSED if code is None else code


def _why(client: JobSubmissionClient, job: str) -> str:
    """Why a command has not ended on the head as commands do."""
    log = client.get_job_logs(job)
    if NOT_THERE.search(log):
        return versions.message([versions.OTHER_CODE])
    return f"the cluster must run the command, but says: {job_log.last_words(client, job, log)}"


def _forget(client: JobSubmissionClient, job: str) -> None:
    """Take away the job of a question."""
    with contextlib.suppress(RuntimeError, OSError):
        if client.get_job_status(job) not in ENDED:
            client.stop_job(job)
            give_up = time.monotonic() + 5
            while client.get_job_status(job) not in ENDED and time.monotonic() < give_up:
                time.sleep(job_log.LOOK_EVERY_S)
        client.delete_job(job)


def _listed(files: Sequence[Path]) -> str:
    tops: dict[str, int] = {}
    for path in files:
        tops[path.parts[0]] = tops.get(path.parts[0], 0) + 1
    return ", ".join(f"{top}/ ({count})" if count > 1 else top for top, count in tops.items())
