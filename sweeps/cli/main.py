"""The `sweep` command: its commands under their headings, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from sweeps import errors
from sweeps.cli import cluster, completion, data, inspect, maintain, run
from sweeps.cli.grammar import CommandGroup
from sweeps.errors import SweepError
from sweeps.text import caller

HEAD = "Deep-learning performance studies: one file says what to measure, one command measures it."
TAIL = """\
first steps
  sweep doctor                              what this machine can do
  sweep plan search_spaces/demo.yaml        what would run
  sweep run  search_spaces/demo.yaml        run it
  sweep report NAME                         it as one page to send on
  sweep ui                                  look at it in MLflow
  sweep reproduce                           published tables, to be measured again here

on a cluster
  ray get-auth-token --generate             once: the token that its machines and yours show each other
  nano cluster.yaml                         the part that is marked as yours: docs/cluster.md
  ray up cluster.yaml                       in the project's folder
  sweep submit search_spaces/batch_size.yaml --address cluster.yaml
  sweep status NAME -f | logs NAME -f | stop NAME | resume NAME | trials NAME | report NAME    with the same --address

exit codes: 0 done, 1 some trials failed or --fail-if holds, 2 the input is wrong, 3 the machine or a server refused,
            130 interrupted
"""
HEADINGS = {"Run": run, "Inspect": inspect, "Cluster": cluster, "Data": data, "Maintain": maintain}
DRIVERS = ("run", "resume", "retry")


class SweepCommand(CommandGroup):
    """All commands; the help has them under their headings."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {heading: [*_rows(group.COMMANDS)] for heading, group in HEADINGS.items()}
        widest = max(len(name) for found in rows.values() for name, _ in found)
        for heading, found in rows.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), says) for name, says in found])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write(TAIL)  # as it stands


def _rows(commands: Sequence[click.Command]) -> list[tuple[str, str]]:
    """Each command, and those under one word each by itself."""
    made: list[tuple[str, str]] = []
    for one in commands:
        under = [*one.commands.values()] if isinstance(one, click.Group) else []
        made += [(f"{one.name} {part.name}", str(part.help)) for part in under] or [(str(one.name), str(one.help))]
    return made


def _version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from sweeps.cluster import versions

        print(versions.shown())
        ctx.exit()


sweep = SweepCommand(
    "sweep",
    help=HEAD,
    commands={str(one.name): one for group in HEADINGS.values() for one in group.COMMANDS},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="show what is installed here, and exit",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def main(arguments: Sequence[str] | None = None) -> int:
    if asked := os.environ.get(completion.VARIABLE):
        return completion.answer(sweep, asked)
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] and given[0] in DRIVERS:
        from sweeps.cluster import driver_log, versions
        from sweeps.record import ledger

        if ledger.JOB in os.environ:
            with driver_log.kept():
                if differs := versions.difference_from_caller():
                    print(differs, file=sys.stderr)
                return _done(given)
    return _done(given)


def _done(given: list[str]) -> int:
    """Return the exit code of a command, its errors told."""
    try:
        with sweep.make_context(caller.program(), [*given], obj=tuple(given)) as ctx:
            return int(sweep.invoke(ctx))
    except click.exceptions.Exit as end:  # --help and --version
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as bare:
        print(bare.format_message(), file=sys.stderr)
        return errors.WRONG_INPUT
    except SweepError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return errors.INTERRUPTED
    except BrokenPipeError:  # `sweep trials … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.DONE
