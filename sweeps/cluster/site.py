"""Where trials run, as the driver sees it: the nodes of a Ray cluster, or nodes that were made up. Needs no Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from sweeps.scheduling.leases import LeaseTerms, Need
from sweeps.spec.arrangements import Node

# What other sweeps have; see lease_actor.Member.ask, but with the names of nodes.
Ask = Callable[[dict[str, float], Sequence[Need]], dict[str, float]]
Late = Callable[[], object]


class Site(Protocol):
    """Where trials run."""

    @property
    def nodes(self) -> Sequence[Node]: ...
    def look_again(self) -> None:
        """Something has happened: what was there a moment ago may have gone."""

    def id(self, name: str) -> str:
        """Ray's, of a node."""

    def name(self, node_id: str) -> str: ...
    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None: ...
    def without(self, patterns: Sequence[str], late: Late) -> dict[str, list[str]]:
        """Of these patterns of files, by node, those that nothing matches there. `late` is called where the nodes don't
        answer soon."""

    def unset(self, variables: Sequence[str], late: Late) -> dict[str, list[str]]:
        """Of these variables, by node, those that the processes of Ray don't have there; `late` likewise."""

    def versions(self, packages: Sequence[str], late: Late) -> dict[str, list[str]]:
        """Return the versions of these packages by node, "none" of one that is not there; `late` likewise."""

    def shared(self, terms: LeaseTerms) -> contextlib.AbstractContextManager[Ask | None]:
        """With other sweeps that run here; None where there can be none."""

    def guarded(self, gone: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Call `gone` in a thread of its own, with the reason, once the trials can't be reached any more."""


class Simulated:
    """Nodes that were made up: nothing has to be asked for, and nothing comes or goes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    def look_again(self) -> None: ...

    def id(self, name: str) -> str:
        return name

    def name(self, node_id: str) -> str:
        return node_id

    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None:
        """More will not come."""

    def without(self, patterns: Sequence[str], late: Late) -> dict[str, list[str]]:
        return {}

    def unset(self, variables: Sequence[str], late: Late) -> dict[str, list[str]]:
        return {}

    def versions(self, packages: Sequence[str], late: Late) -> dict[str, list[str]]:
        return {}

    def shared(self, terms: LeaseTerms) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def guarded(self, gone: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
