"""How far the simulator's step times are from published ones that they were not fitted to.

Its 9 numbers (`model.Numbers`) are fitted to the 28 rows of references/ that it claims: every row of throughput.csv,
and tensorflow-horovod's of speedups.csv. Then each row in turn is left out, the numbers are fitted to the others, and
the row is predicted. Every network has three rows or more, so no row is left out that alone determines a number. What
this does not judge: the form of the model and its assumed numbers, which were chosen by people who had seen all rows.

A miss counts by its square up to about 3%, beyond by its size, as the rows are of several years' software: what one of
them is off must not bend all others. `squares` says what least squares give instead.

Whole systems are left out too, but for the reference, to whose software the pace of the others is relative.

    python benchmarks/simulator.py [--write]

With --write the rows and their errors go to references/simulator.csv, which `--simulate` reads.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from scipy.optimize import least_squares

from sweeps.analysis import references
from sweeps.simulator.evidence import FRAMEWORK, KIND
from sweeps.simulator.model import FITTED, KINDS, Numbers, step
from sweeps.spec import plan, sweep_file
from verdicts import conclude
from workers.contract.messages import IMAGE_SIZES, Model, Precision, TrialConfig

FILE = Path(__file__).parents[1] / "references" / "simulator.csv"
GPUS_A_NODE, BATCH = 4, 128  # where speedups.csv doesn't say
ORDINARY = 0.03  # a miss
MODELS = sorted(FITTED.images_per_s)
(TEMPLATE,) = plan.plan(
    sweep_file.parse(
        "{name: simulator, model: tiny, device: gpu, repeats: 1, space: {batch_size: 1, gpus: 1}}", "simulator"
    )
).trials
Loss = Literal["soft_l1", "linear"]


@dataclasses.dataclass(frozen=True)
class FitRow:
    """A published figure: images/s of all GPUs, or how many times those of one GPU."""

    unit: Literal["images/s", "speed-up"]
    kind: str
    model: Model
    precision: Precision
    batch_size: int
    gpus: int
    nodes: int
    published: float

    def predicted(self, numbers: Numbers) -> float:
        rate = self._images_per_s(self.gpus, self.nodes, numbers)
        return rate if self.unit == "images/s" else rate / self._images_per_s(1, 1, numbers)

    def error(self, numbers: Numbers) -> float:
        return self.predicted(numbers) / self.published - 1

    def _images_per_s(self, gpus: int, nodes: int, numbers: Numbers) -> float:
        config = self._config(gpus)
        ranks = [gpus // nodes] * nodes
        return 1e3 * config.global_batch / step(config, KINDS[self.kind], ranks, numbers=numbers).step_ms

    def _config(self, gpus: int) -> TrialConfig:
        return dataclasses.replace(
            TEMPLATE,
            model=self.model,
            precision=self.precision,
            batch_size=self.batch_size,
            gpus=gpus,
            image_size=IMAGE_SIZES[self.model][1],
            classes=1000,
        )


@dataclasses.dataclass(frozen=True)
class FitErrors:
    row: FitRow
    fitted: float  # error, with the numbers fitted to all rows
    left_out: float  # and to all others


def rows() -> list[FitRow]:
    found = [
        FitRow("images/s", KIND[one.system], one.model, one.precision, one.batch_size, one.gpus, one.nodes,
            float(one.images_per_s))
        for one in references.table("throughput").itertuples()
    ]  # fmt: skip
    speedups = references.table("speedups").query(f"framework == {FRAMEWORK!r} and unit == 'gpu'")
    return found + [
        FitRow(
            "speed-up",
            KIND[one.system],
            one.model,
            one.precision,
            BATCH,
            one.n,
            one.n // GPUS_A_NODE,
            float(one.speedup),
        )
        for one in speedups.itertuples()
    ]


def fit(rows: Sequence[FitRow], loss: Loss = "soft_l1") -> Numbers:
    """Return the numbers whose predictions of these rows are nearest, as logarithms of what is predicted over
    published."""

    def misses(values: Sequence[float]) -> list[float]:
        numbers = _numbers(values)
        return [math.log(row.predicted(numbers) / row.published) for row in rows]

    start = [*(math.log(FITTED.images_per_s[model]) for model in MODELS), math.log(FITTED.older), FITTED.sync]
    found = least_squares(misses, start, loss=loss, f_scale=ORDINARY, x_scale=[0.1] * (len(start) - 1) + [0.01])
    return _numbers(found.x.tolist())


def _numbers(values: Sequence[float]) -> Numbers:
    *rates, older, sync = values
    by_model = dict(zip(MODELS, map(math.exp, rates), strict=True))
    return Numbers(images_per_s=by_model, older=math.exp(older), sync=sync)


def judged(rows: Sequence[FitRow], loss: Loss = "soft_l1") -> list[FitErrors]:
    numbers = fit(rows, loss)
    return [FitErrors(row, row.error(numbers), row.error(fit(_without(rows, n), loss))) for n, row in enumerate(rows)]


def _without(rows: Sequence[FitRow], n: int) -> list[FitRow]:
    return [*rows[:n], *rows[n + 1 :]]


def systems_left_out(rows: Sequence[FitRow]) -> dict[str, list[float]]:
    """Errors of all rows of a kind, of which no row was fitted to."""
    kinds = dict.fromkeys(row.kind for row in rows if not KINDS[row.kind].is_latest)
    return {
        kind: [row.error(numbers) for row in rows if row.kind == kind]
        for kind, numbers in ((kind, fit([row for row in rows if row.kind != kind])) for kind in kinds)
    }


def write(found: Sequence[FitErrors], file: Path = FILE) -> None:
    columns = [field.name for field in dataclasses.fields(FitRow)]
    with file.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow([*columns, "fitted_error", "left_out_error"])
        for one in found:
            cells = [getattr(one.row, column) for column in columns]
            table.writerow([*cells, f"{one.fitted:.3f}", f"{one.left_out:.3f}"])


def median(errors: Sequence[float]) -> float:
    return statistics.median(map(abs, errors))


def worst(errors: Sequence[float]) -> float:
    return max(map(abs, errors))


def show(title: str, found: Sequence[FitErrors], key: Callable[[FitRow], str]) -> None:
    print(f"\n{title:<26} rows   fitted: median, worst   left out: median, worst")
    for name in dict.fromkeys(key(one.row) for one in found):
        those = [one for one in found if key(one.row) == name]
        fitted, left = [one.fitted for one in those], [one.left_out for one in those]
        figures = f"{median(fitted):9.1%} {worst(fitted):8.1%} {median(left):15.1%} {worst(left):8.1%}"
        print(f"{name:<26} {len(those):4} {figures}")


def main() -> int:
    every = rows()
    numbers, found = fit(every), judged(every)
    if "--write" in sys.argv[1:]:
        write(found)
    print("numbers:", {name: round(rate, 1) for name, rate in numbers.images_per_s.items()})
    print(f"older {numbers.older:.4f}, sync {numbers.sync:.5f}")
    by_size = sorted(found, key=lambda one: (one.row.model, one.row.gpus))
    show("network, GPUs", by_size, lambda row: f"{row.model}, {row.gpus}")
    show("kind of node", found, lambda row: row.kind)
    show("all", found, lambda row: "all")
    print("\nA whole system left out")
    apart = systems_left_out(every)
    for kind, errors in apart.items():
        print(f"{kind:<26} {len(errors):4} {median(errors):9.1%} {worst(errors):8.1%}")
    squares = [one.left_out for one in judged(every, "linear")]
    left = [one.left_out for one in found]
    figures = {
        "rows": len(found),
        "fitted_numbers": len(MODELS) + 2,
        "fitted_median": median([one.fitted for one in found]),
        "fitted_worst": worst([one.fitted for one in found]),
        "left_out_median": median(left),
        "left_out_worst": worst(left),
        "squares_left_out_median": median(squares),
        "squares_left_out_worst": worst(squares),
        "system_left_out_median": median([error for errors in apart.values() for error in errors]),
        "system_left_out_worst": worst([error for errors in apart.values() for error in errors]),
    }
    return conclude("simulator", figures, {"left_out_median": "<= 0.03", "left_out_worst": "<= 0.1"})


if __name__ == "__main__":
    sys.exit(main())
