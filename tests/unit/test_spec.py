"""The sweep file: every mistake found, all at once, in our words; nothing else accepted."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import InputError
from sweeps.spec import plan, space, sweep_file

ROOT = Path(__file__).parents[2]
GOOD = "{name: x, model: tiny, device: cpu, space: {batch_size: 8, gpus: 1}}"


def mistakes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        sweep_file.parse(text, "x.yaml", overrides)
    assert refused.value.exit_code == 2
    return str(refused.value).splitlines()


def with_space(**axes: object) -> str:
    return yaml.safe_dump(yaml.safe_load(GOOD) | {"space": {"batch_size": 8, "gpus": 1} | axes})


def with_keys(**keys: object) -> str:
    return yaml.safe_dump(yaml.safe_load(GOOD) | keys)


# ruff: noqa: E501
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (with_keys(deadlines={"nursery_s": 9}), "deadlines.nursery_s: was renamed to fork_server_s, but got nursery_s"),
        (with_space(batch_size=0), "space.batch_size: must be at least 1, but got 0"),
        (with_space(gpus=1025), "space.gpus: must be at most 1024, but got 1025"),
        (with_space(gpus=[1, 1025]), "space.gpus[1]: must be at most 1024, but got 1025"),
        (with_space(precision="fp8"), "space.precision: must be one of fp32, tf32, fp16, bf16, but got fp8"),
        (with_space(batch_size=[]), "space.batch_size: must hold at least one value, but got an empty list"),
        (with_space(batch_size=[8, 8]), "space.batch_size: must not hold a value twice, but got 8"),
        (with_space(batch_size="8"), "space.batch_size: must be a whole number, but got 8"),
        (with_space(batch_size=True), "space.batch_size: must be a whole number, but got true"),
        (with_space(batch_size={"log2": [3, 3]}), "space.batch_size: log2 must hold a power of two between its ends, but got [3, 3]"),
        (with_space(batch_size={"log2": [64, 8]}), "space.batch_size: log2 must hold 1 <= low <= high <= 1048576, but got [64, 8]"),
        (with_space(decode_threads=[0]), "space.decode_threads[0]: must be auto or a whole number from 1 to 1024, but got 0"),
        (with_space(batchsize=8), "space.batchsize: must be a known key (did you mean batch_size?), but got batchsize"),
        (GOOD.replace("tiny", "tny"), "model: must be one of alexnet, googlenet, inception_v3, inception_v4, vgg16, vgg19, resnet50, resnet50_v1.5, resnet101, resnet152, tiny, or MODULE:FUNCTION of your own, but got tny"),
        (with_space(lr_schedule="0.4;;0.04"), "space.lr_schedule: every semicolon must stand between a rate and an epoch, but got 0.4;;0.04"),
        (with_space(lr_schedule="cosine: 0.4 warmup=-1"), "space.lr_schedule: warmup must be a finite number of epochs of 0 or more, but got -1"),
        (with_keys(protocol="convergence", data="digits", epochs=4, space={"batch_size": 8, "gpus": 1, "lr_schedule": "0.1 warmup=5"}), "space.lr_schedule: warmup must be shorter than the run of 4 epochs, but got 0.1 warmup=5"),
        (with_space(lr_schedule=[True]), 'space.lr_schedule[0]: must be a schedule such as "0.4;10;0.04" or "cosine: 0.4 warmup=5", but got true'),
        (with_space(momentum=1.0), "space.momentum: must be less than 1, but got 1.0"),
        (with_space(xla="yes please"), "space.xla: must be on or off, but got yes please"),
        (with_space(env={"NCCL_ALGO": [True]}), 'space.env.NCCL_ALGO[0]: must be text or a number; on and off are written "on" and "off", or 1 and 0, but got true'),
        (with_space(env={"HOROVOD_CYCLE_TIME": 1}), "space.env.HOROVOD_CYCLE_TIME: is set by the axis cycle_ms, but got HOROVOD_CYCLE_TIME"),
        (with_space(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}), "space.env.CUDA_DEVICE_ORDER: is set by the placement, but got CUDA_DEVICE_ORDER"),
        (with_space(env={"A B": 1}), "space.env: the name of a variable must be letters, digits and '_', but got A B"),
        (with_space(env={"HOROVOD_HIERARCHICAL_ALLREDUCE": 1}), "space.env.HOROVOD_HIERARCHICAL_ALLREDUCE: has no effect: Horovod reads it only if built with MPI, but got HOROVOD_HIERARCHICAL_ALLREDUCE"),
        (with_space(env={"HOROVOD_AUTOTUNE": 1}), "space.env.HOROVOD_AUTOTUNE: must be left out: Horovod would change fusion_mib and cycle_ms while steps are measured, but got HOROVOD_AUTOTUNE"),
        (with_space(env={"HOROVOD_TORUS_ALLREDUCE": 1}), "space.env.HOROVOD_TORUS_ALLREDUCE: has no effect on device: cpu: only NCCL reduces so, but got HOROVOD_TORUS_ALLREDUCE"),
        (with_space(reduction="later"), "space.reduction: must be one of overlapped, grouped, but got later"),
        (with_space(xla=True, reduction=["overlapped", "grouped"]), "space.reduction: has no effect with xla: on alone, whose one operation gives all gradients at once, but got overlapped, grouped"),
        (with_keys(data="/data", labels_from=2), "labels_from: must be at most 1, but got 2"),
        (with_keys(data="/data", labels_from=True), "labels_from: must be a whole number, but got true"),
        (with_keys(labels_from=0), "labels_from: has no effect where no file is read: data must be a folder, but got synthetic"),
        (with_space(trust=0.01), "space.trust: has no effect without optimizer: lars, but got sgd"),
        (with_space(decode_threads=[1, 2]), "space.decode_threads: has no effect where no JPEG is decoded: data must be a folder, but got synthetic"),
        (with_keys(image_size=0), "image_size: must be auto or a whole number from 32 to 4096, but got 0"),
        (with_keys(image_size=32, model=["tiny", "inception_v3"]), "image_size: must be at least 75 for inception_v3, but got 32"),
        (with_keys(data="digits", classes=2), "classes: must be at least 10 for digits, but got 2"),
        (with_keys(stop={"ci": 0}), "stop.ci: must be more than 0% and less than 100%, such as 1%, but got 0"),
        (with_keys(stop={"ci": "200%"}), "stop.ci: must be more than 0% and less than 100%, such as 1%, but got 200%"),
        (with_keys(stop={"max_steps": 12}), "stop.max_steps: must be at least 30: 10 of warm-up and 20 to tell an interval from, but got 12"),
        (with_keys(stop={"ci": "2%"}, steps={"warmup": 5}), "stop: must be left out beside steps, which says how many there are, but got {'ci': 0.02, 'max_steps': 500, 'min_window': 40}"),
        (with_space(cache=["cold", "warm"]), "space.cache: has no effect where no file is read: data must be a folder, but got synthetic"),
        (with_keys(epochs=6), "epochs: belongs to protocol: convergence, this sweep's is throughput, but got 6"),
        (with_keys(target={"top1": 0.9}), "target: belongs to protocol: convergence, this sweep's is throughput, but got {'top1': 0.9}"),
        (with_keys(protocol="convergence", data="digits"), "epochs: must be given with protocol: convergence, but got nothing"),
        (with_keys(protocol="convergence", data="digits", epochs=2, steps={"warmup": 1}), "steps: belongs to protocol: throughput, this sweep's is convergence, but got {'warmup': 1, 'measured': 100}"),
        (with_keys(protocol="convergence", epochs=2), "data: must be digits or a folder with protocol: convergence: random images can't be learned, but got synthetic"),
        (with_keys(protocol="convergence", data="digits", epochs=2, target={"top1": 1.5}), "target.top1: must be less than 1, but got 1.5"),
        (with_keys(preset="short-test", steps={"measured": 50}), "steps.measured: preset short-test fixes this at 100: leave out one of the two, but got 50"),
        (with_keys(preset="long-test", data="digits", epochs=6), "epochs: preset long-test fixes this at 90: leave out one of the two, but got 6"),
        (GOOD.replace("name: x", "name: ../x"), "name: must be letters, digits, '.', '_' and '-', at most 80 of them, but got ../x"),
        (GOOD.replace("name: x, ", ""), "name: must be given, but got nothing"),
        ("name: x\nname: y", "must be valid YAML, but got line 2, column 1: the key name a second time"),
        ("a: &a [1]\nb: *a", "must be valid YAML, but got line 2, column 4: an alias, which is not allowed"),
        ("{", "must be valid YAML, but got line 2, column 1: did not find expected node content"),
        ("", "must hold keys and values, but got an empty file"),
        ("[1]", "must hold keys and values, but got [1]"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_place_key_rule_and_value(text: str, line: str) -> None:
    assert mistakes(text) == [f"x.yaml: {line}"]


def test_all_mistakes_are_named_at_once() -> None:
    text = "{name: x, model: tny, device: tpu, space: {batch_size: 0, gpus: 1025}, repeats: many}"
    keys = {line.split(": ")[1] for line in mistakes(text)}
    assert keys == {"model", "device", "space.batch_size", "space.gpus", "repeats"}


def test_mistakes_between_keys_are_named_beside_those_in_keys() -> None:
    text = with_keys(epochs=6, repeats=0, target={"top1": 7}, space={"batch_size": 8, "gpus": 1025, "trust": 0.1})
    keys = [line.split(": ")[1] for line in mistakes(text)]
    assert keys == ["space.gpus", "repeats", "target.top1", "space.trust"]  # of the protocol's keys, one is wrong


def test_a_preset_is_what_it_stands_for() -> None:
    short = sweep_file.parse(with_keys(preset="short-test"), "x")
    assert (short.protocol, short.steps.warmup, short.steps.measured) == ("throughput", 10, 100)
    long = sweep_file.parse(with_keys(preset="long-test", data="digits"), "x")
    assert (long.protocol, long.epochs) == ("convergence", 90)
    fixed = {name: long.axes[name].points() for name in ("optimizer", "momentum", "weight_decay", "lr_schedule")}
    assert fixed == {
        "optimizer": ["sgd"],
        "momentum": [0.9],
        "weight_decay": [1e-4],
        "lr_schedule": ["0.4;10;0.04;60;0.004"],
    }


def test_a_percentage_is_a_share_and_the_default_is_one_percent() -> None:
    assert sweep_file.parse(with_keys(stop={"ci": "2.5%"}), "x").stop.ci == 0.025
    (trial,) = plan.plan(sweep_file.parse(with_keys(repeats=1), "x")).trials
    assert (trial.measured_steps, trial.ci, trial.max_steps, trial.steps) == (0, 0.01, 500, 500)
    (trial,) = plan.plan(sweep_file.parse(with_keys(repeats=1, steps={"warmup": 3, "measured": 7}), "x")).trials
    assert (trial.warmup_steps, trial.measured_steps, trial.ci, trial.steps) == (3, 7, 0.0, 10)


def test_points_are_the_values_that_they_mean() -> None:
    axes = sweep_file.parse(with_space(xla=[False, True], momentum=0, env={"A": [1, "x"]}, lr_schedule=0.1), "x").axes
    made = {name: axis.points() for name, axis in axes.items()}
    assert (made["xla"], made["momentum"], made["env.A"], made["lr_schedule"]) == (
        [False, True],
        [0.0],
        ["1", "x"],
        ["0.1"],
    )


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "a: " + "[" * 5000 + "]" * 5000, "{a: " * 5000 + "}" * 5000])
def test_deep_nesting_is_refused_without_a_traceback(text: str) -> None:
    (line,) = mistakes(text)
    assert line.endswith((": more than 20 levels", ": exceeded maximum nesting depth"))  # libyaml 0.2.6 has a limit too
    (line,) = mistakes(GOOD, "space=" + "[" * 5000)
    assert line.startswith("--set: the value must be valid YAML, but got space=[[[")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("gpus", "--set: must be written key=value, but got gpus"),
        ("gpus=[", "--set: the value must be valid YAML, but got gpus=["),
        ("gpus=1025", "x.yaml: space.gpus: must be at most 1024, but got 1025"),
        ("name.deep=1", "--set: name must be a section, but got name.deep=1"),
    ],
)
def test_a_wrong_override_is_named(override: str, line: str) -> None:
    assert mistakes(GOOD, override) == [line]


def test_overrides_reach_axes_keys_and_sections() -> None:
    made = sweep_file.parse(GOOD, "x", ["gpus=[1, 2]", "model=resnet50", "steps.measured=7"])
    assert (made.axes["gpus"].points(), made.axes["model"].points(), made.steps.measured) == ([1, 2], ["resnet50"], 7)


def test_files_that_are_no_sweep_files(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_text("x" * 5_000_000)
    binary.write_bytes(b"\xff\xfe\x00")
    for path, rule in [
        (tmp_path / "none.yaml", "must be a file that exists, but got nothing there"),
        (tmp_path, "must be a file, but got a folder"),
        (large, "a sweep file holds at most 1 MB, but got 5.0 MB"),
        (binary, "must be text in UTF-8, but got other bytes"),
    ]:
        with pytest.raises(InputError) as refused:
            sweep_file.load(path)
        assert str(refused.value) == f"{path}: {rule}"


@given(st.text(max_size=200))
def test_any_text_is_a_spec_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        sweep_file.parse(text, "x.yaml")


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_log2_holds_the_powers_of_two_between_its_ends(low: int, high: int) -> None:
    low, high = sorted((low, high))
    assert space.Log2(low, high).points() == [1 << n for n in range(21) if low <= 1 << n <= high]


def test_range_includes_its_ends() -> None:
    assert space.axis({"range": [2, 8, 3]}).points() == [2, 5, 8]
    assert space.axis({"range": [1, 3]}) == space.Range(1, 3)


def test_the_scaling_study_is_of_some_size() -> None:
    made = plan.plan(sweep_file.load(ROOT / "search_spaces/scaling.yaml"))
    assert len(made.cells) == 88
    assert {trial.gpus for trial in made.trials} == {1, 2, 4, 8, 16, 32}
    assert {trial.placement for trial in made.trials} == {"pack", "spread", "4x2"}


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_sweep_can_be_planned(path: Path) -> None:
    made = plan.plan(sweep_file.load(path))
    assert made.spec.name == path.stem
    assert made.most > 0


def test_the_shipped_schema_is_the_code_s() -> None:
    assert json.loads((ROOT / "search_spaces/schema.json").read_text()) == sweep_file.json_schema()
