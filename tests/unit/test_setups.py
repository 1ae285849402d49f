"""How a sweep here differed from what its table states: one line for each setting, and which rows are as printed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from sweeps.analysis import publication, reproduction, setups
from sweeps.analysis.publication import PublishedTable
from sweeps.analysis.reproduction import Held
from sweeps.record import rows
from sweeps.spec import keys
from tests.unit.planted_tables import NODES, planted, sweep_of, table
from workers.contract.messages import TrialConfig

STATED_FILES = """\
model,device,data,batch_size,gpus,placement,images_per_s,data_files,arrangement
tiny,cpu,data/demo,8,1,pack,300,ffff,1x1
tiny,cpu,data/demo,8,4,spread,1000,ffff,2x2
"""


@pytest.mark.parametrize(
    ("side", "here", "override", "why"),
    [
        ("data_files", "0000", "data=data/other", "other files of data: ffff in the table, 0000 here"),
        ("arrangement", "1x3+1x1", "placement=pack", "other nodes x ranks: 2x2 in the table, 1x3+1x1 here"),
    ],
)
def test_a_row_of_other_files_or_otherwise_on_nodes_than_its_table_states_is_not_compared(
    side: str, here: str, override: str, why: str
) -> None:
    found = table(STATED_FILES)

    def measured(*overrides: str, **facts: str) -> tuple[Held, str, list[str]]:
        """The second row, both met; what the set-up says of this; and how the second ran otherwise than stated."""
        asked, trials = sweep_of(found, *overrides), []
        for row in found.rows:
            config = reproduction.cell_of(row.settings, asked)
            assert isinstance(config, TrialConfig)
            of_row = {"data_files": facts.get("data_files", row.data_files), "arrangement": row.arrangement}
            if row.arrangement != "1x1":
                of_row |= facts
            trials += planted(config, [row.value * 0.999, row.value, row.value * 1.001], **of_row)
        judged = reproduction.reproduce(found, asked, trials, set(), 0.05)
        told = {one.what: one.likeness for one in setups.aspects(found, judged, asked, (), None)}
        return judged[1], told[side], setups.unlike(found, judged[1], asked)

    same, likeness, unlike = measured()
    assert (same.rate.verdict, same.relative.verdict, likeness, unlike) == ("holds", "holds", "same", [])  # type: ignore[union-attr]
    other, likeness, unlike = measured(**{side: here})
    for claim in (other.rate, other.relative):
        assert claim
        assert (claim.verdict, claim.why) == ("not comparable", why)
        assert math.isnan(claim.ratio)
    assert (likeness, unlike) == ("differs", [side])
    assert reproduction.counted([other.rate]) == "of 1, 1 not comparable"
    studied, likeness, unlike = measured(override, "where=[]", **{side: here})
    assert studied.rate
    assert studied.rate.verdict == "holds", "what it follows from was set otherwise: it is what is compared"
    assert likeness == "differs"
    assert unlike == [override.partition("=")[0]]


def test_what_is_simulated_reads_no_files_and_is_compared() -> None:
    found = table(STATED_FILES)
    asked, judged = met(found, data_files=rows.SIMULATED, arrangement="")
    assert [one.rate.verdict for one in judged if one.rate] == ["holds", "holds"]
    told = {one.what: (one.here, one.likeness) for one in setups.aspects(found, judged, asked, (), None)}
    assert told["data_files"] == (rows.SIMULATED, "differs")


def test_what_differs_is_one_line_each() -> None:
    found = publication.published("a-figure-26")
    asked = sweep_of(found, "device=cpu", "precision=fp32", "batch_size=8")
    cell = reproduction.cell_of(found.rows[0].settings, asked)
    assert isinstance(cell, TrialConfig)
    trials = planted(cell, [3.0, 3.1, 3.05], hardware="aaaa", software="ssss")
    judged = reproduction.reproduce(found, asked, trials, {cell.cell}, 0.05)
    node = {
        "node": "a",
        "hardware": {"cpu": {"model": "Some CPU"}},
        "software": {"packages": {"tensorflow": "2.18.1", "horovod": "0.28.1"}},
    }
    told = {one.what: one for one in setups.aspects(found, judged, asked, [node], None)}
    assert dataclasses.astuple(told["hardware"])[1:] == (
        "C4130-P100-PCIe-16GB",
        "1 node: no GPU, Some CPU (aaaa)",
        "by name only",
    )
    assert "TensorFlow 2.18.1, Horovod 0.28.1" in told["software"].here
    of_torch = [dataclasses.replace(one, cell=_in_torch(one)) for one in judged]
    both = node | {"torch_software": {"packages": {"torch": "2.13.0"}}}
    (program,) = [one for one in setups.aspects(found, of_torch, asked, [both], None) if one.what == "software"]
    assert program.here.startswith("PyTorch 2.13.0 (")
    assert dataclasses.astuple(told["batch_size"])[1:] == ("128", "8", "differs")
    assert dataclasses.astuple(told["precision"])[1:] == ("fp16", "fp32", "differs")
    assert dataclasses.astuple(told["steps"])[1:] == ("10 + 100", "10 + 100", "same")
    assert told["device"].likeness == "differs"
    assert told["data"].likeness == "not stated"


def _in_torch(held: reproduction.Held) -> reproduction.Cell:
    assert held.cell
    return dataclasses.replace(held.cell, config=dataclasses.replace(held.cell.config, framework="torch"))


SILENT = """\
model,device,batch_size,gpus,images_per_s,xla
tiny,cpu,8,1,1000,
tiny,cpu,8,2,1900,
tiny,cpu,16,2,1990,on
"""


def met(found: PublishedTable, *overrides: str, **facts: Any) -> tuple[keys.SweepSpec, tuple[Held, ...]]:
    """Each row measured at its figure, by a sweep with these overrides."""
    asked = sweep_of(found, *overrides)
    trials = []
    for row in found.rows:
        config = reproduction.cell_of(row.settings, asked, NODES)
        assert isinstance(config, TrialConfig), config
        trials += planted(config, [row.value * 0.999, row.value, row.value * 1.001], **facts)
    return asked, reproduction.reproduce(found, asked, trials, set(), 0.05, NODES)


def lines(found: PublishedTable, *overrides: str) -> dict[str, tuple[str, str, str]]:
    asked, judged = met(found, *overrides)
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert len({what for what, *_ in told}) == len(told) or "xla" in {what for what, *_ in told}
    return {what: (published, here, likeness) for what, published, here, likeness in told}


@pytest.mark.parametrize(
    ("override", "what", "here"),
    [
        ("compression=fp16", "compression", "fp16"),
        ("reduction=grouped", "reduction", "grouped"),
        ("fusion_mib=0", "fusion_mib", "0"),
        ("optimizer=lars", "optimizer", "lars"),
        ("momentum=0.5", "momentum", "0.5"),
        ("emulate=true", "emulate", "on"),
        ("isolation=shared", "isolation", "shared"),
        ("cores_per_worker=2", "cores_per_worker", "2"),
        ("worker_memory_gib=1.5", "worker_memory_gib", "1.5"),
        ("classes=7", "classes", "7"),
        ("space.env.OMP_WAIT_POLICY=passive", "env.OMP_WAIT_POLICY", "passive"),
    ],
)
def test_what_a_table_does_not_state_and_was_set_here_has_a_line_of_its_own(
    override: str, what: str, here: str
) -> None:
    found = table(SILENT)
    assert what not in lines(found)
    told = lines(found, override)
    assert told[what] == ("not stated", here, "not stated")
    assert f"{what} " not in told[setups.ALL_ELSE][1]
    asked, judged = met(found, override)
    assert what in {name for one in judged for name in setups.unstated(found, one)}
    assert not any(setups.unlike(found, one, asked) for one in judged)


def test_what_is_as_where_nobody_sets_it_is_one_line_with_every_other_setting_of_a_trial() -> None:
    told = lines(table(SILENT))
    assert told[setups.ALL_ELSE][0] == "not stated"
    for words in ("emulate off", "compression none", "reduction overlapped", "isolation exclusive", "classes 1000"):
        assert words in told[setups.ALL_ELSE][1]
    assert "worker_memory_gib an equal part of the node's" in told[setups.ALL_ELSE][1]
    counted = {"warmup_steps", "measured_steps", "ci", "max_steps", "min_window"}  # in the line of the steps
    learnt = {
        "protocol",
        "epochs",
        "evaluate_every",
        "checkpoint_every",
        "target_top1",
        "target_top5",
        "targets",
    }  # to an accuracy
    no_part = {"explain", "deadlines", "seed", "repeat"}  # of the window's program
    no_effect = {"trust", "beta2", "decode_threads", "cache", "labels_from"}  # at these cells
    follows = {"framework", "compile", "channels_last"}  # these cells are TensorFlow's, under Horovod
    named = {*told, "gpus", "arrangement", "env", *(words.split()[0] for words in told[setups.ALL_ELSE][1].split(", "))}
    fields = {field.name for field in dataclasses.fields(TrialConfig)}
    assert fields - named == counted | learnt | no_part | no_effect | follows


def test_an_axis_that_some_rows_state_is_told_of_the_others_too() -> None:
    found = table(SILENT)
    asked, judged = met(found)
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert ("xla", "on", "on", "same") in told
    rest = next(here for what, _, here, _ in told if what == setups.ALL_ELSE)
    assert rest.startswith("emulate off, xla off, ")
    asked, judged = met(found, "xla=on", "where=[]")
    told = [dataclasses.astuple(one) for one in setups.aspects(found, judged, asked, (), None)]
    assert [line for line in told if line[0] == "xla"] == [
        ("xla", "on", "on", "same"),
        ("xla", "not stated", "on", "not stated"),
    ]
    assert [setups.unstated(found, one) for one in judged] == [{"xla": "on"}, {"xla": "on"}, {}]


def test_what_has_no_effect_is_neither_missing_nor_different() -> None:
    text = "model,batch_size,gpus,placement,compression,images_per_s\ntiny,8,1,spread,fp16,10\ntiny,8,2,2x1,fp16,19\n"
    found = table(text)
    told = lines(found)
    assert (told["compression"][2], told["placement"][2]) == ("same", "same")
    asked, judged = met(found)
    assert [setups.unlike(found, one, asked) for one in judged] == [[], []]


STATED = """\
model,device,batch_size,gpus,nodes,xla,emulate,cores_per_worker,image_size,warmup_steps,measured_steps,images_per_s
tiny,gpu,8,2,1,on,off,1,32,10,100,1900
"""


@pytest.mark.parametrize(
    ("overrides", "unlike"),
    [
        ([], []),
        (["batch_size=4"], ["batch_size"]),
        (["xla=off"], ["xla"]),
        (["device=cpu"], ["device"]),
        (["emulate=on"], ["emulate"]),
        (["cores_per_worker=2"], ["cores_per_worker"]),
        (["image_size=64"], ["image_size"]),
        (["steps.measured=50"], ["steps"]),
        (["placement=2x1"], ["placement", "nodes"]),
        (["xla=off", "steps.warmup=3"], ["xla", "steps"]),
    ],
)
def test_a_row_is_as_printed_only_if_all_that_its_table_states_was_so(overrides: list[str], unlike: list[str]) -> None:
    found = table(STATED)
    asked, (one,) = met(found, *overrides, nodes=2 if "placement=2x1" in overrides else 1)
    assert setups.unlike(found, one, asked) == unlike
    assert setups.unstated(found, one) == {}


def test_a_device_that_a_table_does_not_state_is_not_said_to_be_the_same() -> None:
    assert lines(table("model,batch_size,gpus,images_per_s\ntiny,8,1,1000\n"))["device"][::2] == ("not stated",) * 2
    assert lines(table(SILENT))["device"] == ("cpu", "cpu", "same")
