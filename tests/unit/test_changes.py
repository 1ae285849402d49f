"""What a sweep that goes on says of code, packages and data that have changed since its trials were measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sweeps.record.ledger import TrialRecord
from sweeps.scheduling import asha, cache
from sweeps.scheduling.changes import Sameness
from tests.unit.placed import measured, on, reading
from tests.unit.records import config, record
from workers.contract.messages import Cached, EpochRecord, TrialConfig, TrialOutcome


def test_a_sweep_that_goes_on_knows_what_cached_gangs_on_unlike_nodes_were_measured_with() -> None:
    cached = Cached(sweep="old", measured_at=1.0, hardware="hw", software="new*1x1+old*1x3", limited_by="", figures={})
    done = measured(config(), nodes="a")
    done = dataclasses.replace(done, outcome=TrialOutcome(status="completed", kind="cached", cached=cached))
    assert not Sameness((), [done]).met(node("a", "old"))
    assert Sameness((), [done]).met(node("a", "other"))


def node(name: str, software: str = "sw", code: str = "c1", **data: str) -> dict[str, Any]:
    told = {"digest": software, "python": "3.11", "code": code, "project": {"commit": name}}
    return {"node": name, "hardware": {"digest": "hw"}, "software": told, "data": {"/images": "ff", **data}}


def test_a_sweep_that_goes_on_with_other_code_says_so_once() -> None:
    done = [measured(config(repeat=n), nodes="a", software="sw") for n in range(3)]
    going = Sameness([node("a")], done)
    assert not going.met(node("a"))
    (line,) = going.met(node("a", "new", "c2"))
    assert "the code in workers/ has changed since 3 of this sweep's trials" in line
    assert "then sw; now new, on a" in line
    assert "run the file again" in line
    assert not going.met(node("b", "new", "c2"))
    assert not going.ended(measured(config(repeat=4), nodes="a", software="new"))


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"horovod": "aa", "numpy": "cc"}, "what is installed of horovod has changed"),
        ({"keras": "dd", "horovod": "bb", "numpy": "cc"}, "what is installed of keras has changed"),
        (None, "what a fingerprint tells of packages has changed"),
    ],
)
def test_a_sweep_that_goes_on_with_another_build_of_a_package_names_it(
    before: dict[str, str] | None, said: str
) -> None:
    def built(digest: str, contents: dict[str, str] | None) -> dict[str, Any]:
        made = node("a", digest)
        return made | {"software": made["software"] | ({"package_contents": contents} if contents else {})}

    done = [measured(config(), nodes="a", software="sw")]
    (line,) = Sameness([built("sw", before)], done).met(built("new", {"horovod": "bb", "numpy": "cc"}))
    assert said in line


INFERRED = TrialOutcome(status="infeasible", kind="host memory", inferred_from="b64")


def ended(trial: TrialConfig, status: Any, kind: str = "", **places: str) -> TrialRecord:
    outcome = TrialOutcome(status=status, kind=kind, granted=on("a", **places) if places else ())
    return record(trial, outcome=outcome)


def test_a_sweep_that_goes_on_with_other_code_says_of_what_else_decides_nothing_any_more() -> None:
    made = {"software": "sw", "data_files": "ff"}
    done = [
        *(measured(reading("/images", repeat=n), nodes="a", **made) for n in range(3)),
        *(ended(reading("/images", batch_size=64, repeat=n), "infeasible", "host memory", **made) for n in range(2)),
        record(reading("/images", batch_size=128), outcome=INFERRED),
        ended(reading("/images", batch_size=256), "pruned", "hopeless", **made),
        ended(reading("/images", batch_size=512), "failed", "killed", **made),
    ]
    trial = reading("/images")
    equal = asha.equals(trial, (("a", 1),), {"a": cache.NodeContents("hw", "sw", {"/images": "ff"})})
    stood = {"trial": trial.trial, "cell": trial.cell, "equals": equal, "figure": 0.5, "taken_s": 1.0}
    arrivals = [
        *(asha.Arrival(**stood, epoch=n, is_at_rung=True, is_at_target=False) for n in range(4)),
        asha.Arrival(**stood, epoch=5, is_at_rung=False, is_at_target=True),
    ]
    (line,) = Sameness([node("a")], done, arrivals).met(node("a", "new", "c2"))
    assert "the code in workers/ has changed since 6 of this sweep's trials were (then sw; now new, on a)" in line
    assert (
        "3 completed stay in rows of their own, 2 infeasible, 1 stopped by the search, 4 places at rungs"
        " decide nothing about trials from here on" in line
    )
    (line,) = Sameness([node("a")], done, arrivals).met(node("a", **{"/images": "00"}))
    assert "the data in /images has changed since 6 of this sweep's trials were" in line
    assert "2 infeasible, 1 stopped by the search, 4 places at rungs decide nothing" in line
    (line,) = Sameness([node("a")], [], arrivals).met(node("a", "new", "c2"))
    assert "has changed since this sweep began (then sw; now new, on a): 4 places at rungs decide nothing" in line


def test_who_stood_at_a_rung_of_torch_has_the_software_of_torch() -> None:
    trial = dataclasses.replace(reading("/images"), framework="torch")
    has_both = node("a") | {"torch_software": {"digest": "t1", "code": "c1"}}
    (other,) = (
        asha.Rungs(1, 2, 4)
        .judge(
            trial,
            asha.equals(trial, (("a", 1),), {"a": cache.contents(has_both)}),
            [EpochRecord(epoch=1, images=1, loss=1.0, rate=0.1, train_s=1.0, top1=0.5)],
        )
        .arrivals
    )
    stood = asha.arrival(dataclasses.asdict(other))
    assert not Sameness([has_both], [], [stood]).met(has_both)
    changed = has_both | {"torch_software": {"digest": "t2", "code": "c2"}}
    (line,) = Sameness([has_both], [], [stood]).met(changed)
    assert "the code in workers/ has changed since this sweep began (then t1; now t2, on a): 1 places at rungs" in line
    noted = {name: at for name, at in dataclasses.asdict(other).items() if name != "framework"}
    assert asha.arrival(noted).framework == "tensorflow", "of a ledger of before"


def test_code_of_ones_own_that_runs_in_both_frameworks_is_known_by_each() -> None:
    own = dataclasses.replace(config(), model="nets:net")
    of_torch = dataclasses.replace(own, framework="torch")
    going = Sameness([node("a")])
    assert not going.ended(measured(own, nodes="a", software="own"))
    assert not going.ended(measured(of_torch, nodes="a", software="own of torch"))
    assert not going.ended(measured(own, nodes="a", software="own"))
    (line,) = going.ended(measured(of_torch, nodes="a", software="edited"))
    assert "your own code, or the code and software that it runs on, was changed" in line


def test_a_sweep_that_goes_on_on_other_files_says_so() -> None:
    done = [measured(reading("/images"), nodes="a", software="sw", data_files="ff")]
    (line,) = Sameness([node("a")], done).met(node("a", **{"/images": "00"}))
    assert "the data in /images has changed since 1 of this sweep's trials" in line


def test_a_rank_that_ran_what_its_node_did_not_have_is_named() -> None:
    """One that starts as a process of its own loads the files as they are by then."""
    going = Sameness()
    assert not going.met(node("a"))
    assert not going.ended(measured(config(), nodes="a", software="sw"))
    (line,) = going.ended(measured(config(repeat=1), nodes="a", software="edited"))
    assert "was changed while the sweep ran" in line
    assert not going.ended(measured(config(repeat=2), nodes="a", software="edited"))


def test_nodes_whose_data_differs_are_named() -> None:
    going = Sameness()
    assert not going.met(node("a"))
    (line,) = going.met(node("b", **{"/images": "00"}))
    assert "/images must hold the same files on every node" in line
    assert "on a and b" in line


def test_each_framework_s_trials_are_known_by_its_own_software() -> None:
    """A node says both; that a torch was installed or changed is no news of TensorFlow's trials."""

    def both(of_torch: str) -> dict[str, Any]:
        return node("a") | {"torch_software": {"digest": of_torch, "code": "c1", "packages": {"torch": of_torch}}}

    done = [measured(config(), nodes="a", software="sw")]
    trial = dataclasses.replace(config(batch_size=16), framework="torch")
    of_torch = measured(trial, nodes="a", software="t1")
    going = Sameness([both("t1")], [*done, of_torch])
    assert not going.met(both("t1"))
    (line,) = going.met(both("t2"))
    assert "packages has changed" in line
    assert "then t1; now t2" in line
    assert not going.ended(measured(trial, nodes="a", software="t2"))
    assert going.ended(measured(trial, nodes="a", software="edited"))
    made = cache.contents(both("t1"))
    assert [made.fingerprints(one)[1] for one in (config(), trial)] == ["sw", "t1"]
    assert cache.fingerprints(trial, [(cache.contents(node("a")).fingerprints(trial), 1)]) is None
