"""`sweep plan`: what a sweep would run, and what it would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps import errors
from sweeps.errors import InputError
from sweeps.run import forecast, preflight
from sweeps.run import terms as where
from sweeps.run.terms import Terms
from sweeps.simulator import cluster as simulated
from sweeps.simulator import evidence
from sweeps.spec import arrangements, own_code, plan, space
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec, as_written
from sweeps.spec.plan import Plan
from sweeps.spec.reading import read
from sweeps.spec.sweep_file import parse
from sweeps.text import caller, screen, tables
from workers.contract import messages, quota
from workers.contract.messages import TrialConfig


def preview(file: Path, overrides: tuple[str, ...], terms: Terms, form: tables.Format) -> int:
    """Show what a sweep would run, and what it would cost on the cluster named; the exit code."""
    named = caller.named(file)
    spec = parse(read(file), named, overrides)
    preflight.check_simulated(spec, named, terms)
    is_named = bool(terms.machine or terms.address)
    nodes = _nodes(spec, terms)
    planned = plan.plan(spec, named, nodes if is_named else ())  # of no cluster, a placement is a word
    own_code.check(planned, named, is_whole=not is_named)
    varied = [*planned.axes] or ["batch_size", "gpus"]
    written = space.shown if form == "table" else lambda point: point
    rows = [
        {
            "cell": cell,
            **{as_written(axis): written(plan.value(trial, axis)) for axis in varied},
            **({"nodes x ranks": messages.arranged(trial.arrangement) or "–"} if is_named else {}),
            "repeats": spec.repeats,
            **({"unjudged": _unjudged(trial, terms)} if terms.machine and form != "table" else {}),
        }
        for cell, trial in planned.cells.items()
    ]
    if terms.address and not spec.wait_for_nodes_min:
        preflight.check_nodes(spec, nodes, named)
    trials = planned.trials or preflight.some(planned)
    refused = arrangements.check_capacity(trials, nodes, spec.max_nodes) if nodes else {}
    if is_named and refused and not terms.skips_impossible:
        raise InputError(named, preflight.impossible(refused))
    tables.show_rows(rows, form)
    if form != "table":
        return errors.DONE
    print(f"\n{spec.name}: {plan.summary(planned)}")
    for line in [*plan.schedules_drawn(planned), *_cost(planned, nodes, refused, terms)]:
        print(line)
    for line in _sent(spec):
        print(f"for sweep submit: {line}")
    return errors.DONE


def _sent(spec: SweepSpec) -> list[str]:
    """Say which files of the user's own code would go to a cluster, or why they can't: a sweep here sends none."""
    try:
        return own_code.files(spec, Path.cwd()).words()
    except InputError as error:
        return [str(error)]


def _nodes(spec: SweepSpec, terms: Terms) -> Sequence[Node]:
    """Return the nodes of the cluster named, else of this machine; none where that is surely not meant."""
    if terms.machine:
        return terms.machine.nodes
    if terms.address:
        with where.open_site(terms, screen.beside()) as site:
            return site.nodes
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return [Node("here", quota.cores(), gpus)] if gpus or spec.device == "cpu" else []


def _cost(planned: Plan, nodes: Sequence[Node], refused: dict[str, list[TrialConfig]], terms: Terms) -> Iterator[str]:
    if not nodes and terms.address:
        waits = f"the sweep waits {planned.spec.wait_for_nodes_min:g} min for what it needs"
        yield f"no node has joined this cluster yet: {waits}, and what it costs is told once they are there"
        return
    if not nodes:
        yield "to see what it would cost, and how it fits: --simulate nodes=8,gpus=4,gpu=v100, or --address"
        return
    for why, those in refused.items():
        yield f"! {len(those)} trials can't run here: {why}"
    if not planned.trials:
        yield f"a search chooses its trials as it goes: at most {planned.most}"
        yield from borne_out(preflight.some(planned), terms)
        return
    machine = terms.machine or simulated.like(nodes)
    yield from forecast.summary_lines(
        planned.spec, planned.trials, nodes, forecast.learned(machine, is_real=not terms.machine)
    )
    yield from borne_out(planned.trials, terms)


def _unjudged(trial: TrialConfig, terms: Terms) -> str:
    """Return what of a cell's simulated figures no published one judges, for a program."""
    assert terms.machine
    return "; ".join(evidence.unjudged([trial], terms.machine.gpu, evidence.rows()))


def borne_out(trials: Sequence[TrialConfig], terms: Terms) -> Iterator[str]:
    """Say where published figures bear out what is simulated."""
    if terms.machine:
        yield from evidence.summary_lines(trials, terms.machine.gpu, evidence.rows())
