"""Ranks of torch: they train as TensorFlow's do, come to the same as one rank, and end in the same words."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.cluster import strangers
from tests.integration.clusters import eventually
from tests.integration.gangs import KEY, gang
from tests.integration.joining_ranks import listening
from workers.contract.messages import Measurement
from workers.contract.paths import fork_server_address
from workers.launch import verdict
from workers.launch.supervisor import RankEnd

if not importlib.util.find_spec("torch"):
    pytest.skip("torch is not installed: make setup TORCH=1", allow_module_level=True)

ROOT = Path(__file__).parents[2]
ENTRIES = "tests.integration.torch_ranks"
RATES = (0.1, 0.1, 0.02, 0.3)  # as `torch_ranks` has them, which imports torch
SYNTHETIC: dict[str, object] = {"batch_size": 8, "warmup_steps": 2, "measured_steps": 12, "explain": False}
DIGITS: dict[str, object] = {
    "protocol": "convergence",
    "data": "digits",
    "batch_size": 32,
    "epochs": 2,
    "evaluate_every": 1,
    "warmup_steps": 0,
    "measured_steps": 0,
    "lr_schedule": "0.1",
}


@pytest.fixture(scope="module", autouse=True)
def fork_server(left_behind: Callable[[], list[str]]) -> Iterator[subprocess.Popen[bytes]]:
    address = fork_server_address(KEY, "torch")[1:]
    command = [sys.executable, "-m", "workers.launch.fork_server", address, "torch"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    yield process
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0
    assert not left_behind()


def of_torch(size: int, log: Path, entry: str, folder: str = "", **fields: object) -> list[RankEnd]:
    return gang(size, log, f"{ENTRIES}:{entry}", folder=folder, framework="torch", **fields)


def measured(size: int, log: Path, entry: str = "trains_clean", **fields: object) -> Measurement:
    outcome = verdict.outcome(of_torch(size, log, entry, **fields), ())
    assert outcome.measurement, outcome
    return outcome.measurement


def told(ends: list[RankEnd]) -> Any:
    assert [end.kind for end in ends] == ["told"] * len(ends), ends
    return json.loads(ends[0].message)


def test_strangers_at_the_ports_of_ranks_that_learn_hear_nothing_and_change_nothing(
    fork_server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Gloo's of each, which listens as long as its rank runs, and asks for nothing."""
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as there:
        running = pool.submit(of_torch, 2, tmp_path, "learns_until_told", **SYNTHETIC)
        try:
            assert eventually((tmp_path / "stepping").exists, patience_s=60), running
            doors = listening(psutil.Process(fork_server.pid).children())
            said = [one for door in doors for one in strangers.answers(*door)]
            heard = [there.enter_context(strangers.in_the_way(*door)) for door in doors]
            time.sleep(1.0)  # ranks take their steps beside strangers who stay
            assert not running.done()
        finally:
            (tmp_path / "over").touch()
        total = told(running.result())
    assert [address for address, _ in doors] == ["127.0.0.1"] * 2
    assert not said
    assert heard == [[], []]
    assert total == 2.0


@pytest.mark.parametrize("size", [1, 2])
def test_the_ring_contract_holds(size: int, tmp_path: Path) -> None:
    ends = of_torch(size, tmp_path, "ring_contract")
    assert [(end.kind, end.message) for end in ends] == [("checked", "all holds")] * size


def test_the_rendezvous_closes_once_all_have_joined_and_who_speaks_to_gloo_hears_nothing(tmp_path: Path) -> None:
    """torch's Gloo keeps one port open for as long as its rank lives: docs/cluster.md says so."""
    found = told(of_torch(3, tmp_path, "has_strangers"))
    assert found == {"listens": ["127.0.0.1"], "rendezvous": False, "heard": [0] * 6, "total": 6.0}


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_trains_and_imports_no_other_framework_nor_the_control_planes_libraries(
    size: int, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-c",
        "from workers.node import fingerprint as f; print(f.digest(f.software(framework='torch')))",
    ]
    of_node = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    found = measured(size, tmp_path, **SYNTHETIC)
    assert found.images == size * 12 * 8
    assert found.images_per_s > 0
    for report in found.ranks:
        assert [step.step for step in report.steps] == list(range(12))
        assert (report.parameters, report.flops) == (98_602, 5_171_200)  # as in TensorFlow
        assert report.runs["precision"] == "float32"
        assert report.runs["compile"] == "off"
        assert report.runs["intra_op_threads"] == "1"
        assert (report.allreduce_mib_per_s > 0) is (size > 1)
        assert report.software == of_node


def test_two_ranks_say_how_they_reduce_and_over_which_interface(tmp_path: Path) -> None:
    (one, other) = measured(2, tmp_path, "of_another_network", **SYNTHETIC, **planted("large")).ranks
    assert one.runs == other.runs
    assert one.runs["strategy"] == "ddp over gloo"
    assert one.runs["interface"] == "lo"
    assert one.runs["compression"] == "float32"
    assert one.runs["reduction"] == "3 buckets"
    assert sum(map(float, one.runs["bucket_mib"].split(", "))) == pytest.approx(48.1, abs=0.1)


def test_a_variable_that_is_read_early_has_ranks_that_start_from_nothing_with_the_same_software(tmp_path: Path) -> None:
    early = measured(1, tmp_path / "early", **SYNTHETIC, env={"KMP_PLANTED": "1"}).ranks[0]
    late = measured(1, tmp_path / "late", **SYNTHETIC, env={"NCCL_PLANTED": "1"}).ranks[0]
    assert early.software == late.software
    assert early.in_force["KMP_PLANTED"] == "1"
    assert late.in_force["NCCL_PLANTED"] == "1"


def planted(network: str) -> dict[str, object]:
    return {"env": {"NCCL_PLANTED_NETWORK": network}}


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_grouped_gradients_are_reduced_in_one_bucket(tmp_path: Path, compression: str) -> None:
    fields = {"reduction": "grouped", "compression": compression, "measured_steps": 4}
    (one, _) = measured(2, tmp_path, "of_another_network", **SYNTHETIC | fields | planted("large")).ranks
    assert one.runs["reduction"] == "1 bucket"
    assert float(one.runs["bucket_mib"]) == pytest.approx(48.1, abs=0.1)
    assert one.runs["compression"] == {"none": "float32", "fp16": "float16"}[compression]


@pytest.mark.alone
def test_reductions_begin_before_the_last_gradient_is_there_unless_they_are_grouped(tmp_path: Path) -> None:
    """By what DistributedDataParallel notes of its own steps."""
    overlapped, grouped = (
        told(of_torch(2, tmp_path / reduction, "record_of_ddp", **SYNTHETIC, reduction=reduction))
        for reduction in ("overlapped", "grouped")
    )
    assert overlapped["num_buckets_reduced"] > 1 == grouped["num_buckets_reduced"]
    beside, behind = (one["avg_backward_compute_comm_overlap_time"] for one in (overlapped, grouped))
    assert beside > 0
    assert behind < 0.5 * beside


@pytest.mark.parametrize(("precision", "multiplied"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_a_precision_is_what_the_network_multiplies_in(tmp_path: Path, precision: str, multiplied: str) -> None:
    (report,) = measured(1, tmp_path, **SYNTHETIC | {"precision": precision, "emulate": True}).ranks
    assert report.runs["precision"] == f"{multiplied}, float32"  # its logits, as in TensorFlow
    assert report.steps[-1].loss < 10


def test_channels_last_is_how_the_kernels_lie_in_memory(tmp_path: Path) -> None:
    on, off = (measured(1, tmp_path / str(is_on), **SYNTHETIC, channels_last=is_on).ranks[0] for is_on in (True, False))
    assert (on.runs["channels_last"], off.runs["channels_last"]) == ("on", "off")
    assert [step.loss for step in on.steps] == pytest.approx([step.loss for step in off.steps], abs=1e-3)


def test_a_compiled_network_learns_as_one_that_is_not(tmp_path: Path) -> None:
    fields = SYNTHETIC | {"data": "digits", "measured_steps": 20}
    on, off = (measured(2, tmp_path / str(is_on), **fields, compile=is_on).ranks[0] for is_on in (True, False))
    assert (on.runs["compile"], off.runs["compile"]) == ("on", "off")
    assert [step.loss for step in on.steps] == pytest.approx([step.loss for step in off.steps], abs=1e-3)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", "0.002"), ("lars", "0.05"), ("adamw", "0.0003")])
def test_two_ranks_follow_the_loss_curve_of_one_with_twice_the_batch(tmp_path: Path, optimizer: str, rate: str) -> None:
    fields = DIGITS | {"optimizer": optimizer, "lr_schedule": rate}
    one = told(of_torch(1, tmp_path, "loss_curve", **fields | {"batch_size": 64}))
    two = told(of_torch(2, tmp_path, "loss_curve", **fields | {"batch_size": 32}))
    assert len(one) == len(two) == 2 * -(-1437 // 64)  # the last batch of an epoch holds 29
    assert two == pytest.approx(one, abs=1e-4)
    assert one[-2] < 0.85 * one[0]  # it is a curve


def test_every_image_counts_once_in_training_and_in_validation(tmp_path: Path) -> None:
    fields = DIGITS | {"lr_schedule": "0.002"}  # rounding, which differs with the batch, does not grow by it
    one = measured(1, tmp_path / "1", **fields | {"batch_size": 50})
    two = measured(2, tmp_path / "2", **fields | {"batch_size": 25})
    for each in (one, two):
        assert [epoch.images for epoch in each.epochs] == [1437] * 2
        hits = np.array([[epoch.top1, epoch.top5] for epoch in each.epochs], float) * 360
        assert hits == pytest.approx(hits.round(), abs=1e-6)
    for a, b in zip(one.epochs, two.epochs, strict=True):
        assert (a.top1, a.top5) == (b.top1, b.top5)
        assert a.loss == pytest.approx(b.loss, abs=1e-4)


def test_all_ranks_stop_at_the_step_that_the_first_asks_for(tmp_path: Path) -> None:
    fields = SYNTHETIC | {"measured_steps": 0, "max_steps": 400, "min_window": 10}
    found = measured(2, tmp_path, "stops_when_told", **fields)
    one, other = (len(report.steps) for report in found.ranks)
    assert one == other
    assert found.ranks[0].window
    assert found.ranks[0].window.stopped_by == "interval"
    assert one + found.ranks[0].window.warmup_steps < 400


def test_parts_of_a_step_are_taken_away_from_ranks_of_torch_too(tmp_path: Path) -> None:
    fields = {"data": "digits", "measured_steps": 96, "explain": True}
    found = measured(2, tmp_path, **SYNTHETIC | fields)
    for report in found.ranks:
        assert {*report.without_ms} == {"nothing", "comm", "input", "both", "compute"}
        assert all(ms > 0 for part in report.without_ms.values() for one in part for ms in one)


@pytest.mark.parametrize("network", ["tiny", "normed"])
def test_a_trial_interrupted_and_resumed_ends_as_one_that_was_not(tmp_path: Path, network: str) -> None:
    """Also with batch norm and dropout: what a step changes and no gradient does."""
    fields = DIGITS | {"epochs": 3, "checkpoint_every": 1, "lr_schedule": "cosine: 0.05"} | planted(network)
    whole = measured(2, tmp_path / "whole", "of_another_network", **fields)
    broken = verdict.outcome(of_torch(2, tmp_path / "broken", "dies_in_the_second_epoch", **fields), ())
    assert (broken.status, broken.kind, broken.rank) == ("failed", "killed", 0)
    resumed = measured(2, tmp_path / "broken", "of_another_network", **fields)
    assert [rank.gone_on_from for rank in resumed.ranks] == [1, 1]
    assert [epoch.loss for epoch in resumed.epochs] == pytest.approx([epoch.loss for epoch in whole.epochs], abs=1e-6)
    assert resumed.epochs[-1].top1 == whole.epochs[-1].top1


def test_a_host_without_memory_is_a_finding_with_the_bytes(tmp_path: Path) -> None:
    outcome = verdict.outcome(of_torch(1, tmp_path, "asks_for_too_much", **SYNTHETIC), ())
    assert (outcome.status, outcome.kind) == ("infeasible", "host memory")
    assert "DefaultCPUAllocator: can't allocate memory" in outcome.message
    assert f"{1 << 50} bytes" in outcome.message
    assert "this rank holds" in outcome.message


def test_a_rank_that_raises_is_the_cause_and_the_others_are_echoes(tmp_path: Path) -> None:
    ends = of_torch(2, tmp_path, "raises_beside_others", **SYNTHETIC)
    assert [(end.what, end.kind) for end in ends] == [("echo", "ring broken"), ("failed", "raised")]
    outcome = verdict.outcome(ends, ())
    assert (outcome.rank, outcome.message) == (1, "ValueError: planted")


def test_a_loss_that_is_no_number_ends_the_trial_in_words(tmp_path: Path) -> None:
    ends = of_torch(1, tmp_path, "trains_clean", **SYNTHETIC | {"lr_schedule": "1e30"})
    assert ends[0].kind == "diverged"
    assert "its learning rate was 1e+30" in ends[0].message


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adamw"])
def test_optimizers_step_by_the_formulas_that_tensorflow_s_have(tmp_path: Path, optimizer: str) -> None:
    """Also where the rate changes between two steps, as every schedule has it."""
    fields = {"optimizer": optimizer, "momentum": 0.9, "beta2": 0.99, "weight_decay": 0.01, "trust": 0.02}
    found = told(of_torch(1, tmp_path, "steps_of_optimizers", **fields))
    expected = FORMULAS[optimizer](fields)
    for n, (weight, bias) in enumerate(found):
        assert weight == pytest.approx(expected[n][0].tolist(), rel=1e-5, abs=1e-6)
        assert bias == pytest.approx(expected[n][1].tolist(), rel=1e-5, abs=1e-6)


def by_formula(fields: dict[str, Any], step: Callable[..., Any]) -> list[tuple[Any, Any]]:
    weight, bias = np.arange(1.0, 7.0) / 10, np.array([0.5, -0.5])
    kept: dict[str, Any] = {}
    told = []
    for n, rate in enumerate(RATES):
        slopes = np.full(6, 0.1 * (n + 1)), np.array([1.0, -2.0]) / (n + 1)
        weight = step(kept, "weight", weight, slopes[0], rate, n + 1, fields["weight_decay"], fields)
        bias = step(kept, "bias", bias, slopes[1], rate, n + 1, None, fields)
        told.append((weight, bias))
    return told


def sgd(kept: Any, name: str, value: Any, slope: Any, rate: float, n: int, decay: float | None, fields: Any) -> Any:
    slope = slope + (decay or 0) * value
    kept[name] = fields["momentum"] * kept.get(name, 0) + rate * slope
    return value - kept[name]


def lars(kept: Any, name: str, value: Any, slope: Any, rate: float, n: int, decay: float | None, fields: Any) -> Any:
    ratio = 1.0
    if decay is not None:
        length, steep = np.linalg.norm(value), np.linalg.norm(slope)
        ratio = fields["trust"] * length / (steep + decay * length)
    kept[name] = fields["momentum"] * kept.get(name, 0) + rate * ratio * (slope + (decay or 0) * value)
    return value - kept[name]


def adamw(kept: Any, name: str, value: Any, slope: Any, rate: float, n: int, decay: float | None, fields: Any) -> Any:
    """As Keras has it: epsilon beside the second moment as it is."""
    first, second = kept.get(name, (0, 0))
    first = fields["momentum"] * first + (1 - fields["momentum"]) * slope
    second = fields["beta2"] * second + (1 - fields["beta2"]) * slope**2
    kept[name] = first, second
    value = value - rate * (decay or 0) * value
    own = rate * np.sqrt(1 - fields["beta2"] ** n) / (1 - fields["momentum"] ** n)
    return value - own * first / (np.sqrt(second) + 1e-7)


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda fields: by_formula(fields, sgd),
    "lars": lambda fields: by_formula(fields, lars),
    "adamw": lambda fields: by_formula(fields, adamw),
}


OWN = """
from torch import nn


def dense(image_size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, classes))


def nothing(image_size, classes):
    return "a network"


def narrow(image_size, classes):
    return dense(image_size, classes - 1)


def idle(image_size, classes):
    network = dense(image_size, classes)
    network.beside = nn.Linear(2, 2)
    network.forward = lambda images: network[1](network[0](images))
    return network


def lazy(image_size, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
"""


def with_own(tmp_path: Path, size: int, network: str) -> list[RankEnd]:
    (tmp_path / "my_torch_net.py").write_text(OWN)
    fields = SYNTHETIC | {"model": f"my_torch_net:{network}"}
    return of_torch(size, tmp_path, "trains_clean", folder=str(tmp_path), **fields)


def test_a_network_of_the_user_s_own_is_trained(tmp_path: Path) -> None:
    outcome = verdict.outcome(with_own(tmp_path, 2, "dense"), ())
    assert outcome.measurement, outcome
    (one, other) = outcome.measurement.ranks
    assert one.parameters == 10 * (3 * 32**2 + 1)
    assert one.flops == 2 * 10 * 3 * 32**2
    assert len(one.steps) == len(other.steps) == 12


@pytest.mark.parametrize(
    ("network", "kind", "words"),
    [
        ("nothing", "no network", "must give a torch.nn.Module where framework is torch, but gave str"),
        ("narrow", "network does not fit the classes", "for 1 examples its output is (1, 9)"),
        ("idle", "unused weights", "but these do not: beside.weight, beside.bias"),
        ("lazy", "network not built", "no lazy layers"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_network_of_the_user_s_own_that_does_not_fit_is_refused_in_words(
    tmp_path: Path, size: int, network: str, kind: str, words: str
) -> None:
    outcome = verdict.outcome(with_own(tmp_path, size, network), ())
    assert outcome.kind == kind, outcome
    assert words in outcome.message
