"""Where a command happens: here, with the Ray cluster that this machine is in, or by the head of one elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sweeps.text import addresses, caller


@dataclasses.dataclass(frozen=True)
class At:
    """Where a command happens, and its words, as a head elsewhere is to have them."""

    place: addresses.Place
    words: tuple[str, ...]

    @property
    def is_afar(self) -> bool:
        return self.place.kind in addresses.AFAR

    @property
    def url(self) -> str:
        """The cluster elsewhere: its job server or its launcher file."""
        return self.place.address

    @property
    def ray(self) -> str | None:
        """The Ray cluster that this machine is in, if the command is to use it."""
        return None if self.is_afar else self.place.address or None

    def relay(self, *further: str, sends: Path | None = None) -> int:
        """Have the head do it, with further words and perhaps a file; the exit code."""
        from sweeps.cluster import ray_jobs

        return ray_jobs.relay([*self.words, *further], self.url, sends)


@dataclasses.dataclass(frozen=True)
class May:
    """Where a command may happen, with what it was given."""

    kinds: Sequence[addresses.Kind]
    heeds_environment: bool = True
    default: str = ""  # where it happens if nobody says
    elsewhere: str = ""  # what to call instead, for a cluster that this machine is no part of


MayBy = Callable[[Mapping[str, Any]], May]  # by the values that the command was given


def at_its_place(call: Callable[..., int], may_by: MayBy) -> Callable[..., int]:
    """Return the command that finds out where it happens and tells it to `call`, in place of the address."""

    @functools.wraps(call)
    def placed(address: str | None, **given: Any) -> int:
        may = may_by(given | {"address": address})
        simulates = bool(given.get("simulate"))  # which needs no cluster
        heeded: Mapping[str, str] = os.environ if may.heeds_environment and not simulates else {}
        there = addresses.choose(
            address, heeded, may.kinds, caller.program(), elsewhere=may.elsewhere, default=may.default
        )
        said, kind = address or "", there.kind
        if simulates and kind not in addresses.AFAR and addresses.leads(os.environ):
            said, kind = addresses.LOCAL, "here"  # it lies on this machine, wherever the environment leads others
        with caller.introduce(said, kind, there.address, str(given.get("file", ""))):
            return call(At(there, without_address(click.get_current_context().obj)), **given)

    return placed


def without_address(words: Sequence[str]) -> tuple[str, ...]:
    made: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--address":
            next(rest, None)
        elif not word.startswith("--address="):
            made.append(word)
    return tuple(made)
