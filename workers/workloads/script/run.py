"""The work of one rank whose trial is a user's script: take its place, start the script, report what it measured.

A Python script runs in this very process, which is a fork of one that has imported the framework already. What is no
Python script, or may not be forked, or is timed by the lines that it prints, is started as a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from workers.contract import environment, messages, quota
from workers.contract.messages import RankReport, TrialConfig
from workers.contract.ranks import Fault, Seat, Voice
from workers.frameworks.tensorflow import memory
from workers.node import pinning, topology
from workers.workloads.script import code, ends, here, joining, keras_fit, lengths
from workers.workloads.script.loop import Measured, OwnLoop
from workers.workloads.script.process import Started, command, launched
from workers.workloads.script.reports import Reports, of_rank

PYTHON = re.compile(r"python(3(\.\d+)?)?$")
BY_LINES = "lines that it prints"
LONGEST_LINE = 1 << 16  # bytes
OPTIONS = ("-u", "-B", "-O")  # of Python, that say nothing to a process which has started


def run(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    script = config.script
    assert script
    cores, why_not = pinned(config, seat)
    os.chdir(seat.folder or os.getcwd())
    voice.beat("ring")
    words = command(script, config)
    voice.own_code = functools.partial(code.digest, words, Path.cwd())
    program = python_program(words)
    if program and program[0] != "-m" and not Path(program[0]).is_file():
        raise Fault("no script", f"{program[0]} must be a file on every node, but there is none in {os.getcwd()}")
    begun_anew, goes_on = checkpoints(words, seat, voice)
    os.environ.update(PATH=path())
    if script.lengths:
        report = lengths.measured(config, seat, voice)
    else:
        os.environ.update(joining.environment(script.ranks, seat))
        forks = program if script.fork and not script.lines else None
        report = forked(forks, config, seat, voice) if forks else started(words, config, seat, voice)
    in_force = environment.in_force(os.environ, config)
    gone_on_from = max(1, report.epochs[0].epoch - 1 if report.epochs else 1) if goes_on else 0
    report = dataclasses.replace(report, pinned=cores, pinning_note=why_not, in_force=in_force)
    voice.report(dataclasses.replace(report, begun_anew=begun_anew, gone_on_from=gone_on_from))


def checkpoints(words: Sequence[str], seat: Seat, voice: Voice) -> tuple[str, bool]:
    """Name the folder that the script's attempts go on from, in the environment; why it begins anew, although another
    version of it has left one, and whether there is something to go on from."""
    if not seat.checkpoint:
        return "", False
    made = json.dumps([code.version(words, Path.cwd()), sorted(seat.made.items())])
    folder = Path(seat.checkpoint).with_suffix("") / hashlib.sha256(made.encode()).hexdigest()[:10]
    os.environ[here.CHECKPOINTS] = str(folder)
    others = [one for one in folder.parent.glob("*") if one.is_dir() and any(one.iterdir())]
    if seat.rank or folder.is_dir() or not others:
        return "", folder in others
    rule = "a script goes on from what the same script has left with the same software, hardware and arrangement only"
    why = f"{rule}: it begins anew, and {others[0]} is of another"
    voice.note(why)
    return why, False


def path() -> str:
    """Return where programs are found: first beside this very Python, so that `python` is it, activated or not."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def python_program(words: Sequence[str]) -> list[str] | None:
    """Return what Python is to run, with its arguments: a file, or `-m` and a module; None where it is something
    else."""
    if not PYTHON.match(os.path.basename(words[0])):
        return None
    rest = list(words[1:])
    while rest and rest[0] in OPTIONS:
        rest.pop(0)
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    return rest if is_module or (rest and not rest[0].startswith("-")) else None


def pinned(config: TrialConfig, seat: Seat) -> tuple[str, str]:
    """Keep this rank to cores of its own where there are enough for all; these cores, and why not."""
    found = topology.here()
    pins, why_not = pinning.of_rank(config, seat, found, 0, quota=quota.quota())
    if pins is None:
        return "", why_not
    pinning.keep(pinning.threads_here(), pins.compute)
    return str(pinning.Pins(pinning.affinity(pinning.threads_here()), frozenset())), why_not


def forked(program: Sequence[str], config: TrialConfig, seat: Seat, voice: Voice) -> RankReport:
    """Run a Python program in this process."""
    reports = of_rank(config, seat.rank, voice, Path.cwd())
    loop = OwnLoop(config, voice.beat, seat, command=program, reports=reports)
    reports.added = loop.ends_at
    here.set_up(loop, reports)
    is_counted = config.protocol == "throughput" or bool(config.items)  # else `fit` can't be, and need not be
    keras_fit.watch(loop if is_counted else None, reports)
    loop.notice()
    voice.beat("build")
    own = os.getpid()
    with memory.shortage_is_a_finding(config):
        try:
            _to_its_end(program, loop)
        except SystemExit as ended:
            if ended.code not in (None, 0):
                number = ended.code if isinstance(ended.code, int) else 1
                if number is not ended.code:
                    print(ended.code, file=sys.__stderr__, flush=True)  # as Python does with what is no number
                raise Fault("exited", f"the program ended with exit code {number}", exit_code=number) from None
        except RuntimeError as error:  # of PyTorch, which has no error of its own for it
            if found := ends.shortage(str(error).splitlines()):
                raise found from error
            raise
    if os.getpid() != own:
        _end_of_a_fork()
    return loop.close()


def _to_its_end(program: Sequence[str], loop: OwnLoop) -> None:
    """Run a program until it ends, or has been measured."""
    try:
        _python(program)
    except Measured:
        pass
    except (Exception, SystemExit):
        if not loop.is_disturbed:
            raise
        traceback.print_exc()


def _end_of_a_fork() -> NoReturn:
    """End a process that the script has forked and that came to the script's end: it is no rank."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _python(program: Sequence[str]) -> None:
    name, *arguments = program[1:] if program[0] == "-m" else program
    if program[0] == "-m":
        sys.argv, sys.path[0:0] = [name, *arguments], [os.getcwd()]
        if not importlib.util.find_spec(name.partition(".")[0]):
            rule = "must be a module on every node, but there is none"
            raise Fault("no script", f"{name} {rule} in {os.getcwd()}, nor among Python's own")
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    sys.argv, sys.path[0:0] = [name, *arguments], [str(Path(name).resolve().parent)]
    runpy.run_path(name, run_name="__main__")


def started(words: Sequence[str], config: TrialConfig, seat: Seat, voice: Voice) -> RankReport:
    """Run a program as a process of its own, which ends with this one."""
    script = config.script
    assert script
    with tempfile.TemporaryDirectory() as scratch:
        voice.beat("build")
        unheard = OwnLoop(config, voice.beat, seat, command=words)  # of a rank that tells nothing by itself
        program = launched(words, config, seat, voice, Path(scratch), stdout=subprocess.PIPE if script.lines else None)
        if script.lines:
            return _printed(program, words, config, seat, voice)
        program.check()
        if report := program.left("report"):
            return messages.rank_report(report)
        if config.protocol == "convergence" and seat.rank and voice.progress() == ("build", 0):
            peak_memory_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            return dataclasses.replace(unheard.close(), peak_memory_mib=peak_memory_mib)
        raise _nothing_left(config, voice)


def _nothing_left(config: TrialConfig, voice: Voice) -> Fault:
    """Return why a program ended well and has left no report."""
    phase, step = voice.progress()
    if phase != "build" or step:  # it has told steps, or has reported
        rule = "the script must end as Python ends, which leaves what it has measured"
        return Fault("exited", f"{rule}, but ended with exit code 0 and left nothing")
    if config.protocol == "convergence":
        return Fault("no reports", "the program must call sweeps.report(…) with protocol: convergence, and did not")
    return Fault("no steps", f"the script must {messages.TOLD_STEPS}, but ended without")


def _printed(started: Started, words: Sequence[str], config: TrialConfig, seat: Seat, voice: Voice) -> RankReport:
    """Time a program by the lines that it prints after its steps; all of them go to its log."""
    script, process = config.script, started.process
    assert script
    assert process.stdout
    reports = Reports(seat.rank == 0)
    loop = OwnLoop(config, voice.beat, seat, BY_LINES, command=words, reports=reports)
    try:
        for _ in loop.steps(_matches(process.stdout, re.compile(script.lines.encode()))):
            pass
    except Measured:
        process.send_signal(signal.SIGTERM)
        with_patience(process)
    else:
        started.check()
    reports.records += started.epochs
    return dataclasses.replace(loop.close(), epochs=tuple(reports.records))


def _matches(printed: IO[bytes], pattern: re.Pattern[bytes]) -> Iterator[int]:
    """Yield for each line in which the pattern is found; of a longer one than `LONGEST_LINE`, in its begin."""
    begins = True
    while piece := printed.readline(LONGEST_LINE):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        if begins and pattern.search(piece):
            yield 1
        begins = piece.endswith(b"\n")


def with_patience(process: subprocess.Popen[bytes], seconds: float = 2.0) -> None:
    """Wait for a program that was asked to end; kill one that does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
