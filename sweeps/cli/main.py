"""The `sweep` command: reads arguments, calls one function, turns errors into lines and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeps import errors
from sweeps.cli import data
from sweeps.errors import InputError, Mistake, RefusedError, SweepError
from sweeps.text import addresses, caller
from workers.contract.redact import masked

if TYPE_CHECKING:
    from sweeps.run.terms import Terms

HEAD = "Deep-learning performance studies: one file says what to measure, one command measures it."
TAIL = """\
first steps
  sweep doctor                              what this machine can do
  sweep plan search_spaces/demo.yaml        what would run
  sweep run  search_spaces/demo.yaml        run it
  sweep report NAME                         it as one page to send on
  sweep ui                                  look at it in MLflow
  sweep reproduce                           published tables, to be measured again here

on a cluster (ray up cluster.yaml)
  sweep submit search_spaces/scaling.yaml --address cluster.yaml
  sweep status NAME -f | logs NAME -f | stop NAME | resume NAME | trials NAME | report NAME    with the same --address

exit codes: 0 done, 1 some trials failed or --fail-if holds, 2 the input is wrong, 3 the machine or a server refused
"""


REPEATS, TOLERANCE = 3, "5%"  # of a table that is reproduced


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    args = _parser().parse_args(given)
    if args.call in (_run, _resume, _retry):
        from sweeps.cluster import driver_log, versions
        from sweeps.record import ledger

        if ledger.JOB in os.environ:
            with driver_log.kept():
                if differs := versions.difference_from_caller():
                    print(differs, file=sys.stderr)
                return _done(args, given)
    return _done(args, given)


def _done(args: argparse.Namespace, given: Sequence[str]) -> int:
    """The exit code of a command, its errors told."""
    try:
        return _at_its_place(args, given)
    except SweepError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return errors.INTERRUPTED
    except BrokenPipeError:  # `sweep trials … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.DONE


def _at_its_place(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Here, with the Ray cluster that this machine is in, or by the head of one elsewhere."""
    if not hasattr(args, "address"):
        return int(args.call(args))
    heeded: Mapping[str, str] = {} if _asks_no_cluster(args) else os.environ
    may, default = _may(args)
    elsewhere = args.elsewhere(args) if hasattr(args, "elsewhere") else ""
    there = addresses.choose(args.address, heeded, may, caller.program(), elsewhere=elsewhere, default=default)
    with caller.known(*_said(args, there), there.address, str(getattr(args, "file", ""))):
        if there.kind in addresses.AFAR:
            return int(args.goes_afar(args, _without_address(given), there.address))
        args.address = there.address or None
        return int(args.call(args))


def _said(args: argparse.Namespace, there: addresses.Place) -> tuple[str, addresses.Kind]:
    """The address that suggested commands have, and its kind: the one that was given. What is simulated lies on this
    machine, also where the environment leads others to a cluster."""
    if getattr(args, "simulate", "") and there.kind not in addresses.AFAR and addresses.leads(os.environ):
        return addresses.LOCAL, "here"
    return args.address or "", there.kind


def _may(args: argparse.Namespace) -> tuple[Sequence[addresses.Kind], str]:
    """Where it may happen, and where it does if nobody says."""
    if args.call is _doctor and args.cluster:
        return [kind for kind in args.may if kind != "here"], "auto"
    if getattr(args, "measured", ""):
        return [*args.may, *addresses.AFAR], ""  # the head compares: the results are there
    return args.may, ""


def _asks_no_cluster(args: argparse.Namespace) -> bool:
    """What is simulated needs none. A table's sweep file is made here, and `doctor` without `--cluster` looks at this
    machine, whatever the environment says."""
    if args.call is _reproduce and not args.measured and (args.plan or args.export or not args.table):
        return True
    if args.call is _doctor and not args.cluster:
        return True
    return bool(getattr(args, "simulate", ""))


def _without_address(given: Sequence[str]) -> list[str]:
    """A command as the head is to have it."""
    command = [part for part in given if not part.startswith("--address=")]
    if "--address" in command:
        at = command.index("--address")
        del command[at : at + 2]
    return command


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sweeps.cluster import versions

        print(versions.shown())
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweep", description=HEAD, epilog=TAIL, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show what is installed here, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, call: object, says: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=says, description=says, allow_abbrev=False)  # heads are sent it as it is
        made.set_defaults(call=call, may=("here",))
        return made

    def named(to: argparse.ArgumentParser, nargs: str | None = None, says: str = "") -> None:
        help_ = f"a sweep's name, as in results/NAME{says}"
        to.add_argument("name", metavar="NAME", nargs=nargs, default="", help=help_)

    def sweep_file(to: argparse.ArgumentParser) -> None:
        to.add_argument("file", metavar="FILE", type=Path, help="a sweep file, such as search_spaces/demo.yaml")
        overriding(to)

    def overriding(to: argparse.ArgumentParser) -> None:
        says = "values that replace those of the sweep file"
        to.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=says)

    def fresh(to: argparse.ArgumentParser) -> None:
        to.add_argument("--fresh", action="store_true", help="measure again what earlier sweeps have measured")

    def following(to: argparse.ArgumentParser) -> None:
        to.add_argument("-f", "--follow", action="store_true", help="go on until it ends")

    def skipping(to: argparse.ArgumentParser) -> None:
        to.add_argument(
            "--skip-impossible",
            action="store_true",
            help="leave out the trials that the cluster can never hold; run the others",
        )

    def budgeted(to: argparse.ArgumentParser) -> None:
        says = "what the whole sweep may spend, with what it has spent already; replaces the file's budget"
        to.add_argument("--budget", type=float, metavar="GPU_HOURS", help=says)

    def placed(to: argparse.ArgumentParser, *may: addresses.Kind, afar: object = None) -> None:
        """Where it may happen, and what has a cluster elsewhere do it."""
        forms = {
            "ray": "HOST:6379 or auto: the cluster that this machine is in",
            "ssh": "cluster.yaml: a cluster elsewhere, through SSH",
        }
        allowed = "; or ".join(form for kind, form in forms.items() if kind in may) or "local, the only one it takes"
        over_http = " (http://HEAD:8265: without SSH)" if "http" in may else ""
        otherwise = ", else this machine" if "here" in may else ""
        silent = f"not given: {addresses.JOB_SERVER} or {addresses.RAY} says it{otherwise}"
        to.add_argument("--address", help=f"{allowed}{over_http}; {silent}")
        to.set_defaults(may=may, goes_afar=afar)

    def simulated(to: argparse.ArgumentParser) -> None:
        to.add_argument("--simulate", default="", metavar="SHAPE", help="a cluster, such as nodes=8,gpus=4,gpu=v100")

    def formatted(to: argparse.ArgumentParser, *forms: str, says: str = "") -> None:
        forms = forms or ("table", "csv", "json")
        help_ = f"the form of what comes out ({forms[0]}){says}"
        to.add_argument("--format", choices=forms, default=forms[0], help=help_)

    def stored(to: argparse.ArgumentParser, several: str = "") -> None:
        """Which store is read; with words for several, they are a list."""
        action, default = ("append", []) if several else ("store", "")
        help_ = f"a tracking store to read instead{several}"
        to.add_argument("--store", action=action, default=default, metavar="URI", help=help_)

    planning = command("plan", _plan, "show what a sweep would run and what it would cost; start nothing")
    sweep_file(planning)
    planning.add_argument(
        "--next", default="", metavar="SWEEP", help="show which trial would tell most, after those of SWEEP"
    )
    simulated(planning)
    skipping(planning)
    placed(planning, "here", "ray", *addresses.AFAR, afar=_plan_afar)
    formatted(planning)
    running = command("run", _run, "run a sweep here, or on a Ray cluster, and show what was found")
    sweep_file(running)
    simulated(running)
    fresh(running)
    skipping(running)
    placed(running, "here", "ray")
    running.set_defaults(elsewhere=_how_to_run_afar)
    submitting = command("submit", _submit_afar, "have a cluster run a sweep; return at once with its name")
    sweep_file(submitting)
    fresh(submitting)
    skipping(submitting)
    placed(submitting, *addresses.AFAR, afar=_submit_afar)
    status = command("status", _status, "show how far a sweep is: nodes, running trials, queue, cost")
    named(status)
    following(status)
    formatted(status, "table", "json")
    placed(status, "here", *addresses.AFAR, afar=_status_afar)
    logs = command("logs", _logs, "show what a submitted sweep's driver says")
    named(logs)
    following(logs)
    placed(logs, "here", *addresses.AFAR, afar=_relay)
    stopping = command("stop", _stop, "stop a running sweep: what runs is cancelled, `sweep resume` goes on")
    named(stopping)
    placed(stopping, "here", *addresses.AFAR, afar=_relay)
    resuming = command("resume", _resume, "run what a sweep that stopped has not measured yet")
    named(resuming)
    budgeted(resuming)
    skipping(resuming)
    placed(resuming, "here", "ray", *addresses.AFAR, afar=_drive_afar)
    retrying = command("retry", _retry, "run a sweep's trials again that failed or were lost, or as --status says")
    named(retrying)
    retrying.add_argument("--status", default="", help="how the trials ended that are to run again (failed,lost)")
    budgeted(retrying)
    skipping(retrying)
    placed(retrying, "here", "ray", *addresses.AFAR, afar=_drive_afar)
    trials = command("trials", _trials, "list a sweep's trials, from MLflow")
    named(trials, "+", "; may be several")
    trials.add_argument(
        "--where", default="", metavar="CONDITION", help="such as \"gpus >= 4 and precision == 'fp16'\""
    )
    trials.add_argument("--sort", default="", metavar="COLUMN[:desc],…", help="such as gpus,images_per_s:desc")
    trials.add_argument("--columns", default="", metavar="COLUMN,…", help="such as trial,gpus,images_per_s")
    stored(trials, "; may be given several times")
    trials.add_argument("--rebuild", action="store_true", help="read the whole store anew, not only what has changed")
    formatted(trials, "table", "csv", "json", "parquet")
    placed(trials, "here", *addresses.AFAR, afar=_trials_afar)
    listing = command("list", _list, "list the sweeps in the tracking store, and those whose ledger is here")
    stored(listing, "; may be given several times")
    formatted(listing)
    placed(listing, "here", *addresses.AFAR, afar=_relay)
    differing = command("diff", _diff, "compare two sweeps, machines or published systems, cell by cell")
    differing.add_argument("a", metavar="A", help="NAME, NAME@FINGERPRINT, or reference:SYSTEM")
    differing.add_argument("b", metavar="B", help="what is held against it")
    differing.add_argument("--figure", default="", help="images_per_s, or hours_to_target where both have some")
    differing.add_argument(
        "--fail-if",
        default="",
        metavar="slower:3%",
        help="exit with 1 if a cell is slower for sure, and by 3%% at best estimate",
    )
    stored(differing, "; given twice, A's and B's")
    formatted(differing)
    placed(differing, "here", *addresses.AFAR, afar=_relay)
    reproducing = command(
        "reproduce", _reproduce, "measure a published table, or an earlier sweep, again: which of its rows hold here"
    )
    reproducing.add_argument(
        "table",
        nargs="?",
        default="",
        metavar="TABLE",
        help="a listed table (none: list them), a CSV file, or a sweep",
    )
    reproducing.add_argument(
        "--system", default="", metavar="NAME", help="only rows of the system whose name begins with NAME"
    )
    overriding(reproducing)
    reproducing.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help=f"of each row ({REPEATS})")
    says = "how far off a row may be and still hold"
    reproducing.add_argument("--tolerance", default=TOLERANCE, metavar=TOLERANCE, help=says)
    reproducing.add_argument(
        "--plan", action="store_true", help="print the sweep file and what it would run; run nothing"
    )
    reproducing.add_argument(
        "--measured", default="", metavar="SWEEP", help="compare with what SWEEP measured; run nothing"
    )
    reproducing.add_argument("--export", type=Path, metavar="FILE", help="write the table as a CSV file; run nothing")
    simulated(reproducing)
    formatted(reproducing)
    placed(reproducing, "here", "ray", afar=_measured_afar)
    reproducing.set_defaults(elsewhere=_how_to_reproduce_afar)
    reporting = command("report", _report, "write a sweep as one page: answer, plots, tables, how to do it again")
    named(reporting)
    reporting.add_argument("--out", type=Path, metavar="FILE", help="where to write it (results/NAME/report.html)")
    formatted(reporting, "html", "png", "csv", says="; png and csv are folders of files")
    stored(reporting)
    placed(reporting, "here", *addresses.AFAR, afar=_report_afar)
    syncing = command("sync", _sync, "bring a sweep's ledger to the tracking store, as often as you like")
    named(syncing)
    placed(syncing, "here", *addresses.AFAR, afar=_relay)
    collecting = command("gc", _gc, "show what can be deleted of old sweeps and copies; delete it with --yes")
    collecting.add_argument(
        "--older",
        type=float,
        default=90.0,
        metavar="DAYS",
        help="look at sweeps and copies older than that (90); runs that were made twice in MLflow go at any age,"
        " and so does what is left of discarded sweeps",
    )
    collecting.add_argument("--ledgers", action="store_true", help="delete their ledgers and reports as well")
    collecting.add_argument("--yes", action="store_true", help="delete it")
    formatted(collecting)
    placed(collecting, "here", *addresses.AFAR, afar=_relay)
    saving = command("backup", _backup, "write the tracking store to one file, while it is in use")
    saving.add_argument("file", metavar="FILE", type=Path, help="such as mlflow.tar.gz; one that is there is replaced")
    restoring = command("restore", _restore, "bring back the tracking store of a backup, where there is none")
    restoring.add_argument("file", metavar="FILE", type=Path, help="a file that sweep backup wrote")
    for one in (saving, restoring):
        one.add_argument(
            "--store",
            type=Path,
            metavar="FOLDER",
            help="the folder that holds mlflow.db; else the store of the current folder",
        )
        placed(one, "here")
    data.arguments(command("data", _data, "make or check a folder of JPEG images in TFRecords"))
    doctor = command(
        "doctor", _doctor, "check what this machine can do, or with --cluster each node of a cluster, and what is wrong"
    )
    doctor.add_argument(
        "--cluster", action="store_true", help="every node of the cluster, not this machine; so does --address"
    )
    doctor.add_argument("--data", action="append", default=[], metavar="DIR", help="a folder that must be readable")
    formatted(doctor)
    placed(doctor, "here", "ray", *addresses.AFAR, afar=_doctor_afar)
    ui = command("ui", _ui, "start the MLflow UI on the tracking store, and show where a sweep is in it")
    named(ui, "?", "; its pages are shown")
    ui.add_argument("--port", type=int, default=5000, metavar="PORT", help="where the UI listens (5000)")
    placed(ui, "here", "ssh", afar=_ui_afar)
    command("schema", _schema, "print the JSON Schema of sweep files, for editors")
    return parser


def _plan(args: argparse.Namespace) -> int:
    if args.next:
        from sweeps.cli import next_cell

        return next_cell.show(args.file, tuple(args.set), args.next, args.format)
    from sweeps.run import preview

    terms = dataclasses.replace(_terms(args), simulate=args.simulate)
    return preview.preview(args.file, tuple(args.set), terms, args.format)


def _plan_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.relay([*command, *([] if args.next else ["--address", "auto"])], url, args.file)


def _run(args: argparse.Namespace) -> int:
    from sweeps.run import driver

    terms = dataclasses.replace(_terms(args), simulate=args.simulate, is_fresh=args.fresh)
    return driver.drive(args.file, tuple(args.set), terms)


def _submit_afar(args: argparse.Namespace, _: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    options = [*(["--fresh"] if args.fresh else []), *(["--skip-impossible"] if args.skip_impossible else [])]
    return ray_jobs.submit(args.file, tuple(args.set), url, options)


def _drive_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.drive([*command, "--address", "auto"], args.name, url)


def _relay(_: argparse.Namespace, command: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.relay(command, url)


def _status(args: argparse.Namespace) -> int:
    from sweeps.run import status

    return status.show(args.name, args.follow, args.format)


def _status_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs
    from sweeps.run import status

    if args.format == "json":
        return ray_jobs.relay(command, url)
    return status.render(ray_jobs.bulletins(args.name, args.follow, url))


def _logs(args: argparse.Namespace) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.logs(args.name, args.follow)


def _stop(args: argparse.Namespace) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.stop(args.name)


def _resume(args: argparse.Namespace) -> int:
    from sweeps.run import driver

    return driver.resume(args.name, _terms(args))


def _retry(args: argparse.Namespace) -> int:
    from sweeps.run import driver

    return driver.retry(args.name, args.status.split(",") if args.status else (), _terms(args))


def _terms(args: argparse.Namespace) -> Terms:
    from sweeps.run.terms import Terms

    budget = getattr(args, "budget", None)
    return Terms(address=args.address, skips_impossible=args.skip_impossible, budget=budget)


def _trials(args: argparse.Namespace) -> int:
    from sweeps import analysis
    from sweeps.store import query
    from sweeps.text import tables

    with _telling():
        found = query.trials(args.name, args.where, store=args.store, rebuild=args.rebuild)
    found = query.ordered(found, args.sort)
    if args.columns:
        found = query.chosen(found, args.columns.split(","))
    elif args.format == "table":
        figures = [name for name in query.HEADLINE if found[name].notna().any()]
        words = ["limited_by"] if found["limited_by"].any() else []
        of = [name for name in ("sweep", "store") if name in found]
        found = found[[*of, "trial", *analysis.varied(found), "repeat", "outcome", *figures, *words]]
    tables.show(found, args.format)
    if found.empty:
        what = f"fulfils --where {args.where}" if args.where else "is in the store"
        print(f"no trial of {', '.join(args.name)} {what}", file=sys.stderr)
    return errors.DONE


def _trials_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    if args.format == "parquet":
        rule = "must be table, csv or json for a sweep on a cluster; on its head all of them are"
        raise InputError("--format", [Mistake("", rule, args.format)])
    return _relay(args, command, url)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """What a query left out, as lines."""
    import warnings

    from sweeps.store import query

    with warnings.catch_warnings(record=True, action="always", category=query.LeftOut) as left_out:
        yield
    for line in dict.fromkeys(str(warning.message) for warning in left_out):
        print(line, file=sys.stderr)


def _report(args: argparse.Namespace) -> int:
    from sweeps import report
    from sweeps.record import ledger

    if args.out == Path("-"):
        sys.stdout.write(report.as_text(args.name, args.store))
        return errors.DONE
    made = report.write(args.name, args.out, args.format, args.store)
    print(made)
    if args.format == "html" and not args.store and args.name in ledger.names():
        with ledger.undriven(args.name) as is_free:
            if is_free:
                report.attach(args.name, made)
            else:
                print(f"{args.name} is running: its driver logs the report to MLflow at its end", file=sys.stderr)
    return errors.DONE


def _report_afar(args: argparse.Namespace, _: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    return ray_jobs.report(args.name, args.out or Path(f"{args.name}.html"), args.format, args.store, url)


def _list(args: argparse.Namespace) -> int:
    from sweeps.store import query
    from sweeps.text import tables

    with _telling():
        found = query.list_sweeps(store=args.store)
    if args.format == "table":
        found = found.drop(columns=[name for name in found if name != "sweep" and not query.tells(found[name])])
    tables.show(found, args.format)
    return errors.DONE


def _diff(args: argparse.Namespace) -> int:
    from sweeps.cli import diff

    gate = diff.gate(args.fail_if) if args.fail_if else None
    found = diff.diff(args.a, args.b, args.figure, store=args.store)
    diff.show(found, (args.a, args.b), args.format)
    if gate and (why := diff.failure(found, gate)):
        print(f"fails {args.fail_if}: {why}", file=sys.stderr)
    return diff.exit_code(found, gate)


def _reproduce(args: argparse.Namespace) -> int:
    from sweeps.run import reproduce
    from sweeps.run.terms import Terms

    ask = reproduce.Ask(
        table=args.table,
        system=args.system,
        overrides=tuple(args.set),
        repeats=args.repeats,
        tolerance=reproduce.tolerance(args.tolerance),
        only_plan=args.plan,
        measured=args.measured,
        export=args.export,
        form=args.format,
    )
    return reproduce.answer(ask, Terms(address=args.address, simulate=args.simulate))


def _measured_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    from sweeps.cluster import ray_jobs

    file = Path(args.table)
    return ray_jobs.relay(command, url, file if file.is_file() else None)


def _how_to_run_afar(args: argparse.Namespace) -> str:
    """The command that runs the same sweep on a cluster that this machine is no part of."""
    put = ["--set", *args.set] if args.set else []
    options = [*(["--fresh"] if args.fresh else []), *(["--skip-impossible"] if args.skip_impossible else [])]
    return shlex.join([caller.program(), "submit", str(args.file), *put, *options, *_afar(args)])


def _afar(args: argparse.Namespace) -> list[str]:
    """The address that was given, as commands take it that a cluster elsewhere does; else the environment says it."""
    given = args.address or ""
    is_bare = given.endswith(addresses.JOBS_PORT) and not given.startswith(addresses.URL)
    return ["--address", f"http://{given}" if is_bare else given] if given else []


def _how_to_reproduce_afar(args: argparse.Namespace) -> str:
    """The commands that measure a table on a cluster that this machine is no part of."""
    system = ["--system", args.system] if args.system else []
    put = ["--set", *args.set] if args.set else []
    where = _afar(args)
    table = shlex.join([caller.program(), "reproduce", args.table or "TABLE", *system])
    repeats = f" --repeats {args.repeats}" if args.repeats != REPEATS else ""
    within = f" --tolerance {args.tolerance}" if args.tolerance != TOLERANCE else ""
    submits = shlex.join([caller.program(), "submit", "table.yaml", *put, *where])
    compares = f"{table}{within} {shlex.join(['--measured', 'NAME', *where])}"
    return f"{table}{repeats} --plan > table.yaml, {submits}, and {compares}"


def _sync(args: argparse.Namespace) -> int:
    from sweeps import report
    from sweeps.record import ledger
    from sweeps.store import tracking

    with ledger.resting(args.name) as record:  # of two that write the same runs each would make its own
        tracking.sync(record, report.conclusion(args.name))
    print(f"{len(record.trials)} trials of {args.name} stand in {masked(tracking.store_name())}")
    return errors.DONE


def _gc(args: argparse.Namespace) -> int:
    from sweeps.cli import gc

    with _telling():
        return gc.collect(args.older, args.ledgers, args.yes, args.format)


def _backup(args: argparse.Namespace) -> int:
    from sweeps.store import backup

    return backup.write(args.file, args.store)


def _restore(args: argparse.Namespace) -> int:
    from sweeps.store import backup

    return backup.restore(args.file, args.store)


def _data(args: argparse.Namespace) -> int:
    return int(args.answer(args))


def _doctor(args: argparse.Namespace) -> int:
    from sweeps.cluster import doctor
    from sweeps.text import tables

    if args.address:
        from sweeps.cluster import checkup

        rows = checkup.examine(args.address, args.data)
        tables.show_rows(rows, args.format)
        return errors.REFUSED if any(row["wrong"] for row in rows) else errors.DONE
    findings = doctor.examine(args.data)
    tables.show_rows([finding.row() for finding in findings], args.format)
    return errors.REFUSED if any(finding.is_wrong for finding in findings) else errors.DONE


def _doctor_afar(args: argparse.Namespace, command: Sequence[str], url: str) -> int:
    return _relay(args, [*command, *([] if args.cluster else ["--cluster"])], url)


def _check_free(args: argparse.Namespace) -> None:
    from sweeps.cluster import doctor

    if not doctor.port_is_free(args.port):
        again = caller.command("ui", *([args.name] if args.name else []), "--port", str(args.port + 1))
        raise RefusedError(
            f"port {args.port} must be free, but another process listens there\n  choose another: {again}"
        )


def _ui_afar(args: argparse.Namespace, _: Sequence[str], file: str) -> int:
    from sweeps.cluster import ray_jobs

    _check_free(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the tunnel ends with us
    with ray_jobs.tunnel(Path(file), args.port) as (server, ended):
        os.environ["MLFLOW_TRACKING_URI"] = server
        print(f"MLflow of the cluster at {server} (Ctrl-C ends it)")
        for says, address in (_pages(args.name, server) if args.name else {}).items():
            print(f"  {says:<8} {address}")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            raise ended()
    return errors.DONE


def _ui(args: argparse.Namespace) -> int:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    is_server = uri.startswith("http")
    server = uri if is_server else f"http://127.0.0.1:{args.port}"
    pages = _pages(args.name, server) if args.name else {}
    if is_server:
        print(f"the tracking store is a server: open {masked(uri)}")
    else:
        _check_free(args)
        print(f"MLflow at {server} (Ctrl-C ends it)")
    for says, address in pages.items():
        print(f"  {says:<8} {address}")
    sys.stdout.flush()
    if is_server:
        return errors.DONE
    store = {"MLFLOW_BACKEND_STORE_URI": uri} if uri else {}  # never on the command line: it may hold a password
    here = ["--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"]
    return os.execve(sys.executable, [sys.executable, "-m", "mlflow", "ui", *here], os.environ | store)


def _pages(name: str, server: str) -> dict[str, str]:
    from sweeps.store import query, saved_views

    return saved_views.addresses(server, *query.place(name))


def _schema(_: argparse.Namespace) -> int:
    from sweeps.spec import sweep_file as spec

    print(json.dumps(spec.json_schema(), indent=2))
    return errors.DONE
