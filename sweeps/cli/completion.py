"""What a shell completes: names that cost nothing to find. Reads the results folder, never Ray or MLflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

Shell = Literal["bash", "zsh", "fish"]
SHELLS = get_args(Shell)
VARIABLE = "_SWEEP_COMPLETE"  # by which the shell asks, as in `bash_complete`
PROGRAM = "sweep"


def script(command: click.Command, shell: Shell) -> str:
    """Return what the shell runs once to complete the command."""
    written = get_completion_class(shell)(command, {}, PROGRAM, VARIABLE).source()
    if shell != "bash":
        return written
    plain = "COMPREPLY+=($value)"  # and no space behind `batch_size=`
    return written.replace(plain, f"{plain}\n            [[ $value == *= ]] && compopt -o nospace")


def answer(command: click.Command, asked: str) -> int:
    """Print what fits where the shell's cursor is; the exit code."""
    return shell_complete(command, {}, PROGRAM, VARIABLE, asked)


def sweeps(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Return the sweeps whose results are here, the latest first."""
    from sweeps.record import ledger

    return _fitting(reversed(ledger.names()), begun)


def tables(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Return the names of published tables, and of sweeps."""
    from sweeps.analysis import publication

    listed = [one.name for one in publication.listed()]
    return [*_fitting(listed, begun), *sweeps(ctx, param, begun)]


def keys(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Return the axes and the keys of a sweep file, as `--set` takes them."""
    from sweeps.spec.keys import Space, SweepSpec

    names = [*Space.model_fields, *(name for name in SweepSpec.model_fields if name != "space")]
    return _fitting([f"{name}=" for name in names], begun)


def places(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Return the two words; launcher files are found by the shell."""
    words = _fitting(["local", "auto"], begun) if begun else []
    return words or [CompletionItem(begun, type="file")]


def folders(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    return [CompletionItem(begun, type="dir")]


def _fitting(names: Iterable[str], begun: str) -> list[CompletionItem[str]]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]
