"""The simulator's fitted numbers and its error on figures that they were not fitted to, and what is told of it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

import simulator as benchmark
from sweeps import report
from sweeps.analysis import findings
from sweeps.run import preview
from sweeps.run.terms import Terms
from sweeps.simulator import evidence
from sweeps.simulator.model import FITTED, Numbers
from tests.unit import studies
from tests.unit.simulations import trial

ROOT = Path(__file__).parents[2]
ROWS = benchmark.rows()


@pytest.fixture(scope="module")
def judged() -> Any:
    return benchmark.judged(ROWS)


def values(numbers: Numbers) -> list[float]:
    return [*(numbers.images_per_s[model] for model in sorted(numbers.images_per_s)), numbers.older, numbers.sync]


def test_the_model_s_numbers_are_those_that_the_published_rows_give() -> None:
    assert len(ROWS) == 28
    assert values(benchmark.fit(ROWS)) == pytest.approx(values(FITTED), rel=0.002)


def test_rows_that_a_model_made_give_back_its_numbers() -> None:
    planted = Numbers(
        images_per_s={model: 1.1 * rate for model, rate in FITTED.images_per_s.items()}, older=1.2, sync=0.02
    )
    made = [dataclasses.replace(row, published=row.predicted(planted)) for row in ROWS]
    assert values(benchmark.fit(made)) == pytest.approx(values(planted), rel=0.001)


def test_a_row_left_out_is_predicted_within_ten_percent_and_half_of_them_within_three(judged: Any) -> None:
    errors = [abs(one.left_out) for one in judged]
    assert max(errors) <= 0.10
    assert statistics.median(errors) <= 0.03


def test_no_number_hangs_on_one_row() -> None:
    for model in FITTED.images_per_s:
        assert sum(row.model == model for row in ROWS) >= 3
    assert len({row.kind for row in ROWS if row.kind != "v100"}) >= 2
    assert sum(row.gpus > 1 for row in ROWS) >= 2


def test_a_row_that_is_far_off_shows_and_does_not_bend_the_others() -> None:
    n = next(n for n, row in enumerate(ROWS) if (row.kind, row.model, row.gpus) == ("v100-k", "resnet50", 8))
    wrong = [*ROWS[:n], dataclasses.replace(ROWS[n], published=1.5 * ROWS[n].published), *ROWS[n + 1 :]]

    def bent(loss: str) -> float:
        """By how much another row's prediction moves, at most."""
        numbers = benchmark.fit(wrong, loss)
        return max(abs(row.predicted(numbers) / row.predicted(FITTED) - 1) for row in ROWS if row is not ROWS[n])

    assert wrong[n].error(benchmark.fit(wrong)) == pytest.approx(1 / 1.5 - 1, abs=0.03)
    assert bent("soft_l1") < 0.03 < bent("linear")


def test_the_file_has_the_errors_that_the_benchmark_finds(judged: Any) -> None:
    with evidence.FILE.open() as lines:
        written = list(csv.DictReader(lines))
    assert len(written) == len(judged)
    for row, one in zip(written, judged, strict=True):
        assert (row["kind"], row["model"], int(row["gpus"])) == (one.row.kind, one.row.model, one.row.gpus)
        assert float(row["published"]) == one.row.published
        assert float(row["fitted_error"]) == pytest.approx(one.fitted, abs=0.0011)
        assert float(row["left_out_error"]) == pytest.approx(one.left_out, abs=0.0011)


OURS = [
    evidence.PublishedFigure(
        unit="images/s", kind="v100", model="resnet50", precision="fp16", batch_size=128, gpus=8, left_out=e
    )
    for e in (0.01, -0.03, 0.02)
]


def test_a_trial_that_is_judged_is_told_how_well() -> None:
    (line,) = evidence.summary_lines([trial(gpus=8)], "v100", OURS)
    assert "resnet50" in line
    assert "within 3% (median 2.0%)" in line


def test_where_the_model_does_not_hold_it_says_so() -> None:
    off = dataclasses.replace(OURS[0], kind="v100-k", left_out=-0.18)
    told = list(evidence.summary_lines([trial(gpus=8)], "v100", [*OURS, off]))
    assert told[1] == "! the model does not hold for resnet50 on 8 GPUs of v100-k (-18%)"
    assert len(list(evidence.summary_lines([trial(gpus=8)], "v100", OURS))) == 1


def test_a_network_that_is_met_to_three_percent_only_by_the_lesser_half_is_named() -> None:
    off = [
        dataclasses.replace(row, model="vgg16", left_out=e) for row, e in zip(OURS, (0.01, -0.04, 0.05), strict=True)
    ]
    told = list(evidence.summary_lines([trial(gpus=8), trial("vgg16", gpus=8)], "v100", [*OURS, *off]))
    assert told[1] == "! the model does not hold to 3% in the median for vgg16 (4.0%)"


def test_the_networks_that_are_named_are_those_whose_computed_median_is_above_three_percent(judged: Any) -> None:
    networks = sorted(FITTED.images_per_s)
    (told,) = (
        line for line in evidence.summary_lines([trial(name, gpus=8) for name in networks], "v100", evidence.rows())
        if "in the median" in line
    )  # fmt: skip
    off = {name: [abs(one.left_out) for one in judged if one.row.model == name] for name in networks}
    assert [name for name in networks if statistics.median(off[name]) > 0.03] == [
        name for name in networks if f"{name} (" in told
    ]


def _percents(text: str) -> list[float]:
    return [float(one) / 100 for one in re.findall(r"([0-9.]+)%", text)]


@pytest.mark.parametrize(("page", "has_fitted"), [("README.md", False), ("references/README.md", True)])
def test_both_pages_say_what_is_computed_by_network_and_gpus(judged: Any, page: str, has_fitted: bool) -> None:
    text = (ROOT / page).read_text()
    table = re.findall(r"^\| (\w+) \| (\d*) ?\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    groups = [(one.row.model, str(one.row.gpus)) for one in judged]
    assert sorted((name, gpus) for name, gpus, _, _ in table) == sorted({*groups, ("all", "")})
    for name, gpus, rows, errors in table:
        those = [one for one in judged if name == "all" or (one.row.model, str(one.row.gpus)) == (name, gpus)]
        fitted, left = [one.fitted for one in those], [one.left_out for one in those]
        median, worst = benchmark.median, benchmark.worst
        assert int(rows) == len(those)
        computed = [median(left), worst(left)]
        computed = [median(fitted), worst(fitted), *computed] if has_fitted else computed
        assert _percents(errors) == pytest.approx(computed, abs=0.0011), (name, gpus)


def test_the_page_says_what_is_computed_by_all_three_ways_of_leaving_out(judged: Any) -> None:
    page = (ROOT / "references" / "README.md").read_text()
    named = re.search(r"Where 3% does not hold:(.*?) by themselves", page, re.DOTALL)
    assert named
    plain = [name.lower() for name in re.findall(r"[A-Z]\w+(?:-\w+)?", named[1])]
    errors_of = {name: [one.left_out for one in judged if one.row.model == name] for name in FITTED.images_per_s}
    loose = [name for name, errors in errors_of.items() if benchmark.median(errors) > 0.03]
    assert [name.replace("-", "_").replace("vgg_", "vgg") for name in plain] == sorted(loose)
    squares = [one.left_out for one in benchmark.judged(ROWS, "linear")]
    said = re.search(r"with plain least squares.*?\(worst [0-9.]+%\)", page, re.DOTALL)
    assert said
    assert _percents(said[0])[-2:] == pytest.approx([benchmark.median(squares), benchmark.worst(squares)], abs=0.0011)
    apart = benchmark.systems_left_out(ROWS)
    said = re.search(r"With all rows of a system left out.*?median of all [0-9.]+%", page, re.DOTALL)
    assert said
    computed = [*map(benchmark.worst, apart.values()), benchmark.median([e for es in apart.values() for e in es])]
    assert _percents(said[0]) == pytest.approx(computed, abs=0.0011)


@pytest.mark.parametrize(
    ("config", "kind", "unjudged"),
    [
        (trial("resnet101", gpus=8), "v100", ["images/s on v100 of resnet101"]),
        (trial("vgg16", gpus=8), "p100", ["images/s on p100 of vgg16"]),
        (trial(gpus=16), "v100", ["images/s on v100 of resnet50 in fp16 on 16 GPUs"]),
        (trial(gpus=1), "v100", ["images/s on v100 of resnet50 in fp16 on 1 GPU"]),
        (trial(gpus=1), "p100", []),
        (trial(gpus=8, precision="fp32"), "v100", ["images/s on v100 of resnet50 in fp32"]),
        (
            trial(gpus=32, precision="fp32"),
            "v100-pcie",
            ["images/s on v100-pcie of resnet50 (its speed-up on 32 GPUs in fp32 is judged)"],
        ),
        (trial(gpus=8), "v100-pcie", ["images/s on v100-pcie of resnet50"]),
        (trial(gpus=8, batch_size=64), "v100", ["batches other than 128 a GPU"]),
        (trial(gpus=8, image_size=160), "v100", ["images of 160 pixels for resnet50"]),
        (trial(gpus=8, optimizer="lars"), "v100", ["optimizer: lars"]),
        (trial(gpus=8, protocol="convergence"), "v100", ["how a network learns (protocol: convergence)"]),
        (trial(gpus=8, xla=True), "v100", ["xla"]),
        (trial(gpus=8, compression="fp16"), "v100", ["compression"]),
        (trial(gpus=8, reduction="grouped"), "v100", ["reduction: grouped"]),
        (trial(gpus=8, data="data/imagenet"), "v100", ["the decoding of JPEGs"]),
        (
            trial(gpus=1024, precision="fp32"),
            "v100",
            [
                "images/s on v100 of resnet50 in fp32",
                "any network on more than 32 GPUs (1024 GPUs: as the model, fitted to fewer, goes on)",
            ],
        ),
        (dataclasses.replace(trial(), device="cpu"), "v100", ["ranks on processors"]),
        (trial(), "none", ["nodes without GPUs"]),
    ],
)
def test_what_no_published_figure_judges_is_named(config: Any, kind: str, unjudged: list[str]) -> None:
    """By the published rows themselves; beside a trial that they judge, it is named as well."""
    assert list(evidence.unjudged([config], kind, evidence.rows())) == unjudged
    if kind == "v100":
        assert list(evidence.unjudged([trial(gpus=8), config], kind, evidence.rows())) == unjudged
    told = list(evidence.summary_lines([config], kind, evidence.rows()))
    assert (told[-1:] == [f"! no published figure judges {'; '.join(unjudged)}"]) is bool(unjudged)


def test_each_row_judges_its_own_network_precision_gpus_and_kind_and_no_other_s() -> None:
    for row in evidence.rows():
        of_row = trial(row.model, row.batch_size, row.gpus, precision=row.precision)  # type: ignore[arg-type]
        said = " ".join(evidence.unjudged([of_row], row.kind, evidence.rows()))
        assert said == "" if row.unit == "images/s" else "its speed-up on 32 GPUs" in said
    assert list(evidence.unjudged([trial("resnet50", gpus=8), trial("vgg16", gpus=8)], "p100", evidence.rows())) == [
        "images/s on p100 of vgg16"
    ], "another network that is judged there does not stand for it"


SCALING = ROOT / "search_spaces" / "scaling.yaml"
ON_V100 = (
    "no published figure judges images/s on v100 of resnet50 in fp16 on 1, 2, 4, 16 and 32 GPUs, resnet50 in fp32;"
    " batches other than 128 a GPU"
)


def test_readme_s_own_simulation_says_that_half_of_its_cells_are_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    preview.preview(SCALING, (), Terms(simulate="nodes=8,gpus=4,gpu=v100"), "table")
    told = capsys.readouterr().out
    assert "left out of what the model is fitted to" in told
    assert f"! {ON_V100}\n" in told


@pytest.mark.parametrize("search", ["frontier", "tpe", "random"])
def test_a_search_that_is_simulated_says_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], search: str
) -> None:
    file = tmp_path / "sweep.yaml"
    more = "" if search == "frontier" else ", trials: 2"
    file.write_text(
        f"{{name: x, model: resnet50, device: gpu, repeats: 1, search: {{method: {search}{more}}},"
        " space: {batch_size: [64, 128], gpus: 16, precision: fp32}}"
    )
    preview.preview(file, (), Terms(simulate="nodes=4,gpus=4,gpu=v100"), "table")
    assert (
        "! no published figure judges images/s on v100 of resnet50 in fp32; batches other than 128 a GPU\n"
        in capsys.readouterr().out
    )


def test_a_plan_for_programs_has_what_is_not_judged_in_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("{name: x, model: resnet50, device: gpu, repeats: 1, space: {batch_size: [64, 128], gpus: 8,"
                    " precision: fp16}}")  # fmt: skip
    there = Terms(simulate="nodes=2,gpus=4,gpu=v100")
    expected = {64: "batches other than 128 a GPU", 128: ""}
    preview.preview(file, (), there, "json")
    assert {row["batch_size"]: row["unjudged"] for row in json.loads(capsys.readouterr().out)} == expected
    preview.preview(file, (), there, "csv")
    told = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert {int(row["batch_size"]): row["unjudged"] for row in told} == expected
    preview.preview(file, (), Terms(), "json")
    assert "unjudged" not in capsys.readouterr().out, "nothing is simulated"


def test_the_report_of_a_simulated_sweep_and_its_run_say_what_is_not_judged() -> None:
    text = "{name: x, model: resnet50, device: gpu, repeats: 2, space: {batch_size: 64, gpus: [1, 8], precision: fp16}}"
    made = studies.simulated(text, "nodes=2,gpus=4,gpu=v100")
    says = "no published figure judges images/s on v100 of resnet50 in fp16 on 1 GPU; batches other than 128 a GPU"
    found = findings.find(made)
    assert says in [one.says for one in found.doubts if one.rule == "simulated"]
    assert says in report.html(made)
    concluded = report.concluded(made)
    assert says in concluded.markdown
    assert says in concluded.findings
    stored = dataclasses.replace(made, stored=made.trials.drop(columns=["name", "attempts", "cached_from"]), records=())
    assert says in [one.says for one in findings.find(stored).doubts]
