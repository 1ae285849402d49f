"""Two frameworks in one sweep: which cells there are, what is refused before anything starts, and that no trials of one
are pooled with those of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from sweeps import analysis, report
from sweeps.analysis import alike, findings
from sweeps.cluster.site import Simulated
from sweeps.errors import InputError
from sweeps.record.ledger import TrialRecord
from sweeps.report.chart import Section, Table
from sweeps.run import preflight
from sweeps.run.terms import Setting, Terms
from sweeps.spec import keys, plan, sweep_file
from sweeps.store import arrays
from tests.unit import planted, studies
from tests.unit.planted import repeats
from workers.checks import node_checkup
from workers.contract.messages import TrialConfig

BOTH = "framework: [tensorflow, torch]"
TEXT = "{{name: x, model: tiny, device: {device}, repeats: 3, space: {{batch_size: [8, 16], gpus: 2, {axes}}}}}"


def text(axes: str = BOTH, device: str = "cpu") -> str:
    return TEXT.format(axes=axes, device=device)


def mistakes(axes: str, more: str = "") -> list[str]:
    with pytest.raises(InputError) as refused:
        sweep_file.parse(text(axes)[:-1] + more + "}", "x")
    return str(refused.value).splitlines()


def cells(**axes: Any) -> set[tuple[Any, ...]]:
    space = {"batch_size": 8, "gpus": 2, "framework": ["tensorflow", "torch"], **axes}
    content = {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1, "space": space}
    made = plan.plan(keys.SweepSpec.model_validate(content)).trials
    found = [(one.framework, *(plan.value(one, name) for name in axes if name != "env"), *one.env) for one in made]
    assert len({*found}) == len(found)
    return {*found}


def test_an_axis_of_one_framework_makes_no_cells_of_the_other() -> None:
    assert cells(xla=[False, True], compile=[False, True]) == {
        ("tensorflow", False, False),
        ("tensorflow", True, False),
        ("torch", False, False),
        ("torch", False, True),
    }
    assert cells(channels_last=[False, True]) == {("tensorflow", False), ("torch", False), ("torch", True)}
    assert cells(fusion_mib=[1.0, 128.0]) == {("tensorflow", 1.0), ("tensorflow", 128.0), ("torch", 128.0)}
    assert cells(env={"HOROVOD_THREAD_AFFINITY": ["1"]}) == {("tensorflow", "HOROVOD_THREAD_AFFINITY"), ("torch",)}


def test_both_have_the_axes_of_both() -> None:
    found = cells(compression=["none", "fp16"], reduction=["overlapped", "grouped"])
    assert len(found) == 8


def test_what_xla_compiles_has_no_reduction_and_torch_has_it() -> None:
    found = cells(xla=[True], reduction=["overlapped", "grouped"])
    assert found == {("tensorflow", True, "overlapped"), ("torch", False, "overlapped"), ("torch", False, "grouped")}


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ("framework: mxnet", "x: space.framework: must be one of tensorflow, torch, but got mxnet"),
        ("framework: torch, xla: on", "x: space.xla: has no effect without framework: tensorflow, but got torch"),
        ("framework: torch, cycle_ms: 2", "x: space.cycle_ms: has no effect without framework: tensorflow"),
        ("compile: on", "x: space.compile: has no effect without framework: torch, but got tensorflow"),
        ("channels_last: [off, on]", "x: space.channels_last: has no effect without framework: torch"),
        (
            "framework: torch, env: {HOROVOD_NUM_NCCL_STREAMS: 2}",
            "x: space.env.HOROVOD_NUM_NCCL_STREAMS: has no effect without framework: tensorflow, but got torch",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(axes: str, says: str) -> None:
    (line,) = mistakes(axes)
    assert line.startswith(says)


def test_a_program_imports_what_it_likes_and_may_have_axes_of_these_names() -> None:
    run = "{name: x, run: 'python train.py --compile {compile}', device: cpu, items: 8, space: {gpus: 1, %s}}"
    with pytest.raises(InputError, match="the program of `run` imports what it likes, but got torch"):
        sweep_file.parse(run % "compile: on, framework: torch", "x")
    trials = plan.plan(sweep_file.parse(run % "compile: [off, on]", "x")).cells.values()
    assert [one.compile for one in trials] == [False, True]


def test_torch_is_not_simulated() -> None:
    with pytest.raises(InputError, match=r"space.framework: can't be simulated with torch"):
        preflight.check_simulated(sweep_file.parse(text(), "x"), "x", Terms(simulate="nodes=1,gpus=2,gpu=v100"))
    preflight.check_simulated(sweep_file.parse(text("xla: on"), "x"), "x", Terms(simulate="nodes=1,gpus=2,gpu=v100"))


class Nodes(Simulated):
    """Nodes that have these versions of torch."""

    def __init__(self, **versions: str) -> None:
        super().__init__(())
        self._versions = versions

    def versions(self, packages: Sequence[str], late: object) -> dict[str, list[str]]:
        assert packages == ["torch"]
        return {node: [version] for node, version in self._versions.items()}


@pytest.mark.parametrize(
    ("device", "versions", "says"),
    [
        ("cpu", {"a": "2.13.0+cpu", "b": "none"}, "must be installed on every node, but not on b: make setup TORCH=1"),
        ("cpu", {"a": "2.13.0", "b": "2.12.1"}, "of one version on every node: make clean setup TORCH=1 installs the"),
        (
            "gpu",
            {"a": "2.13.0+cpu"},
            "must be built with CUDA for device: gpu, but is not on a: make clean setup GPU=1",
        ),
    ],
)
def test_nodes_whose_torch_will_not_do_are_named_before_the_sweep(
    device: str, versions: dict[str, str], says: str
) -> None:
    made = sweep_file.parse(text(device=device), "x")
    with pytest.raises(InputError) as refused:
        preflight.check_torch(made, Setting(Terms(), Nodes(**versions), Console(), "x.yaml"), print)
    assert str(refused.value).startswith("x.yaml: space.framework: torch ")
    assert says in str(refused.value)


def test_nodes_whose_torch_will_do_are_not_and_nobody_is_asked_without_it() -> None:
    for made, nodes in ((text(), Nodes(a="2.13.0+cpu")), (text("xla: on"), Nodes(a="none"))):
        spec = sweep_file.parse(made, "x")
        preflight.check_torch(spec, Setting(Terms(), nodes, Console(), "x.yaml"), print)


def test_a_node_says_its_versions() -> None:
    (ray, none) = node_checkup.versions(["ray", "no-such-package"])
    assert ray[0].isdigit()
    assert none == "none"


def test_runs_of_before_there_were_two_frameworks_are_tensorflow_s() -> None:
    older = pa.table({"param:framework": pa.array([None, "torch"]), "param:compile": pa.array([None, "True"])})
    assert arrays.typed(older, "framework").tolist() == ["tensorflow", "torch"]
    assert arrays.typed(older, "compile").tolist() == [False, True]
    assert arrays.typed(older, "channels_last").tolist() == [False, False]


def with_torch(*softwares: str) -> pd.DataFrame:
    """Torch is twice as fast, whichever the software of its ranks."""
    of_torch = [repeats([200.0, 202.0, 198.0], gpus=2, framework="torch", software=one) for one in softwares]
    return planted.frame(repeats([100.0, 101.0, 99.0], gpus=2), *of_torch)


def test_two_frameworks_are_two_cells_whatever_else_is_equal_and_their_programs_are_no_reason_against_a_ratio() -> None:
    for software in ("tttt", "ssss"):
        table = analysis.cells(with_torch(software))
        assert dict(zip(table["framework"], table["images_per_s"], strict=True)) == {"tensorflow": 100, "torch": 200}
        (row,) = analysis.ratios(with_torch(software), "framework", "tensorflow").to_dict("records")
        assert (row["framework"], row["ratio"]) == ("torch", 2.0)
        assert 0 < row["ratio_ci"] < 0.1
    assert analysis.unlike(analysis.cells(with_torch("tttt"))) == []


def test_two_programs_of_one_framework_stay_apart() -> None:
    table = analysis.cells(with_torch("tttt", "uuuu"))
    assert len(table) == 3
    assert alike.apart(table) == ["software"]
    assert analysis.unlike(table) == []  # its one cell was measured with each

    larger = repeats([300.0, 302.0, 298.0], gpus=4, framework="torch", software="uuuu")
    both = pd.concat([with_torch("tttt"), planted.frame(larger)])
    assert analysis.unlike(analysis.cells(both)) == ["software"]


def test_the_report_holds_torch_against_tensorflow_with_intervals() -> None:
    noise = {0: 0.99, 1: 1.0, 2: 1.01}
    made = studies.planted(text(), lambda one: noise[one.repeat] * (200.0 if one.framework == "torch" else 100.0))
    (found,) = [one for one in findings.find(made).notes if one.rule == "framework"]
    assert found.sureness == "shown"
    assert found.says.startswith("All else equal, torch trains **2.00×** (1.9")
    assert found.says.endswith("as fast as tensorflow: faster in 2, slower in 0 and not told apart in 0 of 2 settings.")
    (section,) = [one for one in report.sections(made) if one.name == "framework"]
    assert section.title == "Frameworks"
    assert found.says in section.lead


NOISE = {0: 0.99, 1: 1.0, 2: 1.01}


def told(axes: str, rate: Callable[[TrialConfig], float]) -> tuple[list[str], Section]:
    """What the findings say of the two frameworks, and the report's section."""
    made = studies.planted(text(axes), lambda one: NOISE[one.repeat] * rate(one))
    said = [one.says for one in findings.find(made).notes if one.rule == "framework"]
    (section,) = [one for one in report.sections(made) if one.name == "framework"]
    assert all(one in section.lead for one in said)
    return said, section


def test_what_one_framework_alone_has_is_named_where_it_goes_along() -> None:
    said, section = told(f"{BOTH}, xla: on", lambda one: 200.0 if one.framework == "torch" else 100.0)
    assert len(said) == 1
    assert said[0].startswith("torch, against tensorflow with xla on, trains **2.00×** (1.9")
    assert said[0].endswith(" as fast: faster in 2, slower in 0 and not told apart in 0 of 2 settings.")
    assert "All else equal" not in section.lead
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [("8", "xla on"), ("16", "xla on")]


def test_each_cell_of_one_framework_is_held_against_each_of_the_other_that_differs_in_what_one_alone_has() -> None:
    rates = {(False, False): 100.0, (True, False): 150.0, (False, True): 300.0}
    said, section = told(f"{BOTH}, xla: [off, on], compile: on", lambda one: rates[one.xla, one.compile])
    assert [one.partition(" (")[0] for one in said] == [
        "torch with compile on, against tensorflow, trains **3.00×**",
        "torch with compile on, against tensorflow with xla on, trains **2.00×**",
    ]
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert len(table.rows) == 4
    said, _ = told(f"{BOTH}, fusion_mib: [1, 64]", lambda one: 200.0 if one.framework == "torch" else 100.0)
    assert [one.partition(" (")[0] for one in said] == [
        "torch, against tensorflow with fusion MiB 1.0, trains **2.00×**",
        "torch, against tensorflow with fusion MiB 64.0, trains **2.00×**",
    ]


def test_that_no_cells_of_the_two_meet_is_said() -> None:
    made = studies.planted(text()[:-1] + ", where: \"(framework == 'torch') == (batch_size == 8)\"}", lambda one: 100.0)
    assert not [one for one in findings.find(made).notes if one.rule == "framework"]
    (section,) = [one for one in report.sections(made) if one.name == "framework"]
    assert section.lead.endswith("No two cells that were measured differ in it alone.")


def test_the_settings_of_one_framework_go_along_with_a_ratio_too() -> None:
    of_torch = repeats([200.0, 202.0, 198.0], gpus=2, framework="torch", compile=True)
    with_xla = repeats([50.0, 51.0, 49.0], gpus=2, xla=True)
    table = planted.frame(repeats([100.0, 101.0, 99.0], gpus=2), with_xla, of_torch)
    found = analysis.ratios(table, "framework", "tensorflow")
    assert {(one["compile"], one["xla_base"], one["ratio"]) for one in found.to_dict("records")} == {
        (True, False, 2.0),
        (True, True, 4.0),
    }


def test_programs_that_tell_cells_of_one_framework_apart_go_along_with_the_framework() -> None:
    """Where the cells of a framework have one each; where a cell has several, each is named."""
    made = studies.planted(text(), lambda one: NOISE[one.repeat] * (200.0 if one.framework == "torch" else 100.0))

    def ran(record: TrialRecord, software: str) -> TrialRecord:
        places = tuple(dataclasses.replace(one, software=software) for one in record.outcome.granted)
        return dataclasses.replace(record, outcome=dataclasses.replace(record.outcome, granted=places))

    def of(one: TrialConfig) -> str:
        return "ssss" if one.framework == "tensorflow" else "tttt" if one.batch_size == 8 else "uuuu"

    each = dataclasses.replace(made, records=tuple(ran(one, of(one.config)) for one in made.records))
    assert "software" in each.axes
    (found,) = [one for one in findings.find(each).notes if one.rule == "framework"]
    assert found.says.startswith("All else equal, torch trains **2.00×**")
    assert found.evidence["compared"] == 2

    again = tuple(ran(one, "vvvv") for one in each.records if of(one.config) == "tttt")
    several = dataclasses.replace(each, records=(*each.records, *again))
    said = [one.says for one in findings.find(several).notes if one.rule == "framework"]
    assert [one.partition(" trains")[0] for one in said] == [
        "All else equal, torch",
        "torch with software tttt, against tensorflow,",
        "torch with software vvvv, against tensorflow,",
    ]


@pytest.mark.parametrize(("axes", "digests"), [(BOTH, {"ssss", "tttt"}), ("xla: on", {"ssss"})])
def test_the_report_shows_the_programs_of_the_frameworks_that_ran(axes: str, digests: set[str]) -> None:
    node = {
        "node": "a",
        "hardware": {"digest": "hhhh"},
        "software": {"digest": "ssss"},
        "torch_software": {"digest": "tttt"},
    }
    made = studies.planted(text(axes), lambda _: 100.0, nodes=(node,))
    (section,) = [one for one in report.sections(made) if one.name == "machines"]
    shown = {
        row[1] for block in section.blocks if isinstance(block, Table) for row in block.rows if row[0] == "fingerprint"
    }
    assert shown == {"hhhh", *digests}
