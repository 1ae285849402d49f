"""Commands that show what sweeps do and what they found."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sweeps import errors
from sweeps.cli import completion, options
from sweeps.cli.grammar import Whole, command
from sweeps.cli.left_out import tell
from sweeps.cli.place import At
from sweeps.errors import InputError, Mistake, RefusedError
from sweeps.text import caller
from sweeps.text.addresses import AFAR
from sweeps.text.tables import Format
from workers.contract.redact import masked

if TYPE_CHECKING:
    import pandas as pd


def needless(found: pd.DataFrame) -> list[str]:
    """Return what a table of sweeps does without, so that a terminal has room for the rest; other forms have it all."""
    alike = {"study": found.get("study", found["sweep"]).equals(found["sweep"])}
    alike |= {"store": "store" in found and found["store"].nunique() == 1}
    return [name for name in found if name == "ended_at" or alike.get(name)]


@command("list")
@options.stored("; may be given several times")
@options.formatted()
@options.address("here", *AFAR)
def list_sweeps(at: At, store: tuple[str, ...], form: Format) -> int:
    """List the sweeps in the tracking store, and those whose ledger is here."""
    if at.is_afar:
        return at.relay()
    from sweeps.store import query, selection
    from sweeps.text import tables

    with tell():
        found = query.list_sweeps(store=store)
    if form == "table":
        if found.empty:
            print("there are no sweeps yet")
            return errors.DONE
        found = found.drop(columns=[name for name in found if name != "sweep" and not selection.tells(found[name])])
        found = found.drop(columns=needless(found))
    tables.show(found, form)
    return errors.DONE


@command("status")
@options.named()
@options.following
@options.formatted("table", "json")
@options.address("here", *AFAR)
def status(at: At, name: str, follow: bool, form: Format) -> int:
    """Show how far a sweep is: nodes, running trials, queue, cost."""
    from sweeps.run import status

    if not at.is_afar:
        return status.show(name, follow, form)
    if form == "json":
        return at.relay()
    from sweeps.cluster import ray_jobs

    return status.render(ray_jobs.bulletins(name, follow, at.url), follow)


@command("logs")
@options.named()
@options.following
@options.address("here", *AFAR)
def logs(at: At, name: str, follow: bool) -> int:
    """Show what a submitted sweep's driver says."""
    if at.is_afar:
        return at.relay()
    from sweeps.cluster import ray_jobs

    return ray_jobs.logs(name, follow)


@command("trials")
@options.named("; may be several", nargs=-1, required=True)
@options.option("--where", default="", metavar="CONDITION", help="such as \"gpus >= 4 and precision == 'fp16'\"")
@options.option("--sort", default="", metavar="COLUMN[:desc],…", help="such as gpus,images_per_s:desc")
@options.option("--columns", default="", metavar="COLUMN,…", help="such as trial,gpus,images_per_s")
@options.stored("; may be given several times")
@options.flag("--rebuild", says="read the whole store anew, not only what has changed")
@options.formatted("table", "csv", "json", "parquet")
@options.address("here", *AFAR)
def trials(
    at: At,
    name: tuple[str, ...],
    where: str,
    sort: str,
    columns: str,
    store: tuple[str, ...],
    rebuild: bool,
    form: Format,
) -> int:
    """List a sweep's trials, from MLflow."""
    if at.is_afar:
        if form == "parquet":
            rule = "must be table, csv or json for a sweep on a cluster; on its head all of them are"
            raise InputError("--format", [Mistake("", rule, form)])
        return at.relay()
    from sweeps import analysis
    from sweeps.store import query, selection
    from sweeps.text import tables

    with tell():
        found = query.trials(name, where, store=store, rebuild=rebuild)
    found = selection.ordered(found, sort)
    if columns:
        found = selection.chosen(found, columns.split(","))
    elif form == "table":
        figures = selection.headline(found)
        words = ["limited_by"] if found["limited_by"].any() else []
        of = [one for one in ("sweep", "store") if one in found]
        found = found[[*of, "trial", *analysis.varied(found), "repeat", "outcome", *figures, *words]]
    tables.show(found, form)
    if found.empty:
        what = f"fulfils --where {where}" if where else "is in the store"
        print(f"no trial of {', '.join(name)} {what}", file=sys.stderr)
    return errors.DONE


@command("diff")
@options.argument(
    "a", metavar="A", help="NAME, NAME@FINGERPRINT, or reference:SYSTEM", shell_complete=completion.sweeps
)
@options.argument("b", metavar="B", help="what is held against it", shell_complete=completion.sweeps)
@options.option("--figure", default="", metavar="FIGURE", help="images_per_s, or hours_to_target where both have some")
@options.option(
    "--fail-if",
    default="",
    metavar="slower:3%",
    help="exit with 1 if a cell is slower for sure, and by 3% at best estimate",
)
@options.stored("; given twice, A's and B's")
@options.formatted()
@options.address("here", *AFAR)
def diff(at: At, a: str, b: str, figure: str, fail_if: str, store: tuple[str, ...], form: Format) -> int:
    """Compare two sweeps, machines or published systems, cell by cell."""
    if at.is_afar:
        return at.relay()
    from sweeps.cli import diff

    gate = diff.gate(fail_if) if fail_if else None
    found = diff.diff(a, b, figure, store=store)
    diff.show(found, (a, b), form)
    if gate and (why := diff.failure(found, gate)):
        print(f"fails {fail_if}: {why}", file=sys.stderr)
    return diff.exit_code(found, gate)


@command("report")
@options.named()
@options.option("--out", type=options.FILE, metavar="FILE", help="where to write it (results/NAME/report.html)")
@options.formatted("html", "png", "csv", says="; png and csv are folders of files")
@options.stored()
@options.address("here", *AFAR)
def report(at: At, name: str, out: Path | None, form: Literal["html", "png", "csv"], store: str) -> int:
    """Write a sweep as one page: answer, plots, tables, how to do it again."""
    if at.is_afar:
        from sweeps.cluster import ray_jobs

        return ray_jobs.report(name, out or Path(f"{name}.html"), form, store, at.url)
    from sweeps import report
    from sweeps.record import ledger

    if out == Path("-"):
        sys.stdout.write(report.as_text(name, store))
        return errors.DONE
    made = report.write(name, out, form, store)
    print(made)
    if form == "html" and not store and name in ledger.names() and (said := _logged(name, made)):
        print(said, file=sys.stderr)
    return errors.DONE


def _logged(name: str, page: Path) -> str:
    """Log a report to the sweep's own run in MLflow; return what is to be said of that. Whoever does it has the sweep:
    of two that look for its run at once each would make one."""
    from sweeps import report
    from sweeps.record import ledger, ownership

    if ownership.holder(name):
        return f"{name} is running: its driver logs the report to MLflow at its end"
    if not os.access(ledger.paths(name).ledger, os.W_OK):
        return f"the report is not logged to MLflow: the owner of {name} can do that"
    try:
        with ownership.resting(name):
            return report.attach(name, page)
    except ownership.TakenError:
        return f"the report is not logged to MLflow: another command has {name} at this moment, so do this again"


@command("ui")
@options.named("; its pages are shown", default="")
@options.option("--port", type=Whole(), default=5000, metavar="PORT", help="where the UI listens (5000)")
@options.address("here", "ssh")
def ui(at: At, name: str, port: int) -> int:
    """Start the MLflow UI on the tracking store, and show where a sweep is in it."""
    if at.is_afar:
        return _through_tunnel(Path(at.url), name, port)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    is_server = uri.startswith("http")
    server = uri if is_server else f"http://127.0.0.1:{port}"
    pages = _pages(name, server)
    if is_server:
        print(f"the tracking store is a server: open {masked(uri)}")
    else:
        _check_free(name, port)
        print(f"MLflow at {server} (Ctrl-C ends it)")
    _show(pages)
    if is_server:
        return errors.DONE
    store = {"MLFLOW_BACKEND_STORE_URI": uri} if uri else {}  # never on the command line: it may hold a password
    here = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return os.execve(sys.executable, [sys.executable, "-m", "mlflow", "ui", *here], os.environ | store)


def _through_tunnel(file: Path, name: str, port: int) -> int:
    from sweeps.cluster import connection

    _check_free(name, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the tunnel ends with us
    with connection.tunnel(file, port) as (server, ended):
        os.environ["MLFLOW_TRACKING_URI"] = server
        print(f"MLflow of the cluster at {server} (Ctrl-C ends it)")
        _show(_pages(name, server))
        with contextlib.suppress(KeyboardInterrupt):
            raise ended()
    return errors.DONE


def _check_free(name: str, port: int) -> None:
    from sweeps.cluster import doctor

    if not doctor.port_is_free(port):
        again = caller.command("ui", *([name] if name else []), "--port", str(port + 1))
        raise RefusedError(f"port {port} must be free, but another process listens there\n  choose another: {again}")


def _pages(name: str, server: str) -> dict[str, str]:
    """Where a sweep is in MLflow, by what is shown there; nothing without a name."""
    if not name:
        return {}
    from sweeps.store import query, saved_views

    return saved_views.addresses(server, *query.place(name))


def _show(pages: dict[str, str]) -> None:
    for says, address in pages.items():
        print(f"  {says:<8} {address}")
    sys.stdout.flush()


COMMANDS = (list_sweeps, status, logs, trials, diff, report, ui)
