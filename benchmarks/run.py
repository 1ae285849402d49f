"""Run benchmarks one after the other, keep each verdict in `results.json`, and make README's table again.

    python benchmarks/run.py [--go-on] [NAME ...] [-- ARGUMENT ...]

All of them without a name, the shortest first. One that fails, or does not meet its bounds, is kept as such and the
next one runs; the exit code is 1 in the end. One that this machine can't run is skipped, and its earlier result stays.
Arguments behind `--` go to the benchmark; its result is then marked, since README's claim is what the benchmark does by
itself. A benchmark that is started by hand keeps nothing.

Each result is written as soon as its benchmark ends. `--go-on` takes up the latest run where it was broken off, on the
same machine and with the same code: what it has measured is not measured again.

Before each benchmark is taken how busy others keep the machine: what was measured beside them is kept and marked, and
does not count as met. Before and after it the machine's pace is taken (`pace`), and told.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import pace
import results
import table
from claims import CLAIMS, Claim
from results import ROOT, Result
from workers.node import fingerprint

LISTENING_S = 2.0
GO_ON = "--go-on"


def main(asked: Sequence[str], claims: Sequence[Claim] = CLAIMS, root: Path = ROOT) -> int:
    asked, arguments = split(asked)
    names = [name for name in asked if name != GO_ON]
    by_name = {claim.benchmark: claim for claim in claims}
    if unknown := [name for name in names if name not in by_name]:
        print(f"no benchmark is called '{unknown[0]}'; there are {', '.join(by_name)}", file=sys.stderr)
        return 2
    before = results.read(root)
    began = now()
    chosen = shortest_first([by_name[name] for name in names] or claims, before)
    machine = machine_here()
    if GO_ON in asked and before:
        began = max(result.run for result in before.values())
        of_run = [(claim, one) for claim in claims if (one := before.get(claim.benchmark)) and is_of(began, one)]
        if why := unlike(of_run, machine, root):
            print(f"the run of {began} {why}; leave {GO_ON} out to begin a new one", file=sys.stderr)
            return 2
        chosen = [claim for claim in chosen if claim not in [done for done, _ in of_run]]
    if not chosen:
        print("nothing is left")
        return 0
    run = BenchmarkRun(root=root, began=began, commit=commit_at(root), machine=machine)
    failed, skipped = [], []
    for claim in chosen:
        print(f"\n{claim.benchmark}", flush=True)
        try:
            result = run.result(claim, arguments, results.read(root).values())
        except SkippedError as why:
            skipped.append(f"{claim.benchmark}: skipped, its earlier result stays: {why}")
            continue
        results.write(results.read(root) | {claim.benchmark: result}, root)
        table.update(claims, root)
        failed += complaints(claim, result)
    is_measured = len(skipped) < len(chosen)
    print(*skipped, *failed or ["all bounds met" if is_measured else "nothing measured"], sep="\n")
    return 1 if failed or (skipped and not is_measured) else 0


def shortest_first(claims: Sequence[Claim], found: Mapping[str, Result]) -> list[Claim]:
    """Return the claims by what each took the last time; what was never measured comes before all others."""
    return sorted(claims, key=lambda claim: found[claim.benchmark].took_s if claim.benchmark in found else 0.0)


def is_of(run: str, result: Result) -> bool:
    """Whether it was measured in this run, to its end and as the claim is made."""
    return result.run == run and bool(result.figures) and not result.arguments


def unlike(of_run: Sequence[tuple[Claim, Result]], machine: str, root: Path) -> str:
    """Return why a run can't go on here, in words: one run has one machine and one state of the code."""
    for claim, result in of_run:
        if result.machine != machine:
            return f"had another machine: {result.machine}, not {machine}"
        if files := results.changed(claim, result, root):
            return f"has measured {claim.benchmark} of other code: {', '.join(files)} changed since"
    return ""


def split(asked: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the names, and the arguments behind `--`."""
    at = list(asked).index("--") if "--" in asked else len(asked)
    return list(asked[:at]), tuple(asked[at + 1 :])


class SkippedError(Exception):
    """This machine can't run the benchmark."""


@dataclasses.dataclass(frozen=True)
class BenchmarkRun:
    """What the benchmarks that run together share."""

    root: Path
    began: str
    commit: str
    machine: str

    def result(self, claim: Claim, arguments: tuple[str, ...], earlier: Iterable[Result]) -> Result:
        """Run a benchmark, show what it prints, and return its verdict with the circumstances."""
        code = results.digests(claim, self.root)
        busy = psutil.cpu_percent(LISTENING_S) / 100
        before = pace.measured()
        date, began = now(), time.monotonic()
        verdict = self._verdict(claim, arguments)
        took_s = time.monotonic() - began
        after, pace_code = pace.measured(), results.digest(Path(pace.__file__))
        return Result(
            figures=verdict["figures"],
            bounds=verdict["bounds"],
            met=verdict["met"],
            unmet=tuple(verdict["unmet"]),
            arguments=arguments,
            run=self.began,
            date=date,
            took_s=round(took_s, 3),
            commit=self.commit,
            machine=self.machine,
            busy_before=round(busy, 3),
            code=code,
            packages=results.packages(claim, self.root),
            pace_before_ms=before,
            pace_after_ms=after,
            pace_best_ms=results.best_pace_ms((before, after), self.machine, pace_code, earlier),
            pace_code=pace_code,
        )

    def _verdict(self, claim: Claim, arguments: tuple[str, ...]) -> dict[str, Any]:
        """Return its last line; what ends without a verdict has met nothing, what is skipped has none."""
        environment = os.environ | {"PYTHONPATH": str(self.root)}  # the code whose digest is taken
        command = [sys.executable, str(self.root / claim.script), *arguments]
        last = ""
        with subprocess.Popen(command, cwd=self.root, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        try:
            verdict = json.loads(last)
            if "skipped" in verdict:
                raise SkippedError(verdict["skipped"])
            return {name: verdict[name] for name in ("figures", "bounds", "met", "unmet")}
        except (ValueError, TypeError, KeyError):
            print(f"{claim.benchmark} ended with exit code {process.returncode} and without a verdict")
            return {"figures": {}, "bounds": {}, "met": False, "unmet": []}


def complaints(claim: Claim, result: Result) -> list[str]:
    found = [f"{claim.benchmark}: {name} is {result.figures[name]}, not {result.bounds[name]}" for name in result.unmet]
    if not result.figures:
        return [f"{claim.benchmark}: it did not run to its end"]
    if why := results.disturbed(result):
        found.append(f"{claim.benchmark}: {why}")
    if missing := sorted(claim.quoted() - result.figures.keys()):
        found.append(f"{claim.benchmark}: README quotes {', '.join(missing)}, but it prints no such figure")
    return found


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit_at(root: Path) -> str:
    """Return the commit, and whether files differ from it; what this command writes itself does not count."""
    own = [f":!{name}" for name in (results.FILE, table.README)]
    try:
        commit = _git(root, "rev-parse", "--short", "HEAD")
        return f"{commit} with changes" if _git(root, "status", "--porcelain", "--", ".", *own) else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def machine_here() -> str:
    """Return the machine in words that name no host."""
    facts = fingerprint.hardware()
    cpu = "{model}, {threads} threads of {cores} cores".format(**facts["cpu"])
    kernel = facts["kernel"].partition("-")[0]  # what follows is whoever built it
    return f"{cpu}, {facts['memory_gib']} GiB, Linux {kernel}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
