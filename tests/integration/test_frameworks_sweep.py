"""One sweep of both frameworks by the real command: ranks of each, and nothing that is averaged over the two."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import sweeps
from sweeps.record import ledger
from sweeps.store import query
from tests.integration.test_sweep import ROOT, sweep, told

if not importlib.util.find_spec("torch"):
    pytest.skip("torch is not installed: make setup TORCH=1", allow_module_level=True)

pytestmark = pytest.mark.alone

SMALL = ["data=synthetic", "image_size=32", "batch_size=8", "repeats=2", "steps={warmup: 2, measured: 12}"]
MORE = ["compile=[off,on]", "gpus=1", "probe_every_min=0", "explain=false"]
OWN = """
def net(framework, image_size, classes):
    if framework == "torch":
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, classes))
    import keras

    shape = keras.Input((image_size, image_size, 3))
    return keras.Model(shape, keras.layers.Dense(classes)(keras.layers.Flatten()(shape)))
"""


def test_one_sweep_measures_both_frameworks_and_pools_none_of_their_trials(
    workplace: Path, left_behind: Callable[[], list[str]]
) -> None:
    ran = sweep("run", str(ROOT / "search_spaces/frameworks.yaml"), "--set", *SMALL)
    assert ran.returncode == 0, ran.stderr
    assert not left_behind()
    assert "All else equal, torch trains" in " ".join(ran.stdout.split())

    trials = ledger.read("frameworks").trials
    assert Counter((one.config.framework, one.config.gpus) for one in trials) == {
        (framework, gpus): 2 for framework in ("tensorflow", "torch") for gpus in (1, 2)
    }
    softwares: dict[str, set[str]] = {}
    for one in trials:
        assert one.outcome.measurement, one.outcome
        for rank in one.outcome.measurement.ranks:
            softwares.setdefault(one.config.framework, set()).add(rank.software)
            assert rank.launch_s
            assert 0 < rank.launch_s < one.ended_at - one.started_at
            assert ("torch" in rank.runs) is (one.config.framework == "torch")
            assert ("strategy" in rank.runs) is (one.config.framework == "torch" and one.config.gpus > 1)
    assert [len(found) for found in softwares.values()] == [1, 1]
    assert softwares["tensorflow"] != softwares["torch"]

    # Ledger and MLflow alike: four cells, each of one framework, and the ratio of each pair.
    table = query.trials("frameworks")
    assert Counter(table["framework"]) == {"tensorflow": 4, "torch": 4}
    cells = sweeps.cells(table)
    assert len(cells) == 4
    assert set(cells["n"]) == {2}
    ratios = sweeps.ratios(table, "framework", "tensorflow")
    assert len(ratios[ratios["ratio"].notna()]) == 2
    printed = told("trials", "frameworks", "--where", "framework == 'torch' and gpus == 2", "--format", "json")
    assert [one["framework"] for one in json.loads(printed.stdout)] == ["torch", "torch"]


def test_a_network_of_ones_own_is_swept_in_both_frameworks_and_what_one_alone_has_makes_no_cell_of_the_other(
    workplace: Path,
) -> None:
    (workplace / "nets.py").write_text(OWN)
    ran = sweep("run", str(ROOT / "search_spaces/frameworks.yaml"), "--set", "model=nets:net", *SMALL, *MORE)
    assert ran.returncode == 0, ran.stderr
    trials = ledger.read("frameworks").trials
    assert {one.outcome.status for one in trials} == {"completed"}
    assert Counter((one.config.framework, one.config.compile) for one in trials) == {
        ("tensorflow", False): 2,
        ("torch", False): 2,
        ("torch", True): 2,
    }
