"""Proofs that it trains right, with real ranks on real digits."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import learning
from tests.integration.gangs import gang
from workers.contract.messages import Measurement
from workers.launch import verdict
from workers.launch.supervisor import RankEnd
from workers.workloads.images import checkpoint

pytestmark = pytest.mark.usefixtures("fork_server")

LEARNING = "tests.integration.learning"
TRAIN = "workers.workloads.images.train:run"
DIGITS = {
    "protocol": "convergence",
    "data": "digits",
    "batch_size": 32,
    "epochs": 5,
    "evaluate_every": 1,
    "warmup_steps": 0,
    "measured_steps": 0,
    "lr_schedule": "0.1",
}
TRAINING_IMAGES, VALIDATION_IMAGES = 1437, 360


def told(ends: list[RankEnd]) -> Any:
    """What rank 0 of a proof said."""
    assert [end.kind for end in ends] == ["told"] * len(ends), ends
    return json.loads(ends[0].message)


def converged(size: int, log: Path, entry: str = TRAIN, **fields: object) -> Measurement:
    outcome = verdict.outcome(gang(size, log, entry, **DIGITS | fields), ())
    assert outcome.measurement, outcome
    return outcome.measurement


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", "0.002"), ("lars", "0.05"), ("adamw", "0.0003")])
def test_two_ranks_follow_the_loss_curve_of_one_with_twice_the_batch(tmp_path: Path, optimizer: str, rate: str) -> None:
    """At rates that learn and don't leap: where a network is unstable, the last bit of a sum soon decides all."""
    fields = DIGITS | {"optimizer": optimizer, "lr_schedule": rate}
    one = told(gang(1, tmp_path, f"{LEARNING}:loss_curve", **fields | {"batch_size": 64}))
    two = told(gang(2, tmp_path, f"{LEARNING}:loss_curve", **fields | {"batch_size": 32}))
    assert len(one) == len(two) == 2 * -(-TRAINING_IMAGES // 64)  # the last batch of an epoch holds 29
    assert two == pytest.approx(one, abs=1e-4)
    assert one[-2] < 0.85 * one[0]  # it is a curve


def test_every_image_counts_once_in_training_and_in_validation(tmp_path: Path) -> None:
    one = converged(1, tmp_path / "1", batch_size=50, epochs=2)
    two = converged(2, tmp_path / "2", batch_size=25, epochs=2)
    for measured in (one, two):
        assert [epoch.images for epoch in measured.epochs] == [TRAINING_IMAGES] * 2
        hits = np.array([[epoch.top1, epoch.top5] for epoch in measured.epochs], float) * VALIDATION_IMAGES
        assert hits == pytest.approx(hits.round(), abs=1e-6)
    for a, b in zip(one.epochs, two.epochs, strict=True):
        assert (a.top1, a.top5) == (b.top1, b.top5)
        assert a.loss == pytest.approx(b.loss, abs=1e-4)


def test_tiny_learns_digits_to_95_percent_with_two_ranks(tmp_path: Path) -> None:
    measured = converged(2, tmp_path, epochs=20, target_top1=0.95)
    assert measured.ranks[0].reached_target
    last = measured.epochs[-1]
    assert last.top1 is not None
    assert last.top1 >= 0.95
    assert sum(epoch.train_s + epoch.evaluate_s for epoch in measured.epochs) < 60
    assert len(measured.epochs) < 20  # it stopped there


@pytest.mark.parametrize(
    ("model", "planted", "epochs"),
    [
        ("tiny", {}, 4),
        ("tiny", {learning.NORMED: "1"}, 2),  # batch norm and dropout: what a step changes and no gradient does
        pytest.param("googlenet", {}, 2, marks=pytest.mark.long),  # a network in use that has both
    ],
    ids=["tiny", "batch norm and dropout", "googlenet"],
)
def test_a_trial_interrupted_and_resumed_ends_as_one_that_was_not(
    tmp_path: Path, model: str, planted: dict[str, str], epochs: int
) -> None:
    fields: dict[str, object] = {"model": model, "epochs": epochs, "checkpoint_every": 1, "lr_schedule": "cosine: 0.05"}
    fields |= {"env": planted}
    whole = converged(2, tmp_path / "whole", f"{LEARNING}:trains", **fields)
    broken = verdict.outcome(
        gang(2, tmp_path / "broken", f"{LEARNING}:dies_in_the_second_epoch", **DIGITS | fields), ()
    )
    assert (broken.status, broken.kind, broken.rank) == ("failed", "killed", 0)
    assert [path.name for path in (tmp_path / "broken").glob("*checkpoint*")] == ["checkpoint.npz"]
    resumed = converged(2, tmp_path / "broken", f"{LEARNING}:trains", **fields)
    assert [epoch.epoch for epoch in resumed.epochs] == list(range(1, epochs + 1))
    assert [epoch.loss for epoch in resumed.epochs] == pytest.approx([epoch.loss for epoch in whole.epochs], abs=1e-6)
    assert resumed.epochs[-1].top1 == whole.epochs[-1].top1
    for measured in (whole, resumed):  # before the first epoch nothing was written or read
        assert [epoch.checkpoint_s > 0 for epoch in measured.epochs] == [n > 0 for n in range(epochs)]


def test_an_epoch_tells_at_every_rank_how_long_the_checkpoint_before_it_took(tmp_path: Path) -> None:
    fields: dict[str, object] = {"epochs": 3, "checkpoint_every": 2, "batch_size": 300}
    began = time.perf_counter()
    slow = converged(2, tmp_path, f"{LEARNING}:writes_checkpoints_slowly", **fields)
    took_s = time.perf_counter() - began
    one, other = ([epoch.checkpoint_s for epoch in rank.epochs] for rank in slow.ranks)
    assert one == other
    assert [epoch.checkpoint_s >= learning.SLOWLY_S for epoch in slow.epochs] == [False, False, True]
    assert [epoch.checkpoint_s for epoch in slow.epochs[:2]] == [0, 0]
    assert sum(epoch.taken_s for epoch in slow.epochs) + learning.SLOWLY_S < took_s  # the last is in no epoch


def test_the_hours_of_a_trial_that_goes_on_hold_the_epochs_until_its_checkpoint_as_they_were_timed(
    tmp_path: Path,
) -> None:
    fields: dict[str, object] = {"checkpoint_every": 1, "batch_size": 300}
    first = converged(2, tmp_path, epochs=2, **fields)
    second = converged(2, tmp_path, epochs=3, **fields)
    assert second.epochs[:2] == first.epochs
    assert second.epochs[2].checkpoint_s > 0  # it was read
    assert [[rank.gone_on_from for rank in one.ranks] for one in (first, second)] == [[0, 0], [2, 2]]


def test_a_trial_that_was_cut_short_after_its_last_checkpoint_has_the_figures_of_its_epochs(tmp_path: Path) -> None:
    fields: dict[str, object] = {"checkpoint_every": 1, "batch_size": 300, "epochs": 2}
    first = converged(2, tmp_path, **fields)
    again = converged(2, tmp_path, **fields)
    assert again.epochs == first.epochs
    assert again.images == first.images == 2 * TRAINING_IMAGES
    told = first.images / sum(epoch.train_s for epoch in first.epochs)  # by the first rank's clock, as epochs are
    assert again.images_per_s == pytest.approx(told, rel=1e-6)
    assert first.images_per_s == pytest.approx(told, rel=1e-3), "the slowest rank's clock, barrier to barrier"


KEPT: dict[str, object] = {"checkpoint_every": 1, "batch_size": 300, "lr_schedule": "cosine: 0.05"}


@pytest.fixture(scope="module")
def an_epoch(fork_server: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measurement]:
    """A trial of an epoch, and where it left its checkpoint."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, converged(2, folder, epochs=1, **KEPT)


@pytest.mark.parametrize("unlike", ["software", "data_files", "hardware", "arrangement"])
def test_a_gang_begins_anew_where_the_checkpoint_is_of_anything_else_and_all_ranks_agree(
    an_epoch: tuple[Path, Measurement], tmp_path: Path, unlike: str
) -> None:
    kept_at, first = an_epoch
    shutil.copytree(kept_at, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoint.npz"
    with np.load(path) as saved:
        told, *values = (saved[f"arr_{n}"] for n in range(len(saved.files)))
    signed = json.loads(str(told))
    signed["made"][unlike] = "other"
    with path.open("wb") as file:
        np.savez(file, np.array(json.dumps(signed)), *values)
    second = converged(2, tmp_path, epochs=2, **KEPT)
    assert [epoch.epoch for epoch in second.epochs] == [1, 2]
    assert second.epochs[0].train_s != first.epochs[0].train_s, "it was measured again"
    assert second.images == 2 * TRAINING_IMAGES
    why, elsewhere = (rank.begun_anew for rank in second.ranks)
    assert "begins anew" in why
    assert why in (tmp_path / "rank-0.log").read_text()
    assert elsewhere == ""
    kept = checkpoint.peek(path)
    assert kept
    assert kept.made
    assert (len(kept.epochs), kept.made.get(unlike) == "other") == (2, False)


def test_a_checkpoint_of_something_else_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.npz").write_bytes(b"not this")
    outcome = verdict.outcome(gang(1, tmp_path, TRAIN, **DIGITS), ())
    assert (outcome.status, outcome.kind) == ("failed", "checkpoint")
    assert f"{tmp_path}/checkpoint.npz must be this trial's checkpoint" in outcome.message


def test_bf16_reaches_the_accuracy_of_fp32(tmp_path: Path) -> None:
    top1 = {}
    for precision in ("fp32", "bf16"):
        measured = converged(2, tmp_path / precision, precision=precision, emulate=True, epochs=10, evaluate_every=10)
        top1[precision] = measured.epochs[-1].top1 or 0
    assert min(top1.values()) > 0.95
    assert top1["bf16"] == pytest.approx(top1["fp32"], abs=0.015)


def test_xla_computes_the_same_losses(tmp_path: Path) -> None:
    curve = f"{LEARNING}:loss_curve"
    plain, compiled = (
        told(gang(2, tmp_path, curve, **DIGITS | {"xla": xla, "lr_schedule": "0.002"})) for xla in (False, True)
    )
    assert compiled == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize("xla", [False, True])
def test_the_step_is_handed_to_xla_where_that_is_asked_for(tmp_path: Path, xla: bool) -> None:
    assert told(gang(1, tmp_path, f"{LEARNING}:what_xla_compiles", xla=xla)) is xla


@pytest.mark.parametrize(
    ("optimizer", "setting", "values"),
    [
        ("sgd", "momentum", (0.0, 0.9)),
        ("lars", "momentum", (0.0, 0.9)),
        ("adamw", "momentum", (0.0, 0.9)),
        ("adamw", "beta2", (0.5, 0.999)),
    ],
)
def test_a_setting_of_an_optimizer_bends_the_curve_behind_its_first_step(
    tmp_path: Path, optimizer: str, setting: str, values: tuple[float, float]
) -> None:
    fields = DIGITS | {"optimizer": optimizer, "lr_schedule": "0.003", "batch_size": 256}
    one, other = (told(gang(1, tmp_path, f"{LEARNING}:loss_curve", **fields | {setting: v})) for v in values)
    assert one[0] == pytest.approx(other[0], abs=1e-5)
    assert abs(one[-1] - other[-1]) > 1e-3


def test_a_loss_that_is_no_number_fails_the_trial_with_its_cure(tmp_path: Path) -> None:
    outcome = verdict.outcome(gang(2, tmp_path, TRAIN, **DIGITS | {"lr_schedule": "1e30"}), ())
    assert (outcome.status, outcome.kind) == ("failed", "diverged")
    assert "its learning rate was 1e+30; lower lr_schedule" in outcome.message


# One step of each optimiser against its formula, on a throughput trial's synthetic batch.


def one_step(tmp_path: Path, **fields: object) -> tuple[list[Any], list[Any], list[Any], float]:
    said = told(gang(1, tmp_path, f"{LEARNING}:weights_after_a_step", **fields))
    arrays = ([np.array(value) for value in said[name]] for name in ("before", "slopes", "after"))
    before, slopes, after = arrays
    return before, slopes, after, said["loss"]


RATE, DECAY = 0.1, 0.01


def test_sgd_decays_kernels_and_not_biases(tmp_path: Path) -> None:
    with_decay = one_step(tmp_path, weight_decay=DECAY)
    without = one_step(tmp_path, weight_decay=0.0)
    for n, decayed in enumerate([True, False]):
        before, slopes, after = (part[n] for part in with_decay[:3])
        assert after == pytest.approx(before - RATE * slopes, abs=1e-6)
        assert slopes == pytest.approx(without[1][n] + DECAY * before * decayed, abs=1e-6)
    assert with_decay[3] == pytest.approx(without[3])  # the loss told is that of the images


def test_lars_steps_in_proportion_to_the_kernel(tmp_path: Path) -> None:
    before, slopes, after, _ = one_step(tmp_path, optimizer="lars", weight_decay=DECAY, trust=0.02)
    length, slope = np.linalg.norm(before[0]), np.linalg.norm(slopes[0])
    ratio = 0.02 * length / (slope + DECAY * length)
    assert after[0] == pytest.approx(before[0] - RATE * ratio * (slopes[0] + DECAY * before[0]), abs=1e-6)
    assert after[1] == pytest.approx(before[1] - RATE * slopes[1], abs=1e-6)


def test_adamw_decays_kernels_beside_its_step(tmp_path: Path) -> None:
    before, slopes, after, _ = one_step(tmp_path, optimizer="adamw", weight_decay=DECAY)
    for n, decay in enumerate([DECAY, 0.0]):
        step = RATE * np.sign(slopes[n])  # the first step's moments are the gradient's own
        expected = before[n] - step - RATE * decay * before[n]
        is_steep = np.abs(slopes[n]) > 1e-3  # beside which Adam's epsilon is nothing
        assert is_steep.any()
        assert after[n][is_steep] == pytest.approx(expected[is_steep], abs=1e-3)
        if decay:
            assert after[n][is_steep] != pytest.approx(
                expected[is_steep] + RATE * decay * before[n][is_steep], abs=1e-6
            )


def test_fp16_scales_its_loss_and_steps_in_fp32(tmp_path: Path) -> None:
    before, slopes, after, _ = one_step(tmp_path, precision="fp16", emulate=True, weight_decay=0.0)
    scale = 2.0**15  # Keras' first
    assert np.abs(slopes[0]).max() > 1  # what is computed in fp16 is far from its smallest numbers
    assert after[0] == pytest.approx(before[0] - RATE * slopes[0] / scale, abs=1e-6)
    assert np.abs(after[0] - after[0].astype(np.float16)).max() > 0  # and the weights are no fp16 numbers


def test_label_smoothing_spreads_a_part_of_the_label(tmp_path: Path) -> None:
    plain, smooth = (one_step(tmp_path, label_smoothing=at)[3] for at in (0.0, 0.2))
    assert smooth != pytest.approx(plain, abs=1e-4)
    assert smooth == pytest.approx(plain, abs=1.0)


def test_compressed_gradients_are_rounded_to_fp16(tmp_path: Path) -> None:
    curve = f"{LEARNING}:loss_curve"
    plain, compressed = (
        told(gang(2, tmp_path, curve, **DIGITS | {"compression": compression, "lr_schedule": "0.01"}))
        for compression in ("none", "fp16")
    )
    assert compressed != plain
    assert compressed == pytest.approx(plain, abs=0.05)


def test_a_rank_that_holds_more_than_its_limit_is_infeasible_with_the_bytes(tmp_path: Path) -> None:
    fields = {"batch_size": 8192, "image_size": 128, "worker_memory_gib": 1.0, "measured_steps": 50}
    outcome = verdict.outcome(gang(2, tmp_path, TRAIN, **fields), ())
    assert (outcome.status, outcome.kind) == ("infeasible", "host memory")
    assert "GiB, more than worker_memory_gib (1.00 GiB)" in outcome.message


@pytest.mark.parametrize(
    ("variables", "is_own_process"),
    [
        ({"NCCL_ALGO": "Ring", "HOROVOD_LOG_LEVEL": "error"}, False),
        ({"TF_ENABLE_ONEDNN_OPTS": "0", "NCCL_ALGO": "Tree"}, True),  # TensorFlow reads its own while it is imported
    ],
)
def test_variables_are_set_before_their_reader_reads_them(
    tmp_path: Path, variables: dict[str, str], is_own_process: bool
) -> None:
    said = told(gang(2, tmp_path, f"{LEARNING}:shows_its_environment", env=variables))
    assert said["asked"] == variables
    assert said["is_own_process"] == is_own_process


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        ({}, {"precision": "float32", "xla": "off", "reduction": "one by one", "compression": "float32"}),
        (
            {"precision": "bf16", "emulate": True, "reduction": "grouped", "compression": "fp16"},
            {"precision": "bfloat16, float32", "xla": "off", "reduction": "grouped", "compression": "float16"},
        ),
        ({"xla": True, "precision": "fp16", "emulate": True}, {"precision": "float16, float32", "xla": "on"}),
        ({"cores_per_worker": 2}, {"intra_op_threads": "2", "inter_op_threads": "1", "tf32": "off"}),
    ],
)
def test_what_runs_is_asked_for_its_settings(tmp_path: Path, asked: dict[str, object], runs: dict[str, str]) -> None:
    """The traced step and TensorFlow say so, not the trial's config. The last layer gives its logits in float32."""
    outcome = verdict.outcome(gang(2, tmp_path, TRAIN, **asked), ())
    assert outcome.measurement, outcome
    for report in outcome.measurement.ranks:
        assert report.runs.items() >= runs.items(), report.runs
        assert "niceness" in report.runs


def test_a_rank_alone_reduces_nothing_whatever_it_was_asked_for(tmp_path: Path) -> None:
    outcome = verdict.outcome(gang(1, tmp_path, TRAIN, reduction="grouped", compression="fp16"), ())
    assert outcome.measurement, outcome
    assert not {"reduction", "compression"} & set(outcome.measurement.ranks[0].runs)


def test_the_variables_that_ranks_were_given_are_reported(tmp_path: Path) -> None:
    fields = {"fusion_mib": 2.5, "cycle_ms": 0.5, "response_cache": 0, "env": {"OMP_NUM_THREADS": "1"}}
    outcome = verdict.outcome(gang(2, tmp_path, TRAIN, **fields), ())
    assert outcome.measurement, outcome
    in_force = outcome.measurement.ranks[1].in_force
    assert (
        in_force.items()
        >= {
            "HOROVOD_FUSION_THRESHOLD": str(5 << 19),
            "HOROVOD_CYCLE_TIME": "0.5",
            "HOROVOD_CACHE_CAPACITY": "0",
            "OMP_NUM_THREADS": "1",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }.items()
    )
