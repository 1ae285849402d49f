"""Every shipped sweep, made small, on this machine's CPU: by the real command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sweeps import analysis
from sweeps.record import ledger
from sweeps.store import query
from tests.integration.test_sweep import ROOT, sweep

SMALL = ["device=cpu", "image_size=32", "batch_size=4", "repeats=1"]
QUICK = ["probe_every_min=0", "explain=false"]  # short_test has both as they are shipped


def outcomes(name: str, *overrides: str) -> Counter[tuple[str, str]]:
    ran = sweep("run", str(ROOT / f"search_spaces/{name}.yaml"), "--set", *overrides)
    assert ran.returncode == 0, ran.stderr
    assert "what was found" in ran.stdout
    return Counter((trial.outcome.status, trial.outcome.kind) for trial in ledger.read(name).trials)


def test_short_test_is_ten_and_a_hundred_steps(workplace: Path) -> None:
    found = outcomes("short_test", *SMALL, "model=tiny", "gpus=[1,2]", "precision=fp32")
    assert found == {("completed", ""): 2}
    for trial in ledger.read("short_test").trials:
        assert (trial.config.warmup_steps, trial.config.measured_steps) == (10, 100)
        assert trial.outcome.measurement
        assert {len(rank.steps) for rank in trial.outcome.measurement.ranks} == {100}


def test_batch_size(workplace: Path) -> None:
    found = outcomes(
        "batch_size", *SMALL, *QUICK, "model=tiny", "batch_size={log2: [2, 8]}", "gpus=1", "precision=fp32"
    )
    assert found == {("completed", ""): 3}


def test_precision_marks_what_the_device_does_not_compute(workplace: Path) -> None:
    found = outcomes("precision", *SMALL, *QUICK, "model=tiny", "gpus=1", "precision=[fp32,tf32]")
    assert found == {("completed", ""): 2, ("infeasible", "precision not supported here"): 2}


def test_decode_threads_from_a_cold_and_a_warm_cache(workplace: Path) -> None:
    assert sweep("data", "make", "images", "--images", "64", "--shards", "2").returncode == 0
    axes = ["data=images", "model=tiny", "gpus=2", "precision=fp32", "decode_threads=[1,2]", "cache=[cold,warm]"]
    ran = sweep("run", str(ROOT / "search_spaces/decode_threads.yaml"), "--set", *SMALL, *QUICK, *axes)
    assert ran.returncode == 0, ran.stderr
    trials = query.trials("decode_threads").set_index("trial")
    assert trials["outcome"].tolist() == ["completed"] * 4
    notes = set()
    for record in ledger.read("decode_threads").trials:
        told = trials.loc[record.config.trial]
        assert record.outcome.measurement
        for rank in record.outcome.measurement.ranks:
            assert bool(rank.pinned) == told["is_pinned"]
            assert rank.pinned or rank.pinning_note in told["why_not_pinned"]
            notes |= {rank.pinning_note} - {""}
    said = " ".join((ran.stdout + ran.stderr).split())
    assert [said.count(note) for note in notes] == [2] * len(notes), (
        "when it is learnt, and among the doubts at the end"
    )
    size_mib = sum(path.stat().st_size for path in Path("images").glob("train-*")) / 2**20
    for trial in ledger.read("decode_threads").trials:
        assert trial.outcome.measurement
        read_mib = sum(rank.read_mib for rank in trial.outcome.measurement.ranks)
        # A warm trial may still have read pages of its libraries: test_storage looks at the data alone.
        assert trial.config.cache == "warm" or read_mib >= 0.9 * size_mib


def test_schedules_shows_time_to_accuracy_by_schedule(workplace: Path) -> None:
    command = ["device=cpu", "data=digits", "model=tiny", "gpus=2", "epochs=6", "probe_every_min=0"]
    ran = sweep("run", str(ROOT / "search_spaces/schedules.yaml"), "--set", *command, "repeats=1")
    assert ran.returncode == 0, ran.stderr
    assert "epochs to it" in ran.stdout
    assert "trials reached the target of top-1 74.9%" in ran.stdout
    assert "soonest" not in ran.stdout, "a single repeat shows nothing"
    trials = ledger.read("schedules").trials
    assert len(trials) == 4
    for trial in trials:
        assert trial.outcome.measurement
        last = trial.outcome.measurement.epochs[-1]
        assert trial.outcome.measurement.ranks[0].reached_target == ((last.top1 or 0) >= 0.749)
    assert any(trial.outcome.measurement.ranks[0].reached_target for trial in trials if trial.outcome.measurement)


def test_frontier_finds_the_largest_batch_that_fits_in_a_limited_memory(workplace: Path) -> None:
    small = ["model=tiny", "precision=fp32", "batch_size={log2: [64, 8192]}", "worker_memory_gib=1.2"]
    ran = sweep("run", str(ROOT / "search_spaces/frontier.yaml"), "--set", *small)
    assert ran.returncode == 0, ran.stderr
    assert "the largest batch that fits" in ran.stdout
    ended = {trial.config.batch_size: trial.outcome for trial in ledger.read("frontier").trials}
    assert len(ended) <= 4  # of 8 sizes, by bisection
    fits = [size for size, outcome in ended.items() if outcome.status == "completed"]
    too_large = [size for size, outcome in ended.items() if outcome.kind == "host memory"]
    assert sorted(fits + too_large) == sorted(ended)
    assert max(fits) * 2 == min(too_large)


def test_scaling_on_a_simulated_cluster_is_a_study_of_32_gpus(workplace: Path) -> None:
    ran = sweep("run", str(ROOT / "search_spaces/scaling.yaml"), "--simulate", "nodes=8,gpus=4,gpu=v100")
    assert ran.returncode == 0, ran.stderr
    assert "what was found on a simulated cluster (nodes=8,gpus=4,gpu=v100)" in ran.stdout
    record = ledger.read("scaling-simulated")
    assert len(record.trials) == len(record.facts.trials) >= 150
    trials = query.trials("scaling-simulated")
    assert set(trials["hardware"]) - {""} == {"simulated:v100"}
    table = analysis.scaling(trials).set_index(["batch_size", "gpus", "placement", "precision"]).sort_index()
    assert set(table["outcomes"]) == {"completed", "infeasible"}
    assert table.loc[256, :, :, "fp32"]["n"].sum() == 0  # 25 GiB on a GPU of 16
    for precision in ("fp32", "fp16"):
        alone = table.loc[:, 1, "pack", precision]["images_per_s"].dropna()
        assert alone.is_monotonic_increasing  # with the batch
        efficiency = table.loc[128, :, "pack", precision]["efficiency"]
        assert efficiency.is_monotonic_decreasing  # with the GPUs
        assert efficiency[4] > 0.94 > efficiency[8] > efficiency[32] > 0.6
    gain = table.loc[128, 1, "pack", "fp16"]["images_per_s"] / table.loc[128, 1, "pack", "fp32"]["images_per_s"]
    assert 1.6 <= gain <= 2.07  # as published: 60% to 107%
