"""The help of every command: each option is explained, and the same one alike everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from sweeps.cli.main import HEADINGS, main, sweep
from tests.unit import commands

pytestmark = pytest.mark.unit

# A folder with a store in it is another thing than a store's URI. What an address may be depends on the command.
APART = {("backup", "--store"), ("restore", "--store")}
OWN_WORDS = {"--address"}
UNDER = {
    "Run": "plan run submit stop resume retry reproduce schema",
    "Inspect": "list status logs trials diff report ui",
    "Cluster": "doctor",
    "Data": "data",
    "Maintain": "sync gc backup restore completion",
}


def arguments() -> Iterator[tuple[str, str, click.Parameter]]:
    for name, command in commands.every():
        for one in command.params:
            yield name, "/".join(one.opts) if isinstance(one, click.Option) else one.name, one


def test_every_command_and_every_argument_is_explained() -> None:
    assert [name for name, command in commands.every() if not command.help] == []
    assert [(command, option) for command, option, one in arguments() if not one.help] == []


def test_an_option_of_several_commands_is_spelled_and_explained_alike() -> None:
    """Alike to the first `(` or `;`: behind it stands the default, or what one command adds."""
    found = defaultdict(set)
    for command, option, one in arguments():
        if isinstance(one, click.Option) and (command, option) not in APART:
            words = str(one.help).split(";")[0].split(" (")[0]
            found[option].add((one.metavar, "" if option in OWN_WORDS else words))
    assert {"--format", "--store", "--address", "--set", "--simulate", "--fresh", "-f/--follow"} <= found.keys()
    assert {option: said for option, said in found.items() if len(said) > 1} == {}


def test_a_sweep_is_named_alike_by_every_command() -> None:
    said = {(one.metavar, str(one.help).split(";")[0]) for _, option, one in arguments() if option == "name"}
    assert said == {("NAME", "a sweep's name, as in results/NAME")}


def test_no_word_stands_for_an_argument_in_small_letters() -> None:
    """`file` and `FILE` would be two spellings of one thing."""
    words = [(c, one.human_readable_name) for c, _, one in arguments() if isinstance(one, click.Argument)]
    assert words
    assert [(command, word) for command, word in words if word != word.upper()] == []


@pytest.mark.parametrize(("name", "command"), [*commands.every()], ids=lambda it: it if isinstance(it, str) else "")
def test_the_help_of_a_command_shows_each_of_its_options_with_its_explanation(
    name: str, command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())  # lines are broken anywhere
    assert "".join(str(command.help).split()) in shown
    for one in command.params:
        assert "".join(str(one.help).split()) in shown
        assert all(spelled in shown for spelled in (one.opts if isinstance(one, click.Option) else []))
    assert "show this, and exit".replace(" ", "") in shown


def test_the_commands_stand_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    under = {heading: " ".join(str(one.name) for one in group.COMMANDS) for heading, group in HEADINGS.items()}
    assert [*under.items()] == [*UNDER.items()]
    assert [*sweep.commands] == [name for names in UNDER.values() for name in names.split()]
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{heading}:\n") for heading in UNDER]
    assert places == sorted(places)
    for name, command in commands.every():
        if not isinstance(command, click.Group):
            (line,) = [line for line in shown.splitlines() if line.startswith(f"  {name.ljust(len('completion'))}  ")]
            assert command.help is not None
            assert command.help.startswith(line[2 + len("completion") :].strip())
