"""The commands, as click knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import click
import pytest

from sweeps.cli import place
from sweeps.cli.main import sweep
from sweeps.cli.options import AddressOption


def every(group: click.Group = sweep, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each by what is typed, those that only hold others too."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from every(command, f"{before}{name} ")


def read(words: Sequence[str]) -> click.Context:
    """The words of a command, read; nothing is called."""
    return sweep.commands[words[0]].make_context(words[0], [*words[1:]], parent=click.Context(sweep, info_name="sweep"))


def address(command: click.Command) -> AddressOption | None:
    return next((one for one in command.params if isinstance(one, AddressOption)), None)


def replace(monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., int]) -> None:
    """Have `call` in place of a command that takes an address, behind what finds out where it happens."""
    command = sweep.commands[name]
    option = address(command)
    assert option
    monkeypatch.setattr(command, "callback", place.at_its_place(call, option.may_by))
