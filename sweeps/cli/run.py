"""Commands that run trials, or say which would run."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps import errors
from sweeps.cli import completion, options
from sweeps.cli.grammar import Whole, command
from sweeps.cli.place import At, May
from sweeps.text import addresses, caller
from sweeps.text.addresses import AFAR
from sweeps.text.tables import Format

REPEATS, TOLERANCE = 3, "5%"  # of a table that is reproduced


@command("plan")
@options.sweep_file
@options.option(
    "--next",
    "after",
    default="",
    metavar="SWEEP",
    help="show which trial would tell most, after those of SWEEP",
    shell_complete=completion.sweeps,
)
@options.simulated
@options.skipping
@options.formatted()
@options.address("here", "ray", *AFAR)
def plan(
    at: At,
    file: Path,
    overrides: tuple[str, ...],
    after: str,
    simulate: str,
    skip_impossible: bool,
    form: Format,
) -> int:
    """Show what a sweep would run and what it would cost; start nothing."""
    if at.is_afar:
        return at.relay(*([] if after else ["--address", "auto"]), sends=file)
    if after:
        from sweeps.cli import next_cell

        return next_cell.show(file, overrides, after, form)
    from sweeps.run import preview
    from sweeps.run.terms import Terms

    terms = Terms(address=at.ray, simulate=simulate, skips_impossible=skip_impossible)
    return preview.preview(file, overrides, terms, form)


def _elsewhere(may: May, given: Mapping[str, Any]) -> May:
    """With the command that runs the same sweep on a cluster that this machine is no part of."""
    how = [*_set(given), *_options(given["fresh"], given["skip_impossible"]), *_of_cluster(given)]
    return dataclasses.replace(may, elsewhere=shlex.join([caller.program(), "submit", str(given["file"]), *how]))


@command("run")
@options.sweep_file
@options.simulated
@options.fresh
@options.skipping
@options.address("here", "ray", but=_elsewhere)
def run(at: At, file: Path, overrides: tuple[str, ...], simulate: str, fresh: bool, skip_impossible: bool) -> int:
    """Run a sweep here, or on a Ray cluster, and show what was found."""
    from sweeps.run import driver
    from sweeps.run.terms import Terms

    terms = Terms(address=at.ray, simulate=simulate, is_fresh=fresh, skips_impossible=skip_impossible)
    return driver.drive(file, overrides, terms)


@command("submit")
@options.sweep_file
@options.fresh
@options.skipping
@options.address(*AFAR)
def submit(at: At, file: Path, overrides: tuple[str, ...], fresh: bool, skip_impossible: bool) -> int:
    """Have a cluster run a sweep; return at once with its name."""
    from sweeps.cluster import ray_jobs

    return ray_jobs.submit(file, overrides, at.url, _options(fresh, skip_impossible))


@command("stop")
@options.named()
@options.address("here", *AFAR)
def stop(at: At, name: str) -> int:
    """Stop a running sweep: what runs is cancelled, `sweep resume` goes on."""
    if at.is_afar:
        return at.relay()
    from sweeps.cluster import ray_jobs

    return ray_jobs.stop(name)


@command("resume")
@options.named()
@options.budgeted
@options.skipping
@options.address("here", "ray", *AFAR)
def resume(at: At, name: str, budget: float | None, skip_impossible: bool) -> int:
    """Run what a sweep that stopped has not measured yet."""
    if at.is_afar:
        return _drive_afar(at, name)
    from sweeps.run import driver
    from sweeps.run.terms import Terms

    return driver.resume(name, Terms(address=at.ray, skips_impossible=skip_impossible, budget=budget))


@command("retry")
@options.named()
@options.option(
    "--status", default="", metavar="OUTCOME,…", help="how the trials ended that are to run again (failed,lost)"
)
@options.budgeted
@options.skipping
@options.address("here", "ray", *AFAR)
def retry(at: At, name: str, status: str, budget: float | None, skip_impossible: bool) -> int:
    """Run a sweep's trials again that failed or were lost, or as --status says."""
    if at.is_afar:
        return _drive_afar(at, name)
    from sweeps.run import driver
    from sweeps.run.terms import Terms

    terms = Terms(address=at.ray, skips_impossible=skip_impossible, budget=budget)
    return driver.retry(name, status.split(",") if status else (), terms)


def _drive_afar(at: At, name: str) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.drive([*at.words, "--address", "auto"], name, at.url)


def _of_table(may: May, given: Mapping[str, Any]) -> May:
    """Make a table's sweep file here; what has been measured lies where it was measured."""
    if given["measured"]:
        return dataclasses.replace(may, kinds=[*may.kinds, *AFAR])
    is_made_here = given["plan"] or given["export"] or not given["table"]
    return dataclasses.replace(may, heeds_environment=not is_made_here, elsewhere=_how_to_reproduce_afar(given))


@command("reproduce")
@options.argument(
    "table",
    default="",
    metavar="TABLE",
    help="a listed table (none: list them), a CSV file, or a sweep",
    shell_complete=completion.tables,
)
@options.option("--system", default="", metavar="NAME", help="only rows of the system whose name begins with NAME")
@options.overriding
@options.option("--repeats", type=Whole(), default=REPEATS, metavar="N", help=f"of each row ({REPEATS})")
@options.option("--tolerance", default=TOLERANCE, metavar=TOLERANCE, help="how far off a row may be and still hold")
@options.flag("--plan", says="print the sweep file and what it would run; run nothing")
@options.option(
    "--measured",
    default="",
    metavar="SWEEP",
    help="compare with what SWEEP measured; run nothing",
    shell_complete=completion.sweeps,
)
@options.option("--export", type=options.FILE, metavar="FILE", help="write the table as a CSV file; run nothing")
@options.simulated
@options.formatted()
@options.address("here", "ray", but=_of_table)
def reproduce(
    at: At,
    table: str,
    system: str,
    overrides: tuple[str, ...],
    repeats: int,
    tolerance: str,
    plan: bool,
    measured: str,
    export: Path | None,
    simulate: str,
    form: Format,
) -> int:
    """Measure a published table, or an earlier sweep, again: which of its rows hold here."""
    if at.is_afar:
        own = Path(table)
        return at.relay(sends=own if own.is_file() else None)
    from sweeps.run import reproduce as tables
    from sweeps.run.terms import Terms

    ask = tables.Ask(
        table=table,
        system=system,
        overrides=overrides,
        repeats=repeats,
        tolerance=tables.tolerance(tolerance),
        only_plan=plan,
        measured=measured,
        export=export,
        form=form,
    )
    return tables.answer(ask, Terms(address=at.ray, simulate=simulate))


@command("schema")
def schema() -> int:
    """Print the JSON Schema of sweep files, for editors."""
    from sweeps.spec import sweep_file

    print(json.dumps(sweep_file.json_schema(), indent=2))
    return errors.DONE


def _how_to_reproduce_afar(given: Mapping[str, Any]) -> str:
    """Return the commands that measure a table on a cluster that this machine is no part of."""
    where = _of_cluster(given)
    system = ["--system", given["system"]] if given["system"] else []
    table = shlex.join([caller.program(), "reproduce", given["table"] or "TABLE", *system])
    repeats = f" --repeats {given['repeats']}" if given["repeats"] != REPEATS else ""
    within = f" --tolerance {given['tolerance']}" if given["tolerance"] != TOLERANCE else ""
    submits = shlex.join([caller.program(), "submit", "table.yaml", *_set(given), *where])
    compares = f"{table}{within} {shlex.join(['--measured', 'NAME', *where])}"
    return f"{table}{repeats} --plan > table.yaml, {submits}, and {compares}"


def _set(given: Mapping[str, Any]) -> list[str]:
    return ["--set", *given["overrides"]] if given["overrides"] else []


def _options(fresh: bool, skip_impossible: bool) -> Sequence[str]:
    return [*(["--fresh"] if fresh else []), *(["--skip-impossible"] if skip_impossible else [])]


def _of_cluster(given: Mapping[str, Any]) -> list[str]:
    """Return the address that was given, as commands take it that a cluster elsewhere does; else the environment's."""
    address = given["address"] or ""
    is_bare = address.endswith(addresses.JOBS_PORT) and not address.startswith(addresses.URL)
    return ["--address", f"http://{address}" if is_bare else address] if address else []


COMMANDS = (plan, run, submit, stop, resume, retry, reproduce, schema)
