"""Networks and data of a user's own in real ranks: what they measure, and what is said of those that don't fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeps.text import caller
from tests.integration.gangs import gang
from workers.contract.messages import RankReport

pytestmark = pytest.mark.usefixtures("fork_server")
TRAIN = "workers.workloads.images.train:run"
MINE = """
import time
import keras
import numpy as np
import tensorflow as tf
from keras import layers

def dense(classes, width=8, top=None):
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(top or classes)(layers.Dense(width, "relu")(x)))

def ours(image_size, classes):
    from workers.frameworks.tensorflow.models.tiny import tiny
    return tiny(image_size, classes)

def attends(classes):
    x = keras.Input((6, 8))
    y = layers.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(x, layers.Dense(classes)(layers.Flatten()(y)))

def recurrent(classes):
    x = keras.Input((6, 8))
    return keras.Model(x, layers.Dense(classes)(layers.LSTM(4)(x)))

def penalised(classes):
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(classes, kernel_initializer="zeros", bias_initializer="zeros",
                                       bias_regularizer=lambda bias: -10.0 * bias[0])(x))

def unbuilt(classes):
    return keras.Sequential([layers.Dense(classes)])

def number(classes):
    return classes

def two_inputs(classes):
    x, y = keras.Input((4,)), keras.Input((4,))
    return keras.Model([x, y], layers.Dense(classes)(x + y))

def raises(classes):
    raise KeyError("no such layer")

def hungry(classes):
    np.ones(1 << 50, np.uint8)

def examples(shape=(4,), count=100, kind="float32"):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype(kind), np.arange(count) % 10

def data(rank, size, batch_size, split="train", shape=(4,), count=100, wait_s=0.0):
    x, y = examples(shape if isinstance(shape, tuple) else tuple(map(int, shape.split(","))), count)
    x, y = (x[:20], y[:20]) if split == "validation" else (x[20:], y[20:])
    x, y = x[rank::size], y[rank::size]
    for n in range(0, len(x), batch_size):
        time.sleep(wait_s)
        yield x[n : n + batch_size], y[n : n + batch_size]

def pairs(batch_size):
    x, y = examples()
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size).prefetch(2)

def whole(batch_size, split):
    x, y = examples(count=40)
    for n in range(0, 40, batch_size):
        yield x[n : n + batch_size], y[n : n + batch_size]

def endless(batch_size, split):
    while True:
        yield from whole(batch_size, split)

def images_alone(batch_size):
    yield examples()[0][:batch_size]

def one_hot(batch_size):
    yield examples()[0][:batch_size], np.eye(10)[:batch_size]

def wrong_label(batch_size):
    yield examples()[0][:batch_size], np.full(batch_size, 10)

def large(batch_size):
    yield examples()[0][: 2 * batch_size], examples()[1][: 2 * batch_size]

def short_first(batch_size):
    yield examples()[0][:3], examples()[1][:3]
    yield examples()[0][:batch_size], examples()[1][:batch_size]

def unlike(batch_size):
    yield examples()[0][:batch_size], examples()[1][:batch_size]
    yield examples((5,))[0][:batch_size], examples()[1][:batch_size]

def nothing():
    return None

def empty():
    return []

def breaks(batch_size):
    yield examples()[0][:batch_size], examples()[1][:batch_size]
    raise OSError("disk gone")

def shrinks(batch_size, split, epoch):
    yield from data(0, 1, batch_size, split, count=100 - 10 * (epoch > 1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def trial(folder: Path, size: int = 1, **fields: Any) -> list[Any]:
    fields = {"data": "mine:data", "model": "mine:dense", "warmup_steps": 3, "explain": False} | fields
    return gang(size, folder, TRAIN, folder=str(folder), **fields)


def measured(folder: Path, size: int = 1, **fields: Any) -> RankReport:
    (first, *_) = ends = trial(folder, size, **fields)
    assert [end.what for end in ends] == ["measured"] * size, ends
    report: RankReport = first.report
    return report


def learning(**fields: Any) -> dict[str, Any]:
    return {
        "protocol": "convergence",
        "epochs": 2,
        "evaluate_every": 1,
        "warmup_steps": 0,
        "measured_steps": 0,
    } | fields


def test_a_network_gets_the_axes_that_it_asks_for_and_what_it_can_t_count_is_left_out(folder: Path) -> None:
    narrow, wide = (measured(folder, own={"width": width}) for width in (8, 16))
    assert (narrow.parameters, wide.parameters) == (4 * 8 + 8 + 8 * 10 + 10, 4 * 16 + 16 + 16 * 10 + 10)
    assert narrow.flops == 2 * (4 * 8 + 8 * 10)
    built_in = measured(folder, model="tiny", data="synthetic")
    own = measured(folder, model="mine:ours", data="synthetic")
    assert (own.parameters, own.flops) == (built_in.parameters, built_in.flops)
    assert own.software != built_in.software
    heads = 2 * 4  # of six letters: their projections, their products, and what comes out
    attends = measured(folder, model="mine:attends", own={"shape": "6,8"})
    assert attends.flops == 2 * (4 * 6 * 8 * heads + 2 * 6 * 6 * heads + 6 * 8 * 10)
    assert measured(folder, model="mine:recurrent", own={"shape": "6,8"}).flops == 0


def test_a_slow_input_of_one_s_own_is_seen(folder: Path) -> None:
    report = measured(folder, own={"wait_s": 0.03}, measured_steps=40, explain=True)
    means = {part: sum(map(sum, rounds)) / sum(map(len, rounds)) for part, rounds in report.without_ms.items()}
    assert means["nothing"] - means["input"] > 25


def test_a_pipeline_without_end_is_taken_as_it_comes(folder: Path) -> None:
    assert len(measured(folder, data="mine:pairs", measured_steps=30).steps) == 30


def test_penalties_of_a_network_are_part_of_what_it_learns(folder: Path) -> None:
    """Its penalty wants the first class to be likely, whatever the labels say."""
    assert measured(folder, model="mine:penalised", lr_schedule="0.1").steps[-1].loss > 5


def test_what_learns_gives_each_example_once(folder: Path) -> None:
    report = measured(folder, **learning(batch_size=32))
    assert [epoch.images for epoch in report.epochs] == [80, 80]
    assert all(epoch.top1 is not None for epoch in report.epochs)


def test_an_edit_is_another_program(folder: Path) -> None:
    before = measured(folder)
    (folder / "mine.py").write_text(MINE.replace('"relu"', '"tanh"'))
    assert measured(folder).software != before.software


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"model": "nets:f"}, "no module", "nets:f must be MODULE:FUNCTION of a module in {folder}"),
        ({"model": "mine:f"}, "no function", "mine:f must be a function, but mine has nothing of that name"),
        ({"own": {"depth": 2}}, "parameters", "space.depth: an axis of your own must be a parameter of a function"),
        ({"model": "mine:number"}, "no network", "mine:number must give a Keras model, but gave int"),
        ({"model": "mine:unbuilt"}, "network not built", "begin it with keras.Input(shape)"),
        ({"model": "mine:two_inputs"}, "network", "a model of one input, but"),
        (
            {"own": {"top": 100}},
            "network does not fit the classes",
            "mine:dense must give one number a class, (batch, 10), as `classes` of the sweep file says, but its output"
            " is (None, 100)",
        ),
        ({"data": "synthetic"}, "batch does not fit the network", "takes, (None, 4), but are (8, 32, 32, 3)"),
        ({"model": "mine:raises"}, "own code", "raised KeyError: 'no such layer' (mine.py, line"),
        ({"model": "mine:hungry"}, "host memory", "Unable to allocate"),
        ({"data": "mine:images_alone"}, "not a batch", "must give pairs (examples, labels), but gave (8, 4) float32"),
        ({"data": "mine:one_hot"}, "labels", "of one-hot labels, their argmax), but gave (8, 10) float64"),
        ({"data": "mine:wrong_label"}, "label out of range", "from 0 to 9 (`classes` of the sweep file), but gave 10"),
        ({"data": "mine:large"}, "batch size", "batch_size (8) examples, a label each, but gave (16, 4) float32"),
        ({"data": "mine:short_first"}, "batch size", "the last of a pass shorter, but gave one of 3 before others"),
        ({"data": "mine:unlike"}, "unlike examples", "(4,) float32, but gave (5,) float32"),
        ({"data": "mine:nothing"}, "not batches", "mine:nothing must give an iterable of batches, but gave a NoneType"),
        ({"data": "mine:empty"}, "batch larger than the data", "mine:empty gave rank 0 0 examples for a batch of 8"),
        ({"batch_size": 90}, "batch larger than the data", "mine:data gave rank 0 80 examples for a batch of 90"),
        ({"data": "mine:breaks"}, "own code", "raised OSError: disk gone (mine.py, line"),
        (learning(data="mine:endless"), "data repeats", "once: rank's part is examples[rank::size], but of"),
        (learning(batch_size=90), "batch larger than the data", "gave rank 0 80 examples for a batch of 90"),
        (learning(data="mine:shrinks", epochs=2), "data changes", "80 of train at this rank, but gave 70 in epoch 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_line(folder: Path, fields: dict[str, Any], kind: str, said: str) -> None:
    (end,) = trial(folder, **fields)
    assert end.kind == kind, end
    assert said.format(folder=folder) in end.message
    assert end.what == ("infeasible" if kind in ("host memory", "batch larger than the data") else "failed")
    assert "\n" not in end.message


def test_ranks_share_the_data_and_agree(folder: Path) -> None:
    one = measured(folder, **learning(batch_size=20, epochs=1))
    two = measured(folder, 2, **learning(batch_size=10, epochs=1))
    assert [epoch.images for epoch in two.epochs] == [epoch.images for epoch in one.epochs] == [80]


@pytest.mark.parametrize("protocol", ["throughput", "convergence"])
def test_ranks_that_all_have_all_of_the_data_are_refused(folder: Path, protocol: str) -> None:
    fields = {"data": "mine:whole", **({} if protocol == "throughput" else learning())}
    if protocol == "throughput":
        fields["data"] = "mine:pairs"
    kinds = {end.kind for end in trial(folder, 2, **fields)}
    assert "data repeats" in kinds


def test_a_sweep_that_was_submitted_keeps_its_code_and_goes_on_with_it(workplace: Path, folder: Path) -> None:
    """As on a cluster's head, where a job's folder goes with the job."""
    text = "{name: kept, model: 'mine:dense', data: 'mine:data', classes: 10, device: cpu, repeats: 1, explain: off,"
    (folder / "kept.yaml").write_text(f"{text} steps: {{measured: 5}}, space: {{batch_size: 8, gpus: 1}}}}")
    (folder / ".env").write_text("SECRET=1")
    results = workplace / "results"
    afar = {"SWEEP_RESULTS": str(results), caller.CALLED: json.dumps({"program": "sweep", "kind": "ssh"})}

    def sweep(*arguments: str, cwd: Path) -> str:
        command = [sys.executable, "-m", "sweeps.cli", *arguments]
        ran = subprocess.run(
            command, cwd=cwd, env={**os.environ, **afar}, capture_output=True, text=True, timeout=200, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    sweep("run", "kept.yaml", cwd=folder)
    assert [path.name for path in (results / "kept/code").iterdir()] == ["mine.py"]
    elsewhere = workplace / "elsewhere"
    elsewhere.mkdir()
    sweep("retry", "kept", "--status", "completed", cwd=elsewhere)
    said = [json.loads(line) for line in (results / "kept/ledger.jsonl").read_text().splitlines()]
    assert [line["outcome"]["status"] for line in said if line["kind"] == "trial"] == ["completed"] * 2
