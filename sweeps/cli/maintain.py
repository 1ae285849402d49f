"""Commands that keep stores, folders and the command itself in order."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sweeps import errors
from sweeps.cli import completion, options
from sweeps.cli.grammar import OneOf, Real, command
from sweeps.cli.left_out import tell
from sweeps.cli.place import At
from sweeps.text.addresses import AFAR
from sweeps.text.tables import Format
from workers.contract.redact import masked

of_folder = options.option(
    "--store",
    type=options.FILE,
    metavar="FOLDER",
    help="the folder that holds mlflow.db; else the store of the current folder",
    shell_complete=completion.folders,
)


@command("sync")
@options.named()
@options.address("here", *AFAR)
def sync(at: At, name: str) -> int:
    """Bring a sweep's ledger to the tracking store, as often as you like."""
    if at.is_afar:
        return at.relay()
    from sweeps import report
    from sweeps.record import ownership
    from sweeps.store import access, late_runs, tracking

    with ownership.resting(name) as record:  # of two that write the same runs each would make its own
        late = tracking.sync(record, report.conclusion(name))
    print(f"{len(record.trials)} trials of {name} stand in {masked(access.store_name())}")
    if late:
        print(late_runs.words(late, name), file=sys.stderr)
    return errors.DONE


@command("gc")
@options.option(
    "--older",
    type=Real(),
    default=90.0,
    metavar="DAYS",
    help="look at sweeps and copies older than that (90); runs that were made twice in MLflow go at any age,"
    " and so does what is left of discarded sweeps",
)
@options.flag("--ledgers", says="delete their ledgers and reports as well")
@options.flag("--yes", says="delete it")
@options.formatted()
@options.address("here", *AFAR)
def gc(at: At, older: float, ledgers: bool, yes: bool, form: Format) -> int:
    """Show what can be deleted of old sweeps and copies; delete it with --yes."""
    if at.is_afar:
        return at.relay()
    from sweeps.cli import gc

    with tell():
        return gc.collect(older, ledgers, yes, form)


@command("backup")
@options.argument(
    "file", metavar="FILE", type=options.FILE, help="such as mlflow.tar.gz; one that is there is replaced"
)
@of_folder
@options.address("here")
def backup(_: At, file: Path, store: Path | None) -> int:
    """Write the tracking store to one file, while it is in use."""
    from sweeps.store import backup

    return backup.write(file, store)


@command("restore")
@options.argument("file", metavar="FILE", type=options.FILE, help="a file that sweep backup wrote")
@of_folder
@options.address("here")
def restore(_: At, file: Path, store: Path | None) -> int:
    """Bring back the tracking store of a backup, where there is none."""
    from sweeps.store import backup

    return backup.restore(file, store)


@command("completion")
@options.argument(
    "shell",
    metavar="SHELL",
    type=OneOf(completion.SHELLS),
    help='bash, zsh or fish; in its start-up file: eval "$(sweep completion bash)", or for fish'
    " sweep completion fish | source",
)
def complete(shell: completion.Shell) -> int:
    """Print the script by which a shell completes this command."""
    print(completion.script(click.get_current_context().find_root().command, shell), end="")
    return errors.DONE


COMMANDS = (sync, gc, backup, restore, complete)
