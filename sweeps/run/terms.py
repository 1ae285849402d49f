"""Where a sweep runs and on whose terms: what the command line says beside the sweep's file, read once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator

from rich.console import Console

from sweeps.cluster import interrupt, site
from sweeps.cluster.site import Site
from sweeps.errors import InputError, Mistake
from sweeps.record.ledger import Ledger
from sweeps.run import executor
from sweeps.run.executor import Executor
from sweeps.run.in_process import InProcess
from sweeps.simulator import cluster as simulated
from sweeps.simulator.cluster import SimulatedCluster
from sweeps.spec.keys import RANK, SweepSpec


@dataclasses.dataclass(frozen=True)
class Terms:
    """How a sweep is run, beside what its file says."""

    address: str | None = None  # of a Ray cluster; else this machine
    simulate: str = ""  # the shape of a cluster that is made up
    is_fresh: bool = False  # measure again what earlier sweeps have measured
    skips_impossible: bool = False
    budget: float | None = None  # GPU-hours of the whole sweep; else the file's
    rank: str = ""  # what a rank runs, as MODULE:FUNCTION; else the training of the sweep

    @functools.cached_property
    def machine(self) -> SimulatedCluster | None:
        """The cluster that is made up; raises `InputError` with every mistake in its shape."""
        return simulated.parse(self.simulate) if self.simulate else None

    def gpu_hours(self, spec: SweepSpec) -> float:
        """Return the GPU-hours that all drivers of a sweep may spend together."""
        if self.budget is None:
            return (spec.budget and spec.budget.gpu_hours) or math.inf
        if not self.budget > 0:
            raise InputError("--budget", [Mistake("", f"must be {RANK[spec.device]}-hours, more than 0", self.budget)])
        return self.budget


@dataclasses.dataclass(frozen=True)
class Setting:
    """The terms of a run: where it runs, what was asked for, and who is told."""

    terms: Terms
    site: Site
    console: Console
    place: str  # what a mistake is said to be in
    file: str = ""  # the user's, where the sweep was not named by its name

    @property
    def machine(self) -> SimulatedCluster:
        """What predicts how long trials take."""
        return self.terms.machine or simulated.like(self.site.nodes)

    def executor(self, book: Ledger) -> Executor:
        """Return what carries its trials out."""
        if self.terms.machine:
            return InProcess(self.terms.machine, executor.folders(book.facts.spec))
        from sweeps.run.ray_tune import RayTune

        return RayTune(book.facts, book.paths, self.site, self.terms.rank)


@contextlib.contextmanager
def open_site(terms: Terms, console: Console) -> Iterator[Site]:
    """Yield where the trials run. What is simulated needs no Ray. As long as the block lasts SIGTERM is Ctrl-C: all
    that is begun comes to an end in order."""
    if terms.machine:
        with interrupt.terminate_as_interrupt():
            yield site.Simulated(terms.machine.nodes)
        return
    if terms.address:
        console.print(f"connecting to Ray at {terms.address} …", style="dim")
        # A cluster asks for its token since Ray 2.60; a client sends it if told so before it imports Ray.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    else:
        console.print("starting Ray on this machine …", style="dim")
    from sweeps.cluster import ray_cluster

    with interrupt.terminate_as_interrupt() as listen, ray_cluster.connected(terms.address) as cluster:
        listen()  # Ray has put its own there
        yield cluster
