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

    `code` are the files and folders of which a change may move the figures, beside the benchmark's own script. Whatever
    else of the project the script imports or starts, and what that imports in turn, lies in `beside` or in BESIDE: it
    says what is measured or reads it back, and takes no part in it. A test follows all imports and holds this.

    What runs in ranks is named whole: the product itself takes a trial for another's only where all of `workers/` is
    the same.
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
BESIDE = ("sweeps/__init__.py", "sweeps/errors.py", "sweeps/spec", "sweeps/text", "benchmarks/verdicts.py")
# What carries out a sweep: from what is next to a trial's ranks, and back to the ledger.
RUNNING = ("sweeps/run", "sweeps/scheduling", "sweeps/cluster", "sweeps/record")
# What is there for whoever starts a sweep, and whoever looks at it or reads of it afterwards.
AROUND = ("sweeps/analysis", "sweeps/cli", "sweeps/report", "sweeps/simulator", "sweeps/store")

# What forks gangs without Ray.
OF_GANGS = (
    "tests/integration/bad_ranks.py",
    "tests/integration/gangs.py",
    "tests/unit/records.py",
    "sweeps/record/ledger.py",
    "workers/launch/supervisor.py",
    "workers/launch/fork_server.py",
    "workers/contract/paths.py",
    "workers/strategies/rendezvous.py",
)

CLAIMS = (
    Claim(
        benchmark="launch",
        code=(
            "workers",
            *RUNNING,
            "benchmarks/ours.py",
            "benchmarks/ready.py",
            "benchmarks/peers.py",
        ),
        beside=AROUND,
        rows=(
            ClaimRow(
                claim="start 2 ranks, TensorFlow and Horovod ready",
                ours="{median_s:.2f} s, median of {trials:.0f} in {rounds:.0f} rounds",
                peer="`horovod.ray.RayExecutor`",
                peer_figures="{ray_executor_s:.2f} s",
                last="{speedup_over_ray_executor:.0f}×"
                " ({speedup_over_ray_executor_least:.0f} to {speedup_over_ray_executor_most:.0f})",
            ),
            ClaimRow(
                peer="Ray V1 `HorovodTrainer`",
                peer_figures="{horovod_trainer_s:.2f} s",
                last="{speedup_over_horovod_trainer:.0f}×"
                " ({speedup_over_horovod_trainer_least:.0f} to {speedup_over_horovod_trainer_most:.0f})",
            ),
        ),
    ),
    Claim(
        benchmark="parity",
        code=(
            "workers",
            *RUNNING,
            "sweeps/analysis/means.py",
            "sweeps/store",
            "benchmarks/ours.py",
            "benchmarks/plain.py",
            "benchmarks/step_counter.py",
        ),
        beside=AROUND,
        rows=(
            ClaimRow(
                claim="images/s of a trial on JPEGs over the best plain loop under `horovodrun`: both ranks on one"
                " core, all else on the other",
                ours="{apart_ratio:.3f} ({apart_low:.3f} to {apart_high:.3f}), {apart_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{apart_plain_images_per_s:,.0f} images/s",
                last="median {apart_median:.3f} of {apart_trials:.0f} trials",
            ),
            ClaimRow(
                claim="the same with everything on both of the machine's cores",
                ours="{among_ratio:.3f} ({among_low:.3f} to {among_high:.3f}), {among_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{among_plain_images_per_s:,.0f} images/s",
                last="median {among_median:.3f} of {among_trials:.0f}",
            ),
            ClaimRow(
                claim="the same on both cores without an input: a batch in memory, so that steps are computing and"
                " reducing alone",
                ours="{computing_ratio:.3f} ({computing_low:.3f} to {computing_high:.3f}),"
                " {computing_ours_images_per_s:,.0f} images/s",
                peer="the plain loop",
                peer_figures="{computing_plain_images_per_s:,.0f} images/s",
                last="median {computing_median:.3f} of {computing_trials:.0f}",
            ),
            ClaimRow(
                claim="images/s of a user's own script in a sweep, the plain loop with its one line more, over the same"
                " script started by hand under `horovodrun`: both cores, a batch in memory",
                ours="{script_ratio:.3f} ({script_low:.3f} to {script_high:.3f}),"
                " {script_ours_images_per_s:,.0f} images/s",
                peer="the script by hand",
                peer_figures="{script_plain_images_per_s:,.0f} images/s",
                last="median {script_median:.3f} of {script_trials:.0f}",
            ),
        ),
        notes=(
            "Parity is measured as an ordinary user, at equal niceness, by a trial's own `images_per_s`. Both sides"
            " take turns of one second; only a side's own turns count. The plain loop against itself gives"
            " {itself_ratio:.3f} ({itself_low:.3f} to {itself_high:.3f}). Input pipeline and network are the project's"
            " own code in both, so what these cost does not show; the step, its reduction, the optimizer, the loop and"
            " the launch are each side's own.",
            "Ours is `sweep run` as a user has it: what runs beside its ranks (driver with its live table, what writes"
            " to MLflow on SQLite, Ray, supervisors) takes at most {among_beside_a_core:.1%} of a core in the median"
            " trial.",
            "The plain loop is the best of three: reducing each gradient by itself {plain_each:,.0f} images/s, all as"
            " one group {plain_grouped:,.0f}, by Horovod's `DistributedGradientTape` {plain_tape:,.0f}.",
        ),
    ),
    Claim(
        benchmark="agreement",
        code=(
            "workers",
            *RUNNING,
            "sweeps/analysis/means.py",
            "sweeps/store",
        ),
        beside=AROUND,
        rows=(
            ClaimRow(
                claim="cells whose 95% intervals agree when the same sweep runs twice",
                ours="{cells_agreeing:.0%} of {cells:.0f}; but {repeats:.0f} repeats leave a cell"
                " ± {median_half_width:.1%} in the median, and cells that differ by less agree too",
                last="two means are {errors_apart:.2f} standard errors apart: about 1 where intervals hold, 0.5 where"
                " they are twice too wide",
            ),
            ClaimRow(
                claim="the same of the first repeats alone, as many as a sweep has that names no number",
                ours="{default_cells_agreeing:.0%}; {default_repeats:.0f} repeats leave a cell"
                " ± {default_median_half_width:.1%} in the median",
                peer="the same",
                peer_figures="{default_unlike_cells_agreeing:.0%}",
            ),
            ClaimRow(
                claim="trials whose own 95% interval, of their window alone, agrees with their cell's other repeats",
                ours="{trials_agreeing:.0%} of {trials_shown:.0f}; a trial ± {trials_median_half_width:.1%} in the"
                " median",
                peer="were each trial taken to be exact",
                peer_figures="{exact_trials_agreeing:.0%}",
            ),
        ),
    ),
    Claim(
        benchmark="causes",
        code=(
            "workers",
            "sweeps/record/bottleneck.py",
            "tests/integration/late_ranks.py",
            "tests/integration/late_script.py",
            "tests/integration/turns.py",
        ),
        beside=(
            "sweeps/record",
            "tests/integration",
            "tests/unit/records.py",
        ),
        rows=(
            ClaimRow(
                claim="what a trial says that a real cause takes of a step (images that come late, or take the ranks'"
                " cores to decode, a heavier network, a long cycle of Horovod's; a user's script that loads late, or"
                " reduces late), beside what removing it gives in a"
                " run of its own",
                ours="within 5 points in {least_near:.0%} to {most_near:.0%} of {runs:.0f} runs of each of"
                " {causes:.0f} causes; the planted part named in {named:.0%} of all, another one in {misnamed:.0f}",
                peer="the run without the cause, in turns of a second",
                last="median {median_off:.1%}, worst {worst_off:.1%} of a step off",
            ),
        ),
    ),
    Claim(
        benchmark="link",
        code=(
            "workers",
            "sweeps/record",
            "tests/cluster/hosts.py",
            "tests/integration/late_ranks.py",
            "tests/integration/turns.py",
        ),
        beside=(
            *AROUND,
            "sweeps/cluster",
            "sweeps/run",
            "sweeps/scheduling",
            "tests/cluster",
            "tests/integration",
            "tests/unit/records.py",
        ),
        rows=(
            ClaimRow(
                claim="the same of communication over a throttled link between two hosts of network namespaces",
                ours="within 5 points in {near:.0%} of {runs:.0f} runs",
                peer="the same ranks, each training alone, in turns of seconds",
                last="median {median_off:.1%}, worst {worst_off:.1%} of a step off; the throttle takes"
                " {least_throttle:.0%} to {most_throttle:.0%} of a step",
            ),
        ),
    ),
    Claim(
        benchmark="overlap",
        code=(
            "workers",
            "sweeps/record",
            "tests/cluster/hosts.py",
        ),
        beside=(
            *AROUND,
            "sweeps/cluster",
            "sweeps/run",
            "sweeps/scheduling",
            "tests/cluster",
        ),
        rows=(
            ClaimRow(
                claim="images/s with gradients reduced beside the backward pass: VGG-16 on two such hosts, over a link"
                " so slow that reducing takes about half a step",
                ours="{images_per_s:.1f} images/s; {overlap_share:.1%} of a step is overlapped, at least"
                " {overlap_share_low:.1%}; what more of the reduction hides than there is"
                " {hidden_over_gain:.2f} of what is gained ({hidden_over_gain_low:.2f} to {hidden_over_gain_high:.2f})",
                peer="grouped, behind it",
                peer_figures="{grouped_images_per_s:.1f}, {grouped_comm_share:.0%} of a step",
                last="{gain:+.1%}, at least {gain_low:+.1%}; {repeats:.0f} repeats at {mbit:,.0f} Mbit/s",
            ),
        ),
    ),
    Claim(
        benchmark="input",
        code=(
            "workers/inputs",
            "workers/node",
            "sweeps/analysis/means.py",
        ),
        beside=(
            "sweeps/analysis",
            "sweeps/record",
            "workers/contract",
            "workers/measure",
            "workers/strategies",
        ),
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
                peer_figures="{tfdata_images_per_s:,.0f}",
                last="{over_tfdata:.2f}× ({over_tfdata_low:.2f} to {over_tfdata_high:.2f})",
            ),
            ClaimRow(
                claim="the same of a thread that decodes for ranks of other frameworks, without TensorFlow",
                ours="{plain_images_per_s:,.0f}",
                peer="libjpeg-turbo decoding alone",
                peer_figures="{turbo_images_per_s:,.0f}",
                last="{plain_over_turbo:.2f}× ({plain_over_turbo_low:.2f} to {plain_over_turbo_high:.2f})",
            ),
        ),
    ),
    Claim(
        benchmark="packing",
        code=(
            "sweeps/scheduling",
            "sweeps/spec/arrangements.py",
            "benchmarks/bound.py",
            "benchmarks/tune_order.py",
        ),
        beside=(
            "sweeps/record",
            "workers/contract",
            "workers/measure",
        ),
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
            "sweeps",
            "workers",
            "search_spaces/demo.yaml",
            "benchmarks/instant.py",
        ),
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
                last="{measuring_share:.0%} of its time is measuring, {window_share:.0%} in the windows",
            ),
        ),
    ),
    Claim(
        benchmark="tracking",
        code=(
            "sweeps/run/tracker.py",
            "sweeps/store",
            "sweeps/record",
            "workers/contract",
            "benchmarks/query.py",
        ),
        beside=(
            "sweeps/analysis",
            "sweeps/scheduling",
            "workers/measure",
        ),
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
            "sweeps/store",
            "sweeps/record",
            "sweeps/analysis/frames.py",
        ),
        beside=(
            "sweeps/analysis",
            "workers/contract",
            "workers/measure",
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
            "sweeps/simulator",
            "sweeps/analysis/references.py",
            "workers/contract/messages.py",
            "references/throughput.csv",
            "references/speedups.csv",
        ),
        beside=(
            "sweeps/analysis",
            "sweeps/record",
            "workers/contract",
            "workers/measure",
            "workers/node",
        ),
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
        code=("workers/measure", "workers/contract/messages.py"),
        rows=(
            ClaimRow(
                claim="95% interval of drawn traces, where it is not withheld, covers their true mean, at the defaults",
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
            "Bounds of the intervals' families: at most 8% of trials wrong and unflagged, 92% to 97% covered. They are "
            "looser for stalls of 1 in 50 steps, or of 1 in 20 by 1.5 times, that begin after calm trials: 11%, 16% "
            "of the trials behind the change, and 88% covered; the trial right behind the change has no bound.",
            "Of traces that stall once in 100 or in 200 steps, by 2 times, {coverage_stall_100_x2:.0%} and "
            "{coverage_stall_200_x2:.0%} are covered: these have no bound.",
            "Where a machine changes behind calm trials, of the trials since then are wrong and not withheld: of "
            "stalls of 1 in 50 by 2 times {wrong_changed_calm_then_stall_50_x2:.0%}, by 3 times "
            "{wrong_changed_calm_then_stall_50_x3:.0%}, of 1 in 20 by 2 times "
            "{wrong_changed_calm_then_stall_20_x2:.0%}; of drifts of 3% in 100 steps "
            "{wrong_changed_calm_then_drift_3:.0%}, of 5% {wrong_changed_calm_then_drift_5:.0%}.",
        ),
    ),
)
