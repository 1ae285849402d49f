"""What is told of an input that is too slow: the product's own pipeline, and its own rule for when to stop."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

import pytest

import causes
from tests.integration import noting_ranks
from tests.integration.bottlenecks import COMPUTE_S
from tests.integration.gangs import gang
from tests.integration.late_ranks import DELAY_S
from workers.contract.messages import CALM_STEPS, Measurement
from workers.launch import verdict

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fork_server")]


@dataclasses.dataclass(frozen=True)
class Trial:
    most_images_per_s: float  # that its threads can decode, since each image is held up
    folder: Path
    found: Measurement

    @property
    def step_ms(self) -> float:
        return 1e3 * self.found.window_s / len(self.found.ranks[0].steps)


ONE_THREAD = (1, 16, 0.0035)  # decode threads, batch, and seconds that each image is held up
FOUR_THREADS = (4, 32, 0.0075)


@pytest.fixture(scope="module", params=[ONE_THREAD, FOUR_THREADS], ids=["one decode thread", "four decode threads"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_server: object) -> Trial:
    """Of one rank, with batches of 60 ms and more; its step takes 30, and 10 to 20 of its own."""
    threads, batch, delay_s = request.param
    folder = tmp_path_factory.mktemp("trial")
    images = causes.make_images(folder)
    (end,) = gang(
        1,
        folder,
        "tests.integration.noting_ranks:run",
        data=str(images),
        batch_size=batch,
        decode_threads=threads,
        env={DELAY_S: str(delay_s), COMPUTE_S: "0.03"},
        warmup_steps=10,
        measured_steps=0,
        ci=0.05,
        max_steps=400,
        explain=True,
    )
    found = verdict.outcome([end], ()).measurement
    assert found, end
    return Trial(threads / delay_s, folder, found)


def test_images_per_s_are_those_that_its_threads_decode(trial: Trial) -> None:
    """What was decoded before the window, if any of it were taken there, would come to 3% and more: 8 or 9 batches of
    some 240."""
    (rank,) = trial.found.ranks
    assert len(rank.steps) >= CALM_STEPS - 20  # it decided itself, without any window before
    decoded = noting_ranks.decoded(trial.folder, *rank.window_at)
    assert trial.found.images_per_s < 1.005 * trial.most_images_per_s
    assert trial.found.images_per_s == pytest.approx(decoded / trial.found.window_s, rel=0.02)


@pytest.mark.parametrize("trial", [ONE_THREAD], indirect=True, ids=["one decode thread"])
def test_whole_steps_behind_the_window_wait_as_those_in_it(trial: Trial) -> None:
    """Though buffers fill up each time before: then they would wait for nothing. What a machine holds up for a while is
    in few rounds, so that their median tells."""
    (rank,) = trial.found.ranks
    whole_ms, without_ms = (
        statistics.median(map(statistics.fmean, rank.without_ms[part])) for part in ("nothing", "input")
    )
    waited = 1 - without_ms / trial.step_ms
    assert waited > 0.2
    assert 1 - without_ms / whole_ms == pytest.approx(waited, abs=0.1)
