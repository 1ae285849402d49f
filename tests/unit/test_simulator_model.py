"""The step-time model beside every published figure that it claims to reproduce, and the shapes between them."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.simulator import learning as curves
from sweeps.simulator.model import KINDS, NETWORKS, USABLE, memory_gib, parameters_m, reduction_ms, step
from tests.unit.simulations import learning, trial
from workers.contract import imagenet
from workers.contract.messages import Model, TrialConfig

REFERENCES = Path(__file__).parents[2] / "references"
SYSTEMS = {
    "other-8x-V100-SXM2-16GB": "v100-8x",
    "C4140-K-V100-SXM2-Xeon4116": "v100-k",
    "C4140-M-V100-SXM2-Xeon6148": "v100",
    "C4130-P100-PCIe-16GB": "p100",
    "C4140-V100-PCIe": "v100-pcie",
}
HOURS = {"other-8x-V100-SXM2-16GB": "v100-8x", "C4140-K-V100-SXM2": "v100-k", "C4140-M-V100-SXM2": "v100"}
BATCHES = st.integers(1, 2048)
MODELS: st.SearchStrategy[Model] = st.sampled_from(list(NETWORKS))


def published(file: str) -> list[dict[str, str]]:
    with (REFERENCES / f"{file}.csv").open() as lines:
        return list(csv.DictReader(lines))


def images_per_s(config: TrialConfig, kind: str, ranks: list[int]) -> float:
    return 1e3 * config.global_batch / step(config, KINDS[kind], ranks).step_ms


THROUGHPUT = published("throughput")


# Twelve numbers came within 5% of the rows that they were fitted to, and up to 27% off one left out (AlexNet).
# Nine come within 6.5%, and within 9% of a row left out (test_simulator_fit.py), which is what a simulation is.
FITTED_WITHIN = 0.065


@pytest.mark.parametrize("row", THROUGHPUT, ids=lambda row: f"{row['system']}-{row['model']}-{row['gpus']}")
def test_a_published_throughput_is_reproduced(row: dict[str, str]) -> None:
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    config = trial(row["model"], int(row["batch_size"]), gpus, precision=row["precision"])  # type: ignore[arg-type]
    found = images_per_s(config, SYSTEMS[row["system"]], [gpus // nodes] * nodes)
    assert found == pytest.approx(float(row["images_per_s"]), rel=FITTED_WITHIN)


OF_HOROVOD = [row for row in published("speedups") if row["framework"] == "tensorflow-horovod"]


def test_there_is_something_to_reproduce() -> None:
    assert len(THROUGHPUT) == 26
    assert len(OF_HOROVOD) == 2


@pytest.mark.parametrize("batch", [64, 128])  # the source does not state it
@pytest.mark.parametrize("row", OF_HOROVOD, ids=lambda row: row["precision"])
def test_a_published_speedup_is_reproduced_within_five_percent(row: dict[str, str], batch: int) -> None:
    gpus, kind = int(row["n"]), SYSTEMS[row["system"]]
    one, all_of_them = (
        trial(row["model"], batch, n, precision=row["precision"])  # type: ignore[arg-type]
        for n in (1, gpus)
    )
    found = images_per_s(all_of_them, kind, [4] * 8) / images_per_s(one, kind, [1])
    assert found == pytest.approx(float(row["speedup"]), rel=0.05)


def gain(fast: tuple[str, str], slow: tuple[str, str], model: Model = "resnet50") -> float:
    """In percent, of one GPU and precision over another."""
    rates = [images_per_s(trial(model, precision=precision), kind, [1]) for kind, precision in (fast, slow)]
    return 100 * (rates[0] / rates[1] - 1)


@pytest.mark.parametrize(
    ("comparison", "fast", "slow"),
    [
        ("fp16 over fp32 throughput gain %", ("v100", "fp16"), ("v100", "fp32")),
        ("V100-SXM2 over V100-PCIe one GPU gain %", ("v100-k", "fp16"), ("v100-pcie", "fp16")),
        ("V100 over P100 fp32 gain %", ("v100-pcie", "fp32"), ("p100", "fp32")),
        ("V100 over P100 fp16 gain %", ("v100-pcie", "fp16"), ("p100", "fp16")),
    ],
)
def test_a_ratio_lies_in_its_published_range(comparison: str, fast: tuple[str, str], slow: tuple[str, str]) -> None:
    rows = [row for row in published("precision") if row["comparison"] == comparison]
    assert rows
    low, high = min(float(row["low"]) for row in rows), max(float(row["high"]) for row in rows)
    assert low - 1e-6 <= gain(fast, slow) <= high + 1e-6
    of_tensorflow = [float(row["low"]) for row in rows if row["framework"] == "tensorflow"]
    for published_gain in of_tensorflow:
        assert 100 + gain(fast, slow) == pytest.approx(100 + published_gain, rel=0.05)


TO_ACCURACY = [row for row in published("convergence") if row["source"].startswith("B")]


@pytest.mark.parametrize("row", TO_ACCURACY, ids=lambda row: row["gpus"])
def test_a_large_batch_needs_the_published_epochs(row: dict[str, str]) -> None:
    config = learning(gpus=int(row["gpus"]), target_top1=float(row["target"]))
    assert curves.epochs_needed(config) == int(row["epochs"])


# Nothing is fitted to what follows.
TO_THE_END = [row for row in published("convergence") if row["system"] in HOURS]


@pytest.mark.parametrize("row", TO_THE_END, ids=lambda row: row["system"])
def test_ninety_epochs_take_about_the_published_hours(row: dict[str, str]) -> None:
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    rate = images_per_s(trial(gpus=gpus), HOURS[row["system"]], [gpus // nodes] * nodes)
    # The hours of eight GPUs in a node are those of its images/s, which the model has 6.3% too low.
    assert int(row["epochs"]) * imagenet.TRAIN_IMAGES / rate / 3600 == pytest.approx(float(row["hours"]), rel=0.07)


@pytest.mark.parametrize(
    "row", [row for row in published("speedups") if row["unit"] == "node"], ids=lambda row: row["n"]
)
def test_more_nodes_shorten_the_way_to_an_accuracy_about_as_published(row: dict[str, str]) -> None:
    """They are published for another framework, so only about."""
    nodes = int(row["n"])
    one, all_of_them = (learning(gpus=4 * n, target_top1=0.749) for n in (1, nodes))
    hours = [
        curves.epochs_needed(config) / images_per_s(config, "v100", [4] * (config.gpus // 4))
        for config in (one, all_of_them)
    ]
    assert hours[0] / hours[1] == pytest.approx(float(row["speedup"]), rel=0.09)


@pytest.mark.parametrize("row", published("int8_accuracy"), ids=lambda row: row["model"])
def test_a_long_training_comes_to_the_published_accuracy(row: dict[str, str]) -> None:
    top1 = curves.top1(learning(model=row["model"], gpus=4), 500)
    assert top1 == pytest.approx(float(row["fp32_top1"]) / 100, abs=0.002)
    assert curves.top5(top1) == pytest.approx(float(row["fp32_top5"]) / 100, abs=0.01)


@pytest.mark.parametrize("row", THROUGHPUT, ids=lambda row: f"{row['system']}-{row['model']}-{row['gpus']}")
def test_what_was_published_fits_into_memory(row: dict[str, str]) -> None:
    config = trial(row["model"], int(row["batch_size"]), int(row["gpus"]))  # type: ignore[arg-type]
    assert memory_gib(config) <= USABLE * KINDS[SYSTEMS[row["system"]]].gpu_gib


@pytest.mark.parametrize(("precision", "largest"), [("fp32", 128), ("fp16", 256)])
def test_resnet50_runs_out_of_sixteen_gib_where_everyone_finds_it(precision: str, largest: int) -> None:
    has = USABLE * KINDS["v100"].gpu_gib
    assert memory_gib(trial(batch_size=largest, precision=precision)) <= has
    assert memory_gib(trial(batch_size=2 * largest, precision=precision)) > has


@given(MODELS, BATCHES, BATCHES, st.sampled_from(["fp32", "fp16"]), st.sampled_from(["sgd", "lars", "adamw"]))
def test_memory_grows_with_the_batch(model: Model, one: int, other: int, precision: str, optimizer: str) -> None:
    small, large = (
        memory_gib(trial(model, batch, precision=precision, optimizer=optimizer)) for batch in sorted((one, other))
    )
    assert (small < large) == (one != other)


@given(MODELS, st.integers(1, 2047), st.integers(1, 32), st.sampled_from(["v100", "p100", "v100-pcie"]))
def test_a_larger_batch_is_faster_by_the_image_and_slower_by_the_step(
    model: Model, batch: int, gpus: int, kind: str
) -> None:
    small, large = (trial(model, b, gpus) for b in (batch, batch + 1))
    assert images_per_s(small, kind, [gpus]) < images_per_s(large, kind, [gpus])
    assert step(small, KINDS[kind], [gpus]).step_ms < step(large, KINDS[kind], [gpus]).step_ms


@given(MODELS, st.integers(64, 1024), st.integers(1, 31))
def test_every_further_rank_adds_images_and_costs_efficiency(model: Model, batch: int, gpus: int) -> None:
    few, more = (images_per_s(trial(model, batch, n), "v100", [n]) for n in (gpus, gpus + 1))
    assert few < more
    assert more / (gpus + 1) < few / gpus


@given(MODELS, st.integers(1, 1024), st.sampled_from([4, 8, 16]))
def test_a_gang_over_several_nodes_is_never_faster_than_on_one(model: Model, batch: int, gpus: int) -> None:
    config = trial(model, batch, gpus)
    assert step(config, KINDS["v100"], [gpus // 2] * 2).step_ms >= step(config, KINDS["v100"], [gpus]).step_ms


def test_gradients_in_half_the_bytes_help_a_network_of_many_parameters() -> None:
    plain = trial("alexnet", 32, 8)
    half = dataclasses.replace(plain, compression="fp16")
    assert step(half, KINDS["v100"], [4, 4]).step_ms < 0.9 * step(plain, KINDS["v100"], [4, 4]).step_ms


def test_what_is_reduced_after_the_backward_pass_hides_behind_nothing() -> None:
    overlapped = trial("resnet50", 128, 8)
    grouped = dataclasses.replace(overlapped, reduction="grouped")
    whole_ms = reduction_ms(4e6 * parameters_m(grouped), grouped, KINDS["v100"], [4, 4])
    late = step(grouped, KINDS["v100"], [4, 4]).exposed_ms
    assert late == pytest.approx(whole_ms + grouped.cycle_ms / 2)
    assert late > 1.5 * step(overlapped, KINDS["v100"], [4, 4]).exposed_ms


@pytest.mark.parametrize("model", ["resnet50", "vgg16"])
def test_what_xla_compiles_hides_no_reduction_however_that_is_asked_for(model: Model) -> None:
    """Horovod's timeline of real ranks says so (test_reduction)."""
    overlapped = trial(model, 128, 8, xla=True)
    grouped = dataclasses.replace(overlapped, reduction="grouped")
    assert step(overlapped, KINDS["v100"], [4, 4]) == step(grouped, KINDS["v100"], [4, 4])
    whole_ms = reduction_ms(4e6 * parameters_m(grouped), grouped, KINDS["v100"], [4, 4])
    assert step(overlapped, KINDS["v100"], [4, 4]).exposed_ms == pytest.approx(whole_ms + grouped.cycle_ms / 2)


def test_a_large_network_whose_last_layers_hold_its_parameters_hides_their_reduction_behind_the_others() -> None:
    config = trial("vgg16", 128, 8)
    whole_ms = reduction_ms(4e6 * parameters_m(config), config, KINDS["v100"], [4, 4])
    assert whole_ms > 60
    assert step(config, KINDS["v100"], [4, 4]).exposed_ms < 0.1 * whole_ms


def test_each_rank_of_a_node_has_a_decode_thread_however_few_were_asked_for() -> None:
    asked = [trial(data="data/imagenet", gpus=4, decode_threads=n) for n in (1, 2, 4)]
    assert len({step(config, KINDS["v100"], [4]).step_ms for config in asked}) == 1


def test_too_few_decode_threads_limit_a_step_and_enough_do_not() -> None:
    few, enough = (trial(data="data/imagenet", gpus=4, decode_threads=n) for n in (4, 40))
    starved, fed = (step(config, KINDS["v100"], [4]) for config in (few, enough))
    assert starved.step_ms == pytest.approx(1e3 * 4 * 128 / (4 * 250))
    assert starved.without("input") == pytest.approx(fed.without("input"))
    assert fed.step_ms < 0.4 * starved.step_ms


@given(MODELS, st.integers(1, 512), st.integers(1, 16), st.sampled_from(["synthetic", "data/imagenet"]))
def test_a_step_without_a_part_is_never_longer(model: Model, batch: int, gpus: int, data: str) -> None:
    found = step(trial(model, batch, gpus, data=data), KINDS["v100"], [gpus])
    assert found.compute_ms == pytest.approx(found.without("both"))
    assert found.without("both") <= min(found.without("input"), found.without("comm")) <= found.step_ms


def test_a_cpu_s_rank_is_as_fast_as_its_cores() -> None:
    one, four = (dataclasses.replace(trial(), device="cpu", cores_per_worker=n) for n in (1, 4))
    assert step(one, KINDS["none"], [1]).step_ms == pytest.approx(4 * step(four, KINDS["none"], [1]).step_ms)
