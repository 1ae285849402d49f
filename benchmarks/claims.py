"""What README claims: the words of each row, the figures that it quotes, and the code that they are figures of.

`table` makes README's table of this and of `results.json`. A figure stands in braces, by the name under which its
benchmark prints it; nothing else here was measured, so a number in the words is a setting of the benchmark.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A line of the table. One without a claim goes on with the claim above it."""

    claim: str = ""
    ours: str = ""
    peer: str = ""  # the alternative, in words
    peer_figures: str = ""
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A benchmark, what it measures, and what README says of it.

    `code` are the files, or folders of them, of which a change may well move the figures, beside the benchmark's own
    script. It is short on purpose: if every commit marked every claim, the mark would say nothing. Whatever else of the
    project the script imports is in `beside`, or in BESIDE: it says what is measured, starts it or reads it back, and
    takes no part in it. A test reads the imports and holds this.
    """

    benchmark: str
    code: tuple[str, ...]
    beside: tuple[str, ...] = ()
    rows: tuple[ClaimRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        return f"benchmarks/{self.benchmark}.py"

    def quoted(self) -> set[str]:
        """Return the figures that README quotes of it."""
        return quoted([*self.notes, *(text for row in self.rows for text in vars(row).values())])


def quoted(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


# A sweep file's text becomes cells before anything is measured; a verdict is read off figures that stay.
BESIDE = (
    "sweeps/__init__.py",
    "sweeps/run/status.py",
    "sweeps/spec/keys.py",
    "sweeps/spec/plan.py",
    "sweeps/spec/sweep_file.py",
    "workers/__init__.py",
    "workers/contract/ranks.py",
    "tests/cluster/__init__.py",
    "tests/integration/__init__.py",
    "benchmarks/verdicts.py",
)
# What `ours.swept` puts a runner together from.
OF_OURS = (
    "sweeps/run/executor.py",
    "sweeps/scheduling/cache.py",
    "sweeps/cluster/ray_cluster.py",
    "sweeps/scheduling/durations.py",
    "sweeps/scheduling/engine.py",
    "sweeps/scheduling/feasibility.py",
    "sweeps/record/ledger.py",
    "sweeps/scheduling/search.py",
)

# What takes a trial's steps apart and tells shares of them.
OF_SHARES = (
    "workers/workloads/images/train.py",
    "workers/workloads/images/throughput.py",
    "workers/workloads/images/step_shares.py",
    "workers/measure/steady.py",
    "workers/frameworks/tensorflow/learner.py",
    "workers/strategies/ring.py",
    "sweeps/record/bottleneck.py",
)

CLAIMS = (
    Claim(
        benchmark="launch",
        code=(
            "workers/launch/gang.py",
            "workers/launch/supervisor.py",
            "workers/launch/fork_server.py",
            "workers/launch/rank.py",
            "workers/strategies/ring.py",
            "workers/launch/seats.py",
            "sweeps/run/ray_tune.py",
            "benchmarks/ours.py",
            "benchmarks/ready.py",
            "benchmarks/peers.py",
        ),
        beside=(*OF_OURS, "workers/contract/messages.py"),
        rows=(
            ClaimRow(
                claim="start 2 ranks, TensorFlow and Horovod ready",
                ours="{median_s:.2f} s, median of {trials:.0f}",
                peer="`horovod.ray.RayExecutor`",
                peer_figures="{ray_executor_s:.2f} s",
                last="{speedup_over_ray_executor:.1f}×",
            ),
            ClaimRow(
                peer="Ray V1 `HorovodTrainer`",
                peer_figures="{horovod_trainer_s:.2f} s",
                last="{speedup_over_horovod_trainer:.1f}×",
            ),
        ),
    ),
    Claim(
        benchmark="parity",
        code=(
            "workers/workloads/images/train.py",
            "workers/workloads/images/throughput.py",
            "workers/measure/steady.py",
            "workers/measure/earlier_windows.py",
            "workers/frameworks/tensorflow/learner.py",
            "workers/frameworks/tensorflow/optimizers.py",
            "workers/frameworks/tensorflow/precision.py",
            "workers/strategies/ring.py",
            "workers/node/pinning.py",
            "workers/inputs",
            "workers/frameworks/tensorflow/models/tiny.py",
            "workers/launch/supervisor.py",
            "workers/measure/usage.py",
            "workers/contract/messages.py",
            "workers/launch/gang.py",
            "workers/launch/fork_server.py",
            "workers/frameworks/tensorflow/models/__init__.py",
            "sweeps/run/ray_tune.py",
            "sweeps/analysis/means.py",
            "benchmarks/ours.py",
            "benchmarks/plain.py",
            "benchmarks/odometer.py",
        ),
        beside=(*OF_OURS, "sweeps/analysis/__init__.py"),
        rows=(
            ClaimRow(
                claim="images/s of a trial on JPEGs over the best plain loop under `horovodrun`: both ranks on one"
                " core, all else on the other",
                ours="{apart_ratio:.3f} ({apart_low:.3f} to {apart_high:.3f}), {apart_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{apart_plain_images_per_s:,.0f} images/s",
                last="median {apart_median:.3f} of {trials:.0f} trials",
            ),
            ClaimRow(
                claim="the same with everything on both of the machine's cores",
                ours="{among_ratio:.3f} ({among_low:.3f} to {among_high:.3f}), {among_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{among_plain_images_per_s:,.0f} images/s",
                last="median {among_median:.3f}",
            ),
            ClaimRow(
                claim="the same on both cores without an input: a batch in memory, so that steps are computing and"
                " reducing alone",
                ours="{computing_ratio:.3f} ({computing_low:.3f} to {computing_high:.3f}),"
                " {computing_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{computing_plain_images_per_s:,.0f} images/s",
                last="median {computing_median:.3f}",
            ),
        ),
        notes=(
            "Parity is measured as an ordinary user, at equal niceness, by a trial's own `images_per_s`. Both sides"
            " take turns of one second; only a side's own turns count. The plain loop against itself gives"
            " {itself_ratio:.3f} ({itself_low:.3f} to {itself_high:.3f}). Input pipeline and network are the project's"
            " own code in both, so what these cost does not show; the step, its reduction, the optimizer, the loop and"
            " the launch are each side's own. What runs beside ours takes at most {among_beside_core_share:.1%} of a"
            " core in the median trial.",
        ),
    ),
    Claim(
        benchmark="agreement",
        code=(
            "workers/workloads/images/train.py",
            "workers/workloads/images/throughput.py",
            "workers/measure/steady.py",
            "workers/measure/student_t.py",
            "workers/measure/earlier_windows.py",
            "workers/frameworks/tensorflow/learner.py",
            "workers/strategies/ring.py",
            "workers/node/pinning.py",
            "workers/checks/self_test.py",
            "workers/frameworks/tensorflow/models/tiny.py",
            "sweeps/analysis/means.py",
        ),
        rows=(
            ClaimRow(
                claim="cells whose 95% intervals agree when the same sweep runs twice",
                ours="{cells_agreeing:.0%} of {cells:.0f}; but {repeats:.0f} repeats leave a cell"
                " ± {median_half_width:.1%} in the median, and cells that differ by less agree too",
                peer="each cell beside the next one, which is another program",
                peer_figures="{unlike_cells_agreeing:.0%}",
            ),
        ),
    ),
    Claim(
        benchmark="causes",
        code=(
            *OF_SHARES,
            "workers/inputs",
            "workers/node/pinning.py",
            "workers/frameworks/tensorflow/models/tiny.py",
            "tests/integration/late_ranks.py",
            "tests/integration/turns.py",
        ),
        beside=(
            "tests/integration/bad_ranks.py",
            "tests/integration/gangs.py",
            "tests/unit/records.py",
            "sweeps/record/ledger.py",
            "workers/contract/messages.py",
            "workers/launch/supervisor.py",
            "workers/launch/fork_server.py",
            "workers/contract/paths.py",
            "workers/strategies/rendezvous.py",
            "workers/launch/verdict.py",
        ),
        rows=(
            ClaimRow(
                claim="what a trial says that a real cause takes of a step (images that come late, a long cycle of"
                " Horovod's), beside what removing it gives in a run of its own",
                ours="within 5 points in {least_near:.0%} to {most_near:.0%} of {runs:.0f} runs of each of"
                " {causes:.0f} causes",
                peer="the run without the cause, in turns of a second",
                last="median {median_off:.1%}, worst {worst_off:.1%} of a step off",
            ),
        ),
    ),
    Claim(
        benchmark="link",
        code=(*OF_SHARES, "workers/frameworks/tensorflow/models/tiny.py", "tests/cluster/hosts.py"),
        beside=("tests/cluster/launched.py",),
        rows=(
            ClaimRow(
                claim="the same of a throttled link between two hosts of network namespaces",
                ours="within 5 points in {near:.0%} of {runs:.0f} runs",
                peer="the run over a free link",
                last="median {median_off:.1%}, worst {worst_off:.1%} of a step off",
            ),
        ),
    ),
    Claim(
        benchmark="overlap",
        code=(
            *OF_SHARES,
            "workers/frameworks/tensorflow/models/vgg.py",
            "workers/measure/student_t.py",
            "tests/cluster/hosts.py",
        ),
        beside=("sweeps/analysis/__init__.py", "tests/cluster/launched.py"),
        rows=(
            ClaimRow(
                claim="images/s with gradients reduced beside the backward pass: VGG-16 on two such hosts, over a link"
                " so slow that reducing takes about half a step",
                ours="{images_per_s:.1f} images/s; {overlap_share:.1%} of a step is overlapped, at least"
                " {overlap_share_low:.1%}",
                peer="grouped, behind it",
                peer_figures="{grouped_images_per_s:.1f}, {grouped_comm_share:.0%} of a step",
                last="{gain:+.1%}, at least {gain_low:+.1%}; {repeats:.0f} repeats at {mbit:,.0f} Mbit/s",
            ),
        ),
    ),
    Claim(
        benchmark="input",
        code=("workers/inputs", "workers/inputs/dataset.py", "sweeps/analysis/means.py"),
        beside=("sweeps/analysis/__init__.py", "workers/contract/messages.py", "workers/strategies/ring.py"),
        rows=(
            ClaimRow(
                claim="images/s of one JPEG decode thread: crop, resize, flip, batch",
                ours="{images_per_s:,.0f}",
                peer="libjpeg-turbo decoding alone",
                peer_figures="{turbo_images_per_s:,.0f}",
                last="{over_turbo:.2f}× ({over_turbo_low:.2f} to {over_turbo_high:.2f})",
            ),
            ClaimRow(
                peer="plain `tf.data`: decode, resize, batch",
                peer_figures="{plain_images_per_s:,.0f}",
                last="{over_plain:.2f}× ({over_plain_low:.2f} to {over_plain_high:.2f})",
            ),
        ),
    ),
    Claim(
        benchmark="packing",
        code=(
            "sweeps/scheduling/packing.py",
            "sweeps/spec/arrangements.py",
            "sweeps/scheduling/engine.py",
            "sweeps/scheduling/durations.py",
            "sweeps/scheduling/search.py",
            "sweeps/scheduling/feasibility.py",
            "benchmarks/bound.py",
            "benchmarks/tune_order.py",
        ),
        beside=("sweeps/scheduling/cache.py", "sweeps/record/ledger.py", "workers/contract/messages.py"),
        rows=(
            ClaimRow(
                claim="makespan of 500 mixed gangs over its lower bound, on 4, 8 and 32 GPUs, in random order",
                ours="medians {median_4:.3f}, {median_8:.3f}, {median_32:.3f}; worst {worst:.3f} of {seeds:.0f} seeds",
                peer="a model of Ray Tune's own order",
                last="{tune_median:.3f}, {tune_worst:.3f}",
            ),
            ClaimRow(
                peer="the largest first, which ties size to start",
                peer_figures="{largest_first_median:.3f}, {largest_first_worst:.3f}",
                last="a sweep lasts {over_largest_first:.1%} longer",
            ),
        ),
    ),
    Claim(
        benchmark="overhead",
        code=(
            "sweeps/run/ray_tune.py",
            "sweeps/run/executor.py",
            "sweeps/run/conductor.py",
            "sweeps/scheduling/engine.py",
            "sweeps/scheduling/packing.py",
            "sweeps/scheduling/search.py",
            "sweeps/record/ledger.py",
            "sweeps/run/tracker.py",
            "sweeps/store/tracking.py",
            "sweeps/store/bulk.py",
            "sweeps/record/rows.py",
            "sweeps/run/progress.py",
            "sweeps/scheduling/feasibility.py",
            "sweeps/scheduling/durations.py",
            "sweeps/simulator/group.py",
            "search_spaces/demo.yaml",
            "workers/launch/gang.py",
            "workers/launch/supervisor.py",
            "workers/launch/fork_server.py",
            "workers/workloads/images/train.py",
            "workers/frameworks/tensorflow/learner.py",
            "workers/workloads/images/throughput.py",
            "workers/measure/steady.py",
            "workers/workloads/images/step_shares.py",
            "workers/frameworks/tensorflow/models/tiny.py",
            "workers/strategies/ring.py",
            "sweeps/scheduling/cache.py",
            "sweeps/run/forecast.py",
            "sweeps/scheduling/observer.py",
            "workers/contract/messages.py",
            "sweeps/simulator/cluster.py",
            "sweeps/simulator/__init__.py",
            "benchmarks/instant.py",
        ),
        beside=("sweeps/cluster/site.py", "sweeps/cli/__main__.py", "sweeps/cluster/ray_cluster.py"),
        rows=(
            ClaimRow(
                claim="instant trials a second through all of the control plane",
                ours="{ours_a_second:.0f}; median ratio {pace_over_tune:.2f} of {turns:.0f} turns",
                peer="Ray Tune alone, keeping no results",
                peer_figures="{tune_a_second:.0f}",
                last="{pace_over_tune_least:.2f} to {pace_over_tune_most:.2f}",
            ),
            ClaimRow(
                claim="the same until MLflow has the last of 10,000, on SQLite",
                ours="{stored_a_second:.0f}; none waits longer than {waited_s:.1f} s",
                last="memory grows {memory_growth:.2f}×",
            ),
            ClaimRow(
                claim="from a trial's end to the next one's first step done, in the demo",
                ours="median {turnaround_s:.1f} s",
                last="{measuring_share:.0%} of its time is measuring",
            ),
        ),
    ),
    Claim(
        benchmark="tracking",
        code=(
            "sweeps/store/tracking.py",
            "sweeps/run/tracker.py",
            "sweeps/store/bulk.py",
            "sweeps/record/rows.py",
            "sweeps/store/description.py",
            "sweeps/record/ledger.py",
            "workers/contract/messages.py",
            "benchmarks/query.py",
        ),
        beside=("sweeps/store/query.py",),
        rows=(
            ClaimRow(
                claim="writing a trial to MLflow, sqlite",
                ours="{local_ours_ms:.1f} ms, median of {trials:.0f}",
                peer="the plain batch call",
                peer_figures="{local_plain_ms:.1f} ms",
                last="{local_ratio:.2f}× (over HTTP {http_ratio:.2f}×)",
            ),
            ClaimRow(
                peer="fluent calls", peer_figures="{local_fluent_ms:,.0f} ms", last="{local_fluent_over_ours:.0f}×"
            ),
            ClaimRow(
                peer="Ray's `MLflowLoggerCallback`",
                peer_figures="{local_callback_ms:,.0f} ms",
                last="{local_callback_over_ours:.0f}×",
            ),
        ),
    ),
    Claim(
        benchmark="query",
        code=(
            "sweeps/store/query.py",
            "sweeps/store/database.py",
            "sweeps/store/mirror.py",
            "sweeps/store/arrays.py",
            "sweeps/record/rows.py",
            "sweeps/store/tabular.py",
        ),
        rows=(
            ClaimRow(
                claim="a sweep's trials as a DataFrame: 1,000, 10,000, 100,000, first time",
                ours="{first_s_1000:.2f}, {first_s_10000:.2f}, {first_s_100000:.1f} s",
                peer="`mlflow.search_runs`",
                peer_figures="{search_s_1000:.1f}, {search_s_10000:.0f}, {search_s_100000:.0f} s",
                last="{first_1000:.0f}×, {first_10000:.0f}×, {first_100000:.0f}×",
            ),
            ClaimRow(
                claim="the same again, from the copy beside the store",
                ours="{copy_s_1000:.2f}, {copy_s_10000:.2f}, {copy_s_100000:.2f} s",
                peer="the same",
                last="{copy_1000:,.0f}×, {copy_10000:,.0f}×, {copy_100000:,.0f}×",
            ),
        ),
        notes=(
            "`search_runs` is timed on 10,000 of the 100,000 runs, times ten.",
            "100,000 trials as a DataFrame need {mib_100000:.0f} MiB.",
        ),
    ),
    Claim(
        benchmark="simulator",
        code=(
            "sweeps/simulator/model.py",
            "sweeps/simulator/gradients.py",
            "sweeps/simulator/evidence.py",
            "sweeps/analysis/references.py",
            "workers/contract/messages.py",
            "references/throughput.csv",
            "references/speedups.csv",
        ),
        beside=("sweeps/analysis/__init__.py",),
        rows=(
            ClaimRow(
                claim="published images/s and speed-ups, each left out of what the simulator is fitted to",
                ours="within {left_out_worst:.1%}; median {left_out_median:.2%}, by least squares"
                " {squares_left_out_median:.2%}, with whole systems left out {system_left_out_median:.2%}",
                peer="rows of [references/](references/README.md)",
                peer_figures="that it claims: {rows:.0f}",
                last="{fitted_numbers:.0f} fitted numbers; the model's form was chosen knowing the rows",
            ),
        ),
    ),
    Claim(
        benchmark="intervals",
        code=("workers/measure/steady.py", "workers/measure/student_t.py"),
        rows=(
            ClaimRow(
                claim="95% interval, where it is not withheld, covers the truth, at the defaults",
                ours="{coverage_least:.0%} to {coverage_most:.0%} of traces",
                peer="looking after every step",
                last="{naive_least:.0%} to {naive_most:.0%}",
            ),
        ),
        notes=(
            "The intervals' traces are white, skewed, autocorrelated up to 0.8, begin with staircase warm-ups, or "
            "stall once in 20 or 50 steps, by 1.5 to 3 times; drifts from 3% per 100 steps and two levels are to be "
            "withheld.",
            "A quiet trial at 3% spread takes {steps_first_white_3pct:.0f} steps when it is the first of its cell on "
            "its nodes, and {steps_later_white_3pct:.0f} afterwards; a stall of 1 in 200 goes unseen until it comes.",
        ),
    ),
)
