"""Step times planted from known terms, fitted on few GPUs and predicted for many."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sweeps.analysis import predict
from sweeps.cli import next_cell
from sweeps.simulator.model import KINDS, step
from sweeps.spec import plan
from sweeps.spec.sweep_file import parse
from sweeps.store import query
from tests.unit.planted import frame, trial
from tests.unit.simulations import trial as simulated
from workers.contract.messages import TrialConfig

SCALING = Path(__file__).parents[2] / "search_spaces" / "scaling.yaml"


def step_ms(gpus: int, nodes: float, batch: int) -> float:
    compute = 12.0 + 1.1 * batch
    links = 0.05 * (gpus - 1) + 1.5 * (gpus - 1) / gpus if nodes == 1 else 0.2 * (gpus - 1) + 4 * (gpus - 1) / gpus
    return compute + links + 0.01 * batch * (gpus - 1)


def study(counts: list[int], noise: float = 0.0, per_node: int = 4, **columns: Any) -> pd.DataFrame:
    drawn = random.Random("noise")
    rows = []
    for gpus in counts:
        for batch in (32, 64, 128, 256):
            nodes = float(-(-gpus // per_node))
            for n in range(3):
                rate = 1e3 * gpus * batch / (step_ms(gpus, nodes, batch) * (1 + drawn.gauss(0, noise)))
                rows.append(trial(rate, repeat=n, gpus=gpus, batch_size=batch, nodes=nodes, **columns))
    return frame(rows)


def shape(gpus: int, nodes: float, batch: int = 64) -> pd.DataFrame:
    return pd.DataFrame([{"cell": f"{gpus}", "gpus": gpus, "nodes": nodes, "batch_size": batch}])


def test_terms_come_back_and_predict_exactly_where_there_is_no_noise() -> None:
    (model,) = predict.fit(study([1, 2, 3, 4, 8, 16]))
    assert model.terms["image_ms"] == pytest.approx(1.1, rel=0.01)
    assert model.terms["fixed_ms"] == pytest.approx(12, rel=0.05)
    assert model.terms["wait_ms"] == pytest.approx(0.01, rel=0.05)
    found = predict.predictions([model], shape(32, 8.0)).iloc[0]
    assert found["predicted"] == pytest.approx(1e3 * 32 * 64 / step_ms(32, 8, 64), rel=0.005)


def test_intervals_hold_what_is_measured_later() -> None:
    both = study([1, 2, 4, 8, 16, 32], noise=0.01)
    found = predict.held_out(both, known=8)
    assert set(found["gpus"]) == {16, 32}
    assert found["error"].abs().max() < 0.05
    assert found["is_within"].mean() >= 0.9
    assert (found["predicted_ci"] / found["predicted"]).max() < 0.25, "an interval that says something"


def test_of_links_that_no_trial_used_nothing_is_predicted() -> None:
    inside = predict.fit(study([1, 2, 4], noise=0.003))
    both = predict.fit(study([1, 2, 4, 8], noise=0.003))
    asked = pd.concat([shape(8, 1.0), shape(8, 2.0), shape(32, 8.0)], ignore_index=True)
    found = predict.predictions(inside, asked)
    assert found["lacks"].tolist() == ["", "links between nodes", "links between nodes"]
    assert found["predicted"].isna().tolist() == [False, True, True]
    assert found["predicted_ci"].isna().tolist() == [False, True, True]
    assert not any("between" in term for term in inside[0].terms), "a guess is no term"
    told = predict.predictions(both, asked).iloc[1]
    assert told["predicted"] == pytest.approx(1e3 * 8 * 64 / step_ms(8, 2, 64), rel=0.01)
    assert told["predicted_ci"] < 0.05 * told["predicted"]


def test_one_gpu_tells_of_no_links_and_one_batch_of_no_other() -> None:
    (alone,) = predict.fit(study([1]))
    assert alone.lacks(1, 1, 64) == ()
    assert alone.lacks(4, 1, 64) == ("links inside a node",)
    (one_batch,) = predict.fit(study([1, 2, 4, 8]).query("batch_size == 64"))
    assert one_batch.lacks(16, 4, 64) == ()
    assert one_batch.lacks(16, 4, 128) == ("a second batch size",)


def test_two_nodes_measured_at_one_batch_hold_what_four_and_eight_do() -> None:
    both = study([1, 2, 4, 8, 16, 32], noise=0.003)
    known = both[(both["gpus"] < 8) | (both["batch_size"] == 64) & (both["gpus"] == 8)]
    beyond = both[both["gpus"] > 8].drop_duplicates("cell")
    found = predict.predictions(predict.fit(known), beyond)
    assert ((found["predicted"] - found["images_per_s"]).abs() <= found["predicted_ci"]).all()
    assert found["lacks"].eq("").all()


def test_cells_held_out_that_nothing_foretells_have_no_error() -> None:
    found = predict.held_out(study([1, 2, 4, 8, 16], noise=0.003), known=4)
    assert found["lacks"].eq("links between nodes").all()
    assert found[["predicted", "error", "is_within"]].isna().all(axis=None)


def test_input_that_is_waited_for_bounds_a_node() -> None:
    def rate(gpus: int, nodes: int, batch: int) -> tuple[float, float]:
        rest, decode = step_ms(gpus, nodes, batch), 0.8 * batch * gpus / nodes
        return max(rest, decode), max(decode - rest, 0) / max(rest, decode)

    rows = []
    for gpus, nodes in ((1, 1), (2, 1), (4, 1), (8, 2)):
        for batch in (32, 64, 128):
            ms, share = rate(gpus, nodes, batch)
            rows.append(
                trial(1e3 * gpus * batch / ms, gpus=gpus, batch_size=batch, nodes=float(nodes), input_share=share)
            )
    (model,) = predict.fit(frame(rows))
    assert model.decode_ms == pytest.approx(0.8)
    assert model.step_ms(16, 4, 64) == pytest.approx(0.8 * 64 * 4)
    assert model.step_ms(1, 1, 64) == pytest.approx(step_ms(1, 1, 64), rel=0.01)


def test_unlike_settings_have_models_of_their_own() -> None:
    both = pd.concat([study([1, 2, 4], precision="fp32"), study([1, 2], precision="fp16")])
    models = predict.fit(both)
    assert [model.at for model in models] == [{"precision": "fp32"}, {"precision": "fp16"}]
    unknown = predict.predictions(models, shape(4, 1.0).assign(precision="bf16"))
    assert unknown["predicted"].isna().all()


def test_few_cells_or_unknown_nodes_give_no_model() -> None:
    assert predict.fit(frame(trial(100.0), trial(180.0, gpus=2))) == []
    assert predict.fit(study([2, 4]).assign(nodes=float("nan"))) == []
    assert predict.fit(frame(trial(outcome="failed"))) == []
    assert predict.held_out(frame(trial(outcome="failed"))).empty
    assert predict.held_out(frame(trial(100.0))).empty


def test_the_next_trial_is_the_one_over_links_that_nobody_has_seen() -> None:
    planned = pd.concat([shape(g, n, b) for g, n in ((1, 1.0), (4, 1.0), (8, 2.0), (16, 4.0)) for b in (64, 128)])
    planned["cell"] = [f"{row.gpus}-{row.batch_size}" for row in planned.itertuples()]
    known = study([1, 2, 4], noise=0.003)
    found = predict.next_trials(known, planned[::-1].reset_index(drop=True))
    first = found.iloc[0]
    assert (first["gpus"], first["nodes"], first["batch_size"]) == (8, 2, 64), "the smallest of those"
    assert (first["tells"], first["opens"]) == ("links between nodes", 4)
    assert first["within"] < 0.05, "of the cells in one node; of the others there is no width to speak of"
    assert first["then"] != first["then"]
    told = found[found["gpus"] < 8]
    assert told["opens"].eq(0).all()
    assert (told["then"] > 0.9 * told["within"]).all(), "one GPU once more tells nothing"
    assert found["gpus"].tolist()[:4] == [8, 8, 16, 16]


def test_once_links_are_known_the_next_trial_is_the_one_that_narrows_most() -> None:
    planned = pd.concat([shape(g, n) for g, n in ((1, 1.0), (8, 2.0), (16, 4.0), (32, 8.0))], ignore_index=True)
    found = predict.next_trials(study([1, 2, 4, 8], noise=0.003), planned)
    assert found["opens"].eq(0).all()
    assert found["gpus"][0] in (16, 32)
    assert found["then"][0] < 0.7 * found["within"][0]


def test_the_smallest_trial_on_two_nodes_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("{name: x, model: tiny, device: cpu, space: {batch_size: [32, 64], gpus: [1, 2, 4, 8, 16]}}")
    monkeypatch.setattr(query, "trials", lambda name: study([1, 2, 4], noise=0.003))
    monkeypatch.setattr(query, "sweep", lambda name: {"nodes": ()})
    assert next_cell.show(file, (), "x", "table") == 0
    said = capsys.readouterr().out
    assert "Next: batch_size 32, gpus 8: 4 of the cells not measured depend on links between nodes" in said
    assert "between" not in said.split("in ms:")[1], "no term of a guess"


def test_what_does_not_fit_is_not_next() -> None:
    short = trial(gpus=8, batch_size=512, outcome="infeasible", kind="device memory")
    known = pd.concat([study([1, 2, 4]), frame(short)])
    planned = pd.concat([shape(8, 2.0, 512).assign(cell=short["cell"]), shape(8, 2.0, 128)], ignore_index=True)
    assert predict.next_trials(known, planned)["batch_size"].tolist() == [128]


def test_nothing_is_next_where_all_is_measured() -> None:
    known = study([1, 2, 4])
    cells = known.drop_duplicates("cell")[["cell", "gpus", "batch_size", "nodes"]]
    assert predict.next_trials(known, cells).empty


def test_a_plan_s_cells_run_on_as_many_nodes_as_the_trials_show() -> None:
    planned = plan.plan(parse(SCALING.read_text(), "x")).trials
    known = frame(trial(100.0, gpus=4, nodes=1.0), trial(90.0, gpus=8, placement="spread", nodes=8.0))
    table = predict.shapes(planned, known).drop_duplicates(["gpus", "placement"]).set_index(["gpus", "placement"])
    assert table["nodes"].to_dict() == {
        (1, "pack"): 1, (2, "pack"): 1, (2, "spread"): 2, (4, "pack"): 1, (4, "spread"): 4, (8, "pack"): 2,
        (8, "spread"): 8, (8, "4x2"): 4, (16, "pack"): 4, (16, "spread"): 8, (32, "pack"): 8,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["v100", "p100"])
def test_what_eight_gpus_show_predicts_thirty_two_of_another_model_within_a_tenth(kind: str) -> None:
    """The simulator's step has terms that this model has not: overlap with the backward pass, half a cycle."""

    def rate(config: TrialConfig) -> float:
        ranks = [min(config.gpus, 4)] * max(config.gpus // 4, 1)
        return 1e3 * config.global_batch / step(config, KINDS[kind], ranks).step_ms

    rows = []
    for gpus in (1, 2, 4, 8, 16, 32):
        for batch in (32, 64, 128):
            made = rate(simulated("resnet50", batch, gpus, precision="fp16"))
            rows.append(trial(made, gpus=gpus, batch_size=batch))
    found = predict.held_out(frame(rows), known=8)
    assert found["error"].abs().max() < 0.1
    assert found["is_within"].all()
