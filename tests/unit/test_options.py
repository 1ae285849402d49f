"""The help of every command: each option is explained, and the same one alike everywhere."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

from sweeps.cli.main import _parser

# A folder with a store in it is another thing than a store's URI. What an address may be depends on the command.
APART = {("backup", "--store"), ("restore", "--store")}
OWN_WORDS = {"--address"}


def commands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, made in action.choices.items():
                yield f"{before}{name}", made
                yield from commands(made, f"{before}{name} ")


def arguments() -> Iterator[tuple[str, str, argparse.Action]]:
    for name, command in commands(_parser()):
        for action in command._actions:
            if not isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)):
                yield name, "/".join(action.option_strings) or action.dest, action


def test_every_argument_is_explained() -> None:
    assert [(command, option) for command, option, action in arguments() if not action.help] == []


def test_an_option_of_several_commands_is_spelled_and_explained_alike() -> None:
    """Alike to the first `(` or `;`: behind it stands the default, or what one command adds."""
    found = defaultdict(set)
    for command, option, action in arguments():
        if action.option_strings and (command, option) not in APART:
            words = str(action.help).split(";")[0].split(" (")[0]
            found[option].add((action.metavar, "" if option in OWN_WORDS else words))
    assert {"--format", "--store", "--address", "--set", "--simulate", "--fresh", "-f/--follow"} <= found.keys()
    assert {option: said for option, said in found.items() if len(said) > 1} == {}


def test_a_sweep_is_named_alike_by_every_command() -> None:
    said = {(a.metavar, str(a.help).split(";")[0]) for _, option, a in arguments() if option == "name"}
    assert said == {("NAME", "a sweep's name, as in results/NAME")}


def test_no_word_stands_for_an_argument_in_small_letters() -> None:
    """`file` and `FILE` would be two spellings of one thing."""
    small = [(c, o) for c, o, a in arguments() if not a.option_strings and str(a.metavar).upper() != a.metavar]
    assert small == []
