"""What a report says: the answer, which sections there are, and that nothing of a user's text becomes markup."""

from __future__ import annotations

import csv
import dataclasses
import math
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import analysis, report
from sweeps.analysis.study import Study
from sweeps.record import bottleneck, rows
from sweeps.report import answer, chart, foresight, page
from sweeps.report.chart import Bars, Chart, Scale, Section, Table
from tests.unit import studies
from tests.unit.planted import frame, trial
from workers.contract.messages import TrialConfig, TrialOutcome

BATCHES = """
name: batches
model: resnet50
device: gpu
space: {batch_size: [32, 64, 128], gpus: [1, 2, 4], precision: [fp32, fp16]}
repeats: 3
"""


def rate(config: TrialConfig) -> float:
    """Twice as fast in fp16, 10% lost at each doubling, slightly unlike repeats; the largest batch does not fit."""
    if config.batch_size == 128 and config.precision == "fp32":
        return -1.0
    one = 100 * config.batch_size**0.25 * (2 if config.precision == "fp16" else 1)
    return one * config.gpus * 0.9 ** math.log2(config.gpus) * (1 + 0.001 * config.repeat)


@pytest.fixture(scope="module")
def study() -> Study:
    return studies.planted(BATCHES, rate)


@pytest.fixture(scope="module")
def sections(study: Study) -> list[Section]:
    return report.sections(study)


def names(sections: list[Section]) -> list[str]:
    return [section.name for section in sections]


def blocks(sections: list[Section]) -> dict[str, object]:
    return {getattr(block, "name", ""): block for section in sections for block in section.blocks}


def test_the_first_screen_answers_in_words_and_four_numbers(study: Study) -> None:
    said = answer.find(study)
    assert said.headline.startswith("Batch size 128, 4 GPUs, fp16 trains fastest: ")
    assert "**3.24×** one GPU" in said.lines[0]
    assert "81%" in said.lines[0]
    assert [number.says for number in said.numbers] == [
        "Throughput",
        "Scaling efficiency",
        "An epoch of ImageNet",
        "A step",
    ]
    assert said.numbers[1].value == "81%"


def test_a_lead_within_the_intervals_is_not_called_the_fastest() -> None:
    noisy = studies.planted(BATCHES, lambda config: abs(rate(config)) * (1 + 0.4 * config.repeat))
    said = answer.find(noisy)
    assert "leads, but not clearly" in said.headline
    assert any("can't be told from it" in line for line in said.lines)


def test_ranks_without_cores_of_their_own_are_told_of_with_the_reason() -> None:
    study = studies.planted(BATCHES, rate)
    last = study.records[-1]
    measured = last.outcome.measurement
    assert measured
    loose = tuple(
        dataclasses.replace(rank, pinning_note="they need 9 cores, but 8 are there") for rank in measured.ranks
    )
    outcome = dataclasses.replace(last.outcome, measurement=dataclasses.replace(measured, ranks=loose))
    other = dataclasses.replace(study, records=(*study.records[:-1], dataclasses.replace(last, outcome=outcome)))
    says = "the ranks had no cores of their own: they need 9 cores, but 8 are there."
    assert [says in " ".join(answer.find(one).cares) for one in (study, other)] == [False, True]


def test_a_single_repeat_is_marked() -> None:
    once = studies.planted(BATCHES.replace("repeats: 3", "repeats: 1"), rate)
    said = answer.find(once)
    assert "leads, but not clearly" in said.headline
    assert any("single repeat" in care for care in said.cares)


def test_sections_are_there_where_their_data_exist(sections: list[Section]) -> None:
    assert names(sections) == [
        "scaling",
        "batch",
        "precision",
        "cost",
        "effects",
        "feasibility",
        "trials",
        "ends",
        "again",
    ]
    one = studies.planted("{name: one, model: tiny, device: cpu, space: {batch_size: 8, gpus: 1}, repeats: 1}", rate)
    assert names(report.sections(one)) == ["trials", "again"]


def test_what_nothing_measured_foretells_is_said_and_not_guessed() -> None:
    """Where two ranks fill a node, four show the links between nodes; where four do, nothing of eight is known."""

    def rate(config: TrialConfig) -> float:
        return 1e3 * config.global_batch / (12 + 1.1 * config.batch_size + 0.5 * (config.gpus - 1))

    def of(per_node: int) -> str:
        text = "{name: x, model: tiny, device: cpu, repeats: 1, space: {batch_size: [8, 16, 32], gpus: [1, 2, 4, 8]}}"
        study = studies.planted(text, rate)
        study.trials["nodes"] = -(-study.trials["gpus"] // per_node).astype(float)
        made = foresight.section(study)
        assert made
        return made.lead

    assert of(2).startswith("Step times of up to 4 ranks")
    assert "Nothing is predicted" not in of(2)
    assert of(4).startswith("Nothing is predicted of 3 cells of more than 4 ranks: they depend on links between nodes")


def test_time_to_target_is_drawn_as_throughput_times_statistical_efficiency() -> None:
    """Twice and four times the ranks: 1.8× and 3× the images, 20% and 50% more epochs."""
    text = (
        "{name: x, model: tiny, data: digits, device: cpu, protocol: convergence, epochs: 90, repeats: 1,"
        " target: {top1: 0.9}, space: {batch_size: 8, gpus: [1, 2, 4], lr_schedule: 0.1}}"
    )
    rates, epochs = {1: 100.0, 2: 180.0, 4: 300.0}, {1: 10.0, 2: 12.0, 4: 15.0}
    trials = frame(
        [
            trial(rates[one.gpus], **{**rows.params(one), "epochs_to_target": epochs[one.gpus],
                  "hours_to_target": epochs[one.gpus] / rates[one.gpus],
                  "train_hours_to_target": epochs[one.gpus] / rates[one.gpus]})
            for one in studies.planted(text, lambda config: 1.0).facts.trials
        ]
    )  # fmt: skip
    study = dataclasses.replace(studies.planted(text, lambda config: 1.0), records=(), stored=trials)
    drawn = blocks(report.sections(study))["learning-factors"]
    assert isinstance(drawn, Chart)
    marks = {one.name: [round(mark.y, 4) for mark in one.marks] for one in drawn.panels[0].series}
    assert marks == {
        "speed-up": [1.0, 1.5, 2.0],
        "throughput": [1.0, 1.8, 3.0],
        "statistical efficiency": [1.0, 0.8333, 0.6667],
    }
    assert [mark.x for mark in drawn.panels[0].series[0].marks] == [8, 16, 32]
    assert "3× the images/s, 0.667× the statistical efficiency, together 2× as fast" in drawn.alt


def test_energy_is_drawn_where_power_was_read(study: Study, sections: list[Section]) -> None:
    assert "cost-joules" not in blocks(sections)
    trials = study.trials.assign(joules_per_image=study.trials["gpus"] * 0.5)
    trials.loc[trials["gpus"] == 4, "joules_per_image"] = math.nan
    read = dataclasses.replace(study, records=(), stored=trials[[*analysis.frame([])]])
    found = blocks(report.sections(read))
    drawn, table = found["cost-joules"], found["cost-table"]
    assert isinstance(drawn, Chart)
    assert isinstance(table, Table)
    assert {round(mark.y, 4) for mark in drawn.panels[0].series[0].marks} == {0.6406, 1.2812}
    assert "of 15 cells have no such reading of every node" in drawn.note
    assert table.columns[-1] == "MJ an epoch"


def test_energy_of_gpus_alone_is_drawn_under_its_own_name(study: Study) -> None:
    trials = study.trials.assign(gpu_joules_per_image=study.trials["gpus"] * 0.5)
    read = dataclasses.replace(study, records=(), stored=trials[[*analysis.frame([])]])
    found = blocks(report.sections(read))
    drawn, table = found["cost-joules"], found["cost-table"]
    assert isinstance(drawn, Chart)
    assert isinstance(table, Table)
    assert drawn.title == "Speed against energy of GPUs alone"
    assert drawn.y.label.endswith("of GPUs alone")
    assert table.columns[-1] == "MJ of GPUs"


def test_nothing_measured_is_an_honest_page() -> None:
    unfit = studies.planted(BATCHES, lambda config: -1.0)
    said = answer.find(unfit)
    assert said.headline == "No trial of batches measured anything"
    assert said.numbers == ()
    assert "54 infeasible" in said.lines[0]
    report.html(unfit)
    empty = dataclasses.replace(unfit, records=())
    assert "No trial" in report.html(empty)


def test_the_ideal_line_is_that_of_one_rank(sections: list[Section]) -> None:
    made = blocks(sections)["scaling-best"]
    assert isinstance(made, Chart)
    ideal, measured = made.panels[0].series
    assert [mark.x for mark in measured.marks] == [1, 2, 4]
    assert ideal.marks[-1].y == pytest.approx(4 * measured.marks[0].y)
    assert measured.marks[-1].y == pytest.approx(0.81 * ideal.marks[-1].y)


def test_what_did_not_fit_is_a_cross_and_a_field_of_the_map(sections: list[Section]) -> None:
    curve = blocks(sections)["batch-curve"]
    assert isinstance(curve, Chart)
    crosses = [mark for mark in curve.marks() if mark.is_missing]
    assert {mark.x for mark in crosses} == {128}
    assert all("device memory" in mark.says for mark in crosses)
    fits = blocks(sections)["feasibility-map"]
    assert isinstance(fits, chart.Table)
    assert {row[-1] for row in fits.rows} == {"too large"}
    assert {row[-2] for row in fits.rows} == {"fits"}


def test_precision_ratios_are_those_planted(sections: list[Section]) -> None:
    table = blocks(sections)["precision-ratios"]
    assert isinstance(table, chart.Table)
    ratios = [str(row[-1]) for row in table.rows if row[0] != "128"]
    assert ratios
    assert all(ratio.startswith("2.00×") for ratio in ratios)


def test_every_trial_is_in_the_table_and_in_the_page(study: Study) -> None:
    html = report.html(study)
    assert all(record.config.trial in html for record in study.records)


def test_unlike_machines_are_kept_apart() -> None:
    both = studies.planted(BATCHES, rate, lambda config: "a100" if config.repeat == 2 else "v100")
    assert both.axes[-1] == "hardware"
    assert any("Pooled" in care for care in answer.find(both).cares)
    curve = blocks(report.sections(both))["batch-curve"]
    assert isinstance(curve, Chart)
    assert {"a100" in panel.title for panel in curve.panels} == {True, False}


def test_a_simulated_sweep_says_so_everywhere() -> None:
    small = "{name: small, model: resnet50, device: gpu, space: {batch_size: [32, 64], gpus: [1, 2]}, repeats: 2}"
    study = studies.simulated(small, "nodes=1,gpus=2,gpu=v100")
    html = report.html(study)
    assert 'class="simulated"' in html
    assert "@top-center" in html  # on every sheet of paper
    assert html.count('class="plot"') == html.count('class="stamp"') > 0
    assert "(simulated)</title>" in html
    assert any("simulated" in care for care in answer.find(study).cares)
    assert "--simulate nodes=1,gpus=2,gpu=v100" in html
    assert "simulated" not in report.html(studies.planted(small, rate)).split("</style>")[1].lower()


class Tags(HTMLParser):
    VOID = frozenset({"meta", "link", "input", "br"})
    OPEN = frozenset({"td", "th", "tr", "tbody", "thead"})  # that need no end

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        assert not any(name.startswith("on") for name, _ in attrs)
        assert not any((value or "").startswith(("http", "//")) for name, value in attrs if name in ("src", "href"))
        if tag not in self.VOID | self.OPEN:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.OPEN:
            assert self.stack.pop() == tag


def test_text_of_a_user_never_becomes_markup(study: Study) -> None:
    evil = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(1)> **`&amp;"
    failed = TrialOutcome(status="failed", kind="<b>kind</b>", message=evil)
    first = dataclasses.replace(study.records[0], outcome=failed)
    facts = dataclasses.replace(study.facts, file=f"{study.facts.file}# {evil}\n", overrides=(f"name={evil}",))
    object.__setattr__(facts, "spec", study.facts.spec)
    html = report.html(Study(facts, (first, *study.records[1:])))
    tags = Tags()
    tags.feed(html)
    assert tags.stack == []
    assert tags.scripts == 1
    assert "<img" not in html
    assert "&lt;img src=x" in html


def test_figures_as_files(study: Study, tmp_path: Path) -> None:
    folder = report.written(study, tmp_path / "csv", "csv")
    with (folder / "efficiency.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["GPUs"] for row in rows} == {"1", "2", "4"}
    assert all(row["efficiency"] == "81.0%" for row in rows if row["GPUs"] == "4")
    drawn = report.written(study, tmp_path / "png", "png")
    pictures = list(drawn.glob("*.png"))
    assert {"scaling-best.png", "efficiency.png", "cost-front.png"} <= {path.name for path in pictures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


reals = st.floats(1e-3, 1e6)


@given(st.lists(reals, min_size=1, max_size=20), st.sampled_from(["linear", "log"]))
def test_every_value_is_on_its_scale(values: list[float], kind: chart.Kind) -> None:
    scale = Scale("x", kind)
    low, high = chart.extent(scale, values)
    assert low <= min(values)
    assert max(values) <= high
    ticks = chart.ticks(scale, low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert len({chart.written(tick) for tick in ticks}) == len(ticks) or high / low < 1.2


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00"), (40, "0:40"), (90, "1:30"), (5400, "1:30:00"), (86_400, "24:00:00")]
)
def test_times_on_a_scale(seconds: float, said: str) -> None:
    assert chart.written(seconds, "time") == said


def test_strong_words_and_code_are_all_the_markup_there_is() -> None:
    assert page.rich("**a** `b` <c> 1 ± 2") == "<strong>a</strong> <code>b</code> &lt;c&gt; 1\u00a0±\u00a02"


def test_the_bar_named_overlapped_is_overlap_share_and_its_words_have_the_interval() -> None:
    """Some of vgg16's reduction hides by the simulator's model; of a grouped one, nothing."""
    text = """
name: hiding
model: vgg16
device: gpu
space: {batch_size: 64, gpus: [8], reduction: [overlapped, grouped]}
repeats: 3
steps: {warmup: 10, measured: 200}
"""
    study = studies.simulated(text, "nodes=2,gpus=4,gpu=v100,noise=0.01")
    sections, html = report.sections(study), report.html(study)
    found = blocks(sections)
    bars, limits_table = found["steps-cells"], found["steps-limits"]
    assert isinstance(bars, Bars)
    assert isinstance(limits_table, Table)
    at = bars.parts.index("overlapped")
    assert limits_table.columns[-2:] == ("overlapped", "limited by")
    for (_, cell), (_, shares, words, _), line in zip(
        study.measured.iterrows(), bars.rows, limits_table.rows, strict=True
    ):
        share, within = float(cell["overlap_share"]), float(cell["overlap_share_ci"])
        assert shares[at] == share
        assert words[at] == f"{share:.0%} ± {within:.0%}"
        assert line[-2] == bottleneck.overlapped(bottleneck.Share(share, within))
        assert shares[0] + share == pytest.approx(float(cell["compute_share"]))
        assert sum(shares) == pytest.approx(1)
        assert f"overlapped {words[at]}" in html
    assert f"above zero in 1 of {len(bars.rows)} cells" in next(
        section.lead for section in sections if section.name == "steps"
    )


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=5))
def test_the_parts_of_a_bar_fill_it_and_keep_their_proportions(shares: list[float]) -> None:
    wide = chart.widths(shares)
    assert sum(wide) == pytest.approx(1 if any(share > 0 for share in shares) else 0)
    whole = sum(max(share, 0) for share in shares)
    assert [width * whole for width in wide] == pytest.approx([max(share, 0) for share in shares])
