"""Tables of published figures, as sweeps whose trials are planted: each row at so many times its figure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from sweeps.analysis import publication, recipe, reproduction
from sweeps.analysis.publication import PublishedTable
from sweeps.analysis.reproduction import Held
from sweeps.record import rows
from sweeps.spec import keys, plan, sweep_file
from sweeps.spec.arrangements import Node
from tests.unit.records import record
from workers.contract.messages import TrialConfig

NODES = (Node("n0", cpus=8, gpus=4), Node("n1", cpus=8, gpus=4))  # as a sweep that runs is planned for some
PUBLISHED = [one.name for one in publication.listed() if not one.why_not]
OWN = """\
system,model,device,batch_size,gpus,precision,images_per_s,images_per_s_ci,repeats
mine,tiny,cpu,8,1,fp32,1000,10,5
mine,tiny,cpu,8,2,fp32,1900,20,5
mine,tiny,cpu,16,1,fp32,1200,12,5
"""


def table(text: str = OWN) -> PublishedTable:
    return publication.parse(text, "own.csv", "own")


def sweep_of(found: PublishedTable, *overrides: str) -> keys.SweepSpec:
    return parsed(recipe.text(found, 3), overrides)


@functools.lru_cache(maxsize=1)  # a property asks for it again and again
def parsed(text: str, overrides: tuple[str, ...]) -> keys.SweepSpec:
    return sweep_file.parse(text, "recipe", overrides)


def planted(config: TrialConfig, rates: list[float], **columns: Any) -> list[dict[str, Any]]:
    made = [rows.row(record(dataclasses.replace(config, repeat=n), rate)) for n, rate in enumerate(rates)]
    return [{**row, **columns} for row in made]


def held(
    found: PublishedTable, factors: Mapping[int, float], tolerance: float = 0.05, noise: float = 0.01
) -> tuple[Held, ...]:
    """Each row of a table measured three times, at so many times its figure; those without a factor not at all."""
    asked = sweep_of(found)
    planned = {trial.cell for trial in plan.plan(asked, "own", NODES).trials}
    trials = []
    for row in found.rows:
        config = reproduction.cell_of(row.settings, asked, NODES)
        assert isinstance(config, TrialConfig)
        assert config.cell in planned
        if row.line in factors:
            rate = row.value * factors[row.line]
            trials += planted(config, [rate * (1 - noise), rate, rate * (1 + noise)])
    return reproduction.reproduce(found, asked, trials, {trial["cell"] for trial in trials}, tolerance, NODES)


def verdicts(found: tuple[Held, ...]) -> dict[int, tuple[str, str]]:
    return {
        one.row.line: (one.rate.verdict if one.rate else "", one.relative.verdict if one.relative else "")
        for one in found
    }


HEAD = "model,batch_size,gpus,images_per_s"
