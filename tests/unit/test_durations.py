"""Durations are learnt from what ended: first the cell's own, then those of its like, then the model's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.record import ownership
from sweeps.record.ledger import TrialRecord
from sweeps.run import forecast
from sweeps.scheduling import durations
from sweeps.scheduling.durations import Durations, Predicted, earlier
from sweeps.spec.arrangements import Node
from sweeps.spec.keys import SweepSpec
from sweeps.spec.plan import plan
from tests.unit.records import converged, record
from tests.unit.simulations import outcome, trial
from workers.contract.messages import Measurement, TrialConfig, TrialOutcome

ROOT = Path(__file__).parents[2]


def model(config: TrialConfig) -> float:
    """A shape: so long a start, and what grows with the batch."""
    return 10 + config.batch_size / 10


def took(config: TrialConfig, seconds: float, **fields: str) -> TrialRecord:
    made = record(config, outcome=TrialOutcome(status="completed", **fields))  # type: ignore[arg-type]
    return dataclasses.replace(made, started_at=100.0, ended_at=100.0 + seconds)


def test_nothing_learnt_is_the_model_s_word() -> None:
    assert Durations(model).predict(trial(batch_size=100)) == Predicted(20.0, "model")


def test_a_cell_s_repeats_take_what_it_took() -> None:
    known = Durations(model)
    for n, seconds in enumerate((31.0, 33.0)):
        known.learn(took(trial(repeat=n), seconds))
    assert known.predict(trial(repeat=2)) == Predicted(32.0, "trials")


@given(st.floats(0.1, 20), st.sets(st.integers(1, 2000), min_size=1, max_size=20), st.integers(1, 2000))
def test_a_machine_that_is_slower_throughout_is_known_from_any_trial(ratio: float, seen: set[int], asked: int) -> None:
    known = Durations(model)
    for batch in seen:
        known.learn(took(trial(batch_size=batch), ratio * model(trial(batch_size=batch))))
    found = known.predict(trial(batch_size=asked))
    assert found.source == "trials"
    assert found.seconds == pytest.approx(ratio * model(trial(batch_size=asked)))


def test_the_more_like_it_have_ended_the_more_they_are_believed() -> None:
    known = Durations(model)
    for batch in range(1, 20):
        known.learn(took(trial(batch_size=batch, gpus=1), model(trial(batch_size=batch))))
    asked = trial(batch_size=100, gpus=8)
    found = [known.predict(asked).seconds]
    for batch in range(1, 9):
        known.learn(took(trial(batch_size=batch, gpus=8), 3 * model(trial(batch_size=batch))))
        found.append(known.predict(asked).seconds)
    assert found[0] == pytest.approx(20)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(60, rel=0.2)


def test_another_protocol_or_device_teaches_nothing() -> None:
    known = Durations(model)
    known.learn(took(dataclasses.replace(trial(), device="cpu"), 500))
    known.learn(took(dataclasses.replace(trial(), protocol="convergence"), 500))
    assert known.predict(trial()).source == "model"


@pytest.mark.parametrize(
    "ended",
    [
        TrialOutcome(status="lost", kind="node lost"),
        TrialOutcome(status="failed", kind="killed"),
        TrialOutcome(status="cancelled", kind="stopped"),
        TrialOutcome(status="pruned"),
        TrialOutcome(status="infeasible", kind="device memory", inferred_from="b64"),
    ],
)
def test_a_trial_that_was_cut_short_or_never_ran_teaches_nothing(ended: TrialOutcome) -> None:
    known = Durations(model)
    known.learn(dataclasses.replace(took(trial(), 1.0), outcome=ended))
    assert known.predict(trial()) == Predicted(model(trial()), "model")


def gone_on(one: TrialRecord, epochs: int) -> TrialRecord:
    """Its last attempt has found a checkpoint of so many epochs."""
    assert one.outcome.measurement
    ranks = tuple(dataclasses.replace(rank, gone_on_from=epochs) for rank in one.outcome.measurement.ranks)
    return dataclasses.replace(one, outcome=dataclasses.replace(one.outcome, measurement=Measurement(ranks=ranks)))


@pytest.mark.parametrize("is_from_a_ledger", [False, True])
def test_a_trial_that_went_on_from_a_checkpoint_took_only_the_rest_of_its_time_and_teaches_nothing(
    workplace: Path, is_from_a_ledger: bool
) -> None:
    """The base of a search that was stopped at epoch 4 of 5, say, and is run to its end later."""
    whole, rest = (dataclasses.replace(converged([0.5] * 5, repeat=n), started_at=0.0) for n in range(2))
    whole, rest = dataclasses.replace(whole, ended_at=60.0), gone_on(dataclasses.replace(rest, ended_at=12.0), 4)
    known = Durations(lambda _: 1.0)
    ended = [whole, rest]
    if is_from_a_ledger:
        written("one", *ended)
        ended = [*earlier()]
    for one in ended:
        known.learn(one)
    assert known.predict(rest.config) == Predicted(60.0, "trials")


def test_an_infeasible_trial_tells_how_soon_that_shows_and_nothing_of_others() -> None:
    known = Durations(model)
    known.learn(
        dataclasses.replace(took(trial(), 4.0), outcome=TrialOutcome(status="infeasible", kind="device memory"))
    )
    assert known.predict(trial(repeat=1)) == Predicted(4.0, "trials")
    assert known.predict(trial(batch_size=1)).source == "model"


def test_a_faster_machine_is_believed_after_a_while() -> None:
    known = Durations(model)
    for n in range(200):
        known.learn(took(trial(repeat=n), 100.0))
    for n in range(200, 230):
        known.learn(took(trial(repeat=n), 10.0))
    assert known.predict(trial()).seconds == pytest.approx(10, rel=0.5)


def test_what_is_learnt_does_not_slow_down_what_comes_after_it() -> None:
    known = Durations(model)
    one = trial()
    trials = [took(dataclasses.replace(one, batch_size=b, gpus=n), 20.0) for b in range(1, 513) for n in range(1, 9)]
    spent = []
    for part in (trials[:512], trials[512:-512], trials[-512:]):
        began = time.process_time()
        for ended in part:
            known.learn(ended)
            if len(part) == 512:
                known.predict(ended.config)
        spent.append(time.process_time() - began)
    assert spent[-1] < 3 * spent[0]


def written(name: str, *records: TrialRecord) -> None:
    content = {"name": name, "model": "tiny", "device": "cpu", "space": {"batch_size": 8, "gpus": 1}}
    book = ownership.create(plan(SweepSpec.model_validate(content)), "text")
    for one in records:
        book.write(one)
    book.end("complete")


def test_earlier_trials_are_those_of_this_folder_and_simulated_ones_stay_apart(workplace: Path) -> None:
    simulated = dataclasses.replace(took(trial(repeat=1), 5.0), outcome=outcome(trial(repeat=1)))
    written("one", took(trial(), 5.0), simulated)
    written("two", took(trial(batch_size=64), 7.0))
    assert [one.config for one in earlier()] == [trial(), trial(batch_size=64)]
    assert [one.ended_at - one.started_at for one in earlier()] == [5.0, 7.0]
    assert [one.config for one in earlier(simulated=True)] == [trial(repeat=1)]


def test_what_can_not_be_read_is_left_out(workplace: Path) -> None:
    written("whole", took(trial(), 5.0))
    torn = workplace / "results" / "torn" / "ledger.jsonl"
    torn.parent.mkdir()
    torn.write_bytes(b'not json\n{"kind":"trial","config":{"model":"x"}}\n{"kind":"trial","conf')
    (workplace / "results" / "not a name").mkdir()
    (workplace / "results" / "not a name" / "ledger.jsonl").touch()
    assert [one.config for one in earlier()] == [trial()]


def test_of_many_ledgers_the_newest_are_read(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("old", took(trial(), 5.0))
    time.sleep(0.02)
    written("new", took(trial(repeat=1), 5.0))
    monkeypatch.setattr(durations, "NEWEST_MIB", 1)
    old = workplace / "results" / "old" / "ledger.jsonl"
    stat = old.stat()
    old.write_bytes(old.read_bytes() + b"#" * (1 << 20))
    os.utime(old, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [one.config.repeat for one in earlier()] == [1]


def test_predicting_from_the_model_loads_no_heavy_library() -> None:
    code = (
        "import sys; from sweeps.scheduling import durations; from sweeps.simulator import cluster, trial_time\n"
        "from tests.unit.simulations import trial\n"
        "model = cluster.parse('nodes=8,gpus=4,gpu=v100')\n"
        "known = durations.Durations(lambda config: trial_time.expected_s(config, model))\n"
        "assert known.predict(trial(gpus=32)).seconds > 0\n"
        "assert not {'numpy', 'ray', 'tensorflow', 'pandas', 'mlflow'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_one_framework_takes_says_nothing_of_the_other_and_a_compiled_network_is_like_itself_first() -> None:
    known = Durations(model)
    known.learn(took(trial(batch_size=100), 200.0))
    of_torch = trial(batch_size=100, framework="torch")
    assert known.predict(of_torch) == Predicted(20.0, "model")
    known.learn(took(trial(batch_size=100, framework="torch", compile=True), 80.0))
    known.learn(took(trial(batch_size=100, framework="torch", channels_last=True), 5.0))
    larger = dataclasses.replace(of_torch, batch_size=200)
    compiled, last = dataclasses.replace(larger, compile=True), dataclasses.replace(larger, channels_last=True)
    assert known.predict(compiled).seconds > known.predict(larger).seconds > known.predict(last).seconds
    assert known.predict(trial(batch_size=100, repeat=1)).seconds == 200.0


def test_a_forecast_says_where_nothing_but_tensorflow_s_pace_is_behind_a_trial_of_torch() -> None:
    spec = SweepSpec.model_validate(
        {"name": "x", "model": "tiny", "device": "cpu", "repeats": 1}
        | {"space": {"batch_size": 8, "gpus": 1, "framework": ["tensorflow", "torch"]}}
    )
    trials, nodes = plan(spec).trials, [Node("a", 4, 0)]
    known = Durations(model)
    first, *_ = forecast.summary_lines(spec, trials, nodes, known)
    said = first.partition("(predicted: ")[2].rstrip(")").split(", ")
    assert sorted(said) == ["1 from a model", "1 of torch from a model that knows TensorFlow's pace alone"]
    for one in trials:
        known.learn(took(one, 30.0))
    first, *_ = forecast.summary_lines(spec, trials, nodes, known)
    assert first.endswith("(predicted: 2 from earlier trials)")
