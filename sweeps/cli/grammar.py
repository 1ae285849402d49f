"""What the commands are written in: click, with mistakes in our words, as many as can be told at once.

Of a command the words are checked before anything is called: options that there are not, values that can't be, what is
missing and what is too much. `--set A B` is read as `--set A --set B`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from sweeps.errors import InputError, Mistake
from workers.contract.spelling import did_you_mean

SET = "--set"
FOUND = "sweeps.cli.grammar.found"  # where a context keeps the mistakes of its values


def refusal(ctx: click.Context, mistakes: Sequence[Mistake]) -> InputError:
    """Every mistake in a command's words, and where to read what it takes."""
    *others, last = mistakes
    cure = f"  {ctx.command_path} --help says what it takes"
    return InputError(ctx.command_path, [*others, dataclasses.replace(last, pointer=cure)])


class Checked(click.Parameter):
    """A parameter whose mistake is kept until those of all others are known."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if ctx.resilient_parsing:  # for completion
            return super().process_value(ctx, value)
        words = value if isinstance(value, (list, tuple)) else [value]
        if swallowed := [word for word in words if isinstance(word, str) and word in option_names(ctx)]:
            ctx.meta[FOUND].append(Mistake(self.said, "must have a value before the next option", swallowed[0]))
            return None
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            ctx.meta[FOUND].append(Mistake(self.said, f"must be given ({self.help})", None))
        except click.BadParameter as error:
            ctx.meta[FOUND].append(Mistake(self.said, error.message, value))
        return None

    @property
    def said(self) -> str:
        """Its name in a message."""
        return self.human_readable_name if isinstance(self, click.Argument) else self.opts[-1]


class Option(Checked, click.Option):
    """An option, `--like this`."""


class Argument(Checked, click.Argument):
    """A word by its position."""

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.human_readable_name + ("..." if self.nargs != 1 else "")
        return name if self.required else f"[{name}]"


class Whole(click.ParamType[int]):
    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not re.fullmatch(r"-?[0-9]{1,15}", str(value)):
            self.fail("must be a whole number", param, ctx)
        return int(value)


class Real(click.ParamType[float]):
    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            self.fail("must be a number", param, ctx)


class OneOf(click.Choice[Any]):
    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        *others, last = map(str, self.choices)
        return f"must be {', '.join(others)} or {last}{did_you_mean(str(value), [*others, last])}"


class Helped(click.Command):
    """A command whose `--help` is explained as its other options are."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        if found := super().get_help_option(ctx):
            found.help = "show this, and exit"
        return found


class Command(Helped):
    allow_extra_args = True  # so that they are told with all other mistakes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = spread(args)
        if ctx.resilient_parsing:
            return super().parse_args(ctx, words)
        found: list[Mistake] = []
        unknown: list[Mistake] = []
        ctx.meta[FOUND] = found
        while True:
            try:
                rest = super().parse_args(ctx, [*words])  # which empties it
                break
            except click.NoSuchOption as error:
                unknown.append(_unknown(ctx, error.option_name))
                words = [word for word in words if not _names(word, error.option_name)]
            except click.BadOptionUsage as error:
                raise refusal(ctx, [*unknown, _misused(error, words)]) from None
        if rest and not unknown:  # behind an unknown option stands perhaps its value
            found.append(_too_much(self, rest))
        if mistakes := [*unknown, *found]:
            raise refusal(ctx, mistakes)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Options; behind the first value of `--set` further ones."""
        further = [one for one in self.params if SET in one.opts and ctx.params.get(one.name)]
        return [
            *super().shell_complete(ctx, incomplete),
            *(item for one in further for item in one.shell_complete(ctx, incomplete)),
        ]


def command(name: str) -> Callable[[Callable[..., int]], Command]:
    """Make a command of a function; its docstring is its help."""
    return click.command(name, cls=Command)


class CommandGroup(Helped, click.Group):
    """Commands under one word, in their order."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])  # which empties it
        except click.NoSuchOption as error:
            raise refusal(ctx, [_unknown(ctx, error.option_name)]) from None
        except click.BadOptionUsage as error:
            raise refusal(ctx, [_misused(error, args)]) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            rule = f"a command must be one that --help lists{did_you_mean(error.command_name, self.commands)}"
            raise refusal(ctx, [Mistake("", rule, error.command_name)]) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]  # in their order


def option_names(ctx: click.Context) -> set[str]:
    """Every spelling of a command's options."""
    return {name for one in ctx.command.get_params(ctx) if isinstance(one, click.Option) for name in one.opts}


def spread(words: Sequence[str]) -> list[str]:
    """Return the words with a `--set` before each of the values that follow one: click's options take one value."""
    made: list[str] = []
    values = None  # of the last `--set`; None behind another word
    for at, word in enumerate(words):
        if word == "--":
            return [*made, *words[at:]]
        if word.partition("=")[0] == SET:
            values = int("=" in word)
        elif values and "=" in word and not word.startswith("-"):
            made.append(SET)
        elif values == 0:
            values = 1
        else:
            values = None
        made.append(word)
    return made


def _unknown(ctx: click.Context, name: str) -> Mistake:
    return Mistake("", f"an option must be one that --help lists{did_you_mean(name, option_names(ctx))}", name)


def _names(word: str, option: str) -> bool:
    """Whether a word is that option, alone, with its value, or among letters that share a dash."""
    if option.startswith("--") or word.startswith("--"):
        return word.partition("=")[0] == option
    return word.startswith("-") and option[1:] in word[1:]


def _misused(error: click.BadOptionUsage, words: Sequence[str]) -> Mistake:
    """Say that an option has a value that it does not take, or lacks the one that it takes."""
    for word in words:
        name, has_value, value = word.partition("=")
        if has_value and name == error.option_name:
            return Mistake(name, "must stand without a value", value)
    return Mistake(error.option_name, "must have a value", None)


def _too_much(command: click.Command, rest: Sequence[str]) -> Mistake:
    names = [one.human_readable_name for one in command.params if isinstance(one, click.Argument)]
    takes = f"{' and '.join(names)} and no further word" if names else "no word beside its options"
    return Mistake("", f"must have {takes}", " ".join(rest))
