"""A check-up's table: what is wrong with which node, and who has not answered. No node is asked: what Ray raises is
planted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from sweeps.cli import main
from sweeps.cluster import checkup
from sweeps.cluster import ray_cluster as cluster
from workers.checks import node_checkup

ROOT = Path(__file__).parents[2]
NODE: dict[str, Any] = {
    "host": "n1",
    "address": "10.0.0.1",
    "rack": "r1",
    "versions": {"ray": "2.60.0", "horovod": "0.28.1"},
    "gpus": ["V100", "V100"],
    "devices": 2,
    "mismatches": [],
    "trouble": [],
    "has_nccl": True,
    "missing": [],
    "name_leads_to": "10.0.0.1",
    "promised": 2,
    "runs_trials": True,
}
HEAD = NODE | {
    "host": "head",
    "address": "10.0.0.9",
    "gpus": [],
    "promised": 0,
    "has_nccl": False,
    "runs_trials": False,
}


def test_a_check_up_says_what_is_wrong_with_which_node() -> None:
    nodes = [
        NODE,
        NODE,
        NODE | {"host": "old", "versions": {"ray": "2.59.0", "horovod": "0.28.1"}},
        NODE | {"host": "bad", "has_nccl": False, "missing": ["/data"], "name_leads_to": ""},
        NODE | {"host": "fewer", "gpus": ["V100"]},
        NODE | {"host": "blind", "gpus": [], "promised": 0},
        NODE | {"host": "elsewhere", "name_leads_to": "192.168.0.1"},
        NODE | {"host": "13", "mismatches": ["CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"]},
    ]
    rows = checkup.rows(nodes, [0.0, 0.49, 0.0, -0.7, *[0.0] * 4], [1000.0, 990.0, 100.0, 1000.0, *[980.0] * 4])
    wrong = {n: row["wrong"] for n, row in enumerate(rows)}
    assert wrong[0] == wrong[1] == ""
    assert wrong[2] == "ray 2.59.0, others 2.60.0; a slow link"
    for words in ("clock -0.7 s", "can't read /data", "its own name", "without NCCL"):
        assert words in wrong[3]
    assert wrong[4] == "Ray promises 2 GPUs, TensorFlow sees 1"
    assert wrong[5] == "TensorFlow sees no GPU"
    assert wrong[6] == "its name leads to 192.168.0.1, not 10.0.0.1 (/etc/hosts)"
    assert wrong[7] == "CUDA 13.0 compiles for 7.5 and later, but V100 has 7.0: CUDA 12"
    assert [row[""] for row in rows] == ["✓", "✓", *["✗"] * 6]
    assert rows[0]["GPUs"] == "2 V100"


NO_CODE = ray.exceptions.RayTaskError("facts", "ModuleNotFoundError: No module named 'workers.checks'", RuntimeError())
FIREWALL = ray.exceptions.RayTaskError("send", "Traceback …\nTimeoutError: timed out", TimeoutError())
FAULTS = [
    (ray.exceptions.GetTimeoutError("late"), "has not answered within"),
    (ray.exceptions.NodeDiedError("gone"), "has gone while it was asked"),
    (NO_CODE, "another version of the project's code: ray up "),
    (ray.exceptions.RayTaskError("facts", "Traceback …\nOSError: no space", OSError()), "OSError: no space"),
]


class Question:
    """A question to a node, or an actor there; Ray's `remote`."""

    def __init__(self, node: str, call: Any) -> None:
        self.node, self.call = node, call

    def remote(self, *_: object) -> Question:
        return self

    @property
    def port_number(self) -> Question:
        return Question(self.node, "port")


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, Any], Exception]:
    """What a node raises when it is asked something; else it answers."""
    names, raised = ("n1", "n2", "n3"), dict[tuple[str, Any], Exception]()
    said = {name: value for name, value in NODE.items() if name != "runs_trials"}  # Ray tells that
    answers = {node_checkup.clock: time.time, node_checkup.send: lambda: 900.0}

    def get(asked: Question, timeout: float) -> Any:
        assert timeout >= 0
        if error := raised.get((asked.node, asked.call)):
            raise error
        return answers.get(
            asked.call, lambda: said | {"host": asked.node, "address": asked.node, "name_leads_to": asked.node}
        )()

    alive = [
        {"NodeID": name, "Alive": True, "NodeManagerHostname": name, "NodeManagerAddress": name}
        | {"Resources": {"CPU": 8.0, "GPU": 2.0}}
        for name in names
    ]
    monkeypatch.setattr(cluster, "connected", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "on", Question)
    monkeypatch.setattr(checkup, "_launched", dict)
    for name, body in {"nodes": lambda: alive, "get": get, "kill": lambda _: None}.items():
        monkeypatch.setattr(ray, name, body)
    return raised


@pytest.mark.parametrize(("error", "words"), FAULTS)
@pytest.mark.parametrize("question", [node_checkup.facts, node_checkup.clock])
def test_a_node_that_gives_no_answer_is_a_line_with_its_cure_and_the_others_are_shown(
    question: Any, error: Exception, words: str, three_nodes: dict[tuple[str, Any], Exception]
) -> None:
    three_nodes["n2", question] = error
    first, second, third = checkup.examine("auto", ())
    assert [row[""] for row in (first, second, third)] == ["✓", "✗", "✓"]
    assert second["node"] == "n2"
    assert words in second["wrong"]
    assert first["to the next"] == "900 MiB/s"


@pytest.mark.parametrize(
    ("at", "call", "error", "words"),
    [
        ("n1", node_checkup.send, FIREWALL, "no link to n2 (TimeoutError: timed out): no firewall may"),
        ("n1", node_checkup.send, ray.exceptions.GetTimeoutError("late"), "no link to n2 (60 s): no firewall may"),
        ("n2", "port", ray.exceptions.ActorDiedError(), "no link to n2: one of the two has gone"),
    ],
)
def test_two_nodes_without_a_link_are_a_line_and_the_others_are_shown(
    at: str, call: Any, error: Exception, words: str, three_nodes: dict[tuple[str, Any], Exception]
) -> None:
    three_nodes[at, call] = error
    first, second, third = checkup.examine("auto", ())
    assert [row[""] for row in (first, second, third)] == ["✗", "✓", "✓"]
    assert words in first["wrong"]
    assert (first["to the next"], second["to the next"]) == ("", "900 MiB/s")


def test_a_check_up_names_a_node_whose_tensorflow_or_horovod_can_t_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["TensorFlow and Horovod must be importable, but their probe says: ImportError: libz"]
    on_cpus = NODE | {"gpus": [], "devices": 0, "promised": 0, "has_nccl": False}
    (row,) = checkup.rows([on_cpus | {"trouble": said}], [0.0], [None])
    assert (row[""], row["wrong"]) == ("✗", said[0])
    failed = subprocess.CompletedProcess([], 1, "", "Traceback …\nImportError: libz\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert node_checkup.facts([])["trouble"] == [f"{said[0]} (make clean setup installs them anew)"]
    halves = subprocess.CompletedProcess([], 0, json.dumps({"trouble": ["Horovod can't"], "gpus": []}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: halves)
    assert node_checkup.facts([])["trouble"] == ["Horovod can't"]


def test_a_check_up_of_one_node_has_no_link() -> None:
    (row,) = checkup.rows([NODE], [0.0], [None])
    assert (row["wrong"], row["to the next"]) == ("", "")


def test_a_check_up_asks_the_head_too_but_for_what_trials_need() -> None:
    head, node = checkup.rows([HEAD | {"name_leads_to": "127.0.1.1"}, NODE], [0.0, 0.0], [None, None])
    assert (head["node"], head["GPUs"], head["wrong"]) == ("head", "runs no trials", "")
    assert node["GPUs"] == "2 V100"
    older = HEAD | {"versions": {"ray": "2.60.0", "horovod": "0.27.0"}, "missing": ["/shared"]}
    wrong = checkup.rows([older, NODE, NODE], [0.9, 0.0, 0.0], [None, 900.0, 900.0])[0]["wrong"]
    assert wrong == "horovod 0.27.0, others 0.28.1; can't read /shared; clock +0.9 s"


def test_right_after_ray_up_a_check_up_names_the_nodes_that_have_not_come() -> None:
    (head,) = checkup.rows([HEAD], [0.0], [None])
    assert (head[""], head["wrong"]) == ("✗", "no node that runs trials has joined it")
    launched = {"provider": {"head_ip": "10.0.0.9", "worker_ips": ["10.0.0.1", "10.0.0.2"]}}
    named = checkup.expected({"10.0.0.9", "10.0.0.1"}, launched, str)
    assert named == {"10.0.0.9": True, "10.0.0.1": True, "10.0.0.2": False}
    (late,) = checkup.absent(named)
    assert (late[""], late["address"]) == ("✗", "10.0.0.2")
    assert "has not joined" in late["wrong"]
    assert list(late) == list(head)  # one table
    assert checkup.absent(checkup.expected({"10.0.0.9", "10.0.0.1", "10.0.0.2"}, launched, str)) == []
    assert checkup.expected({"127.0.0.1"}, launched, str) == {}  # the file is of another cluster
    assert checkup.expected({"10.0.0.9"}, {"provider": {"type": "aws"}}, str) == {}


def test_a_cluster_whose_nodes_come_when_trials_wait_for_them_is_healthy_without_any() -> None:
    aws = yaml.safe_load((ROOT / "clusters/aws.yaml").read_text())
    assert checkup.asks_for_none(aws)
    (head,) = checkup.rows([HEAD], [0.0], [None], may_be_idle=True)
    assert (head[""], head["wrong"]) == ("✓", "")
    aws["available_node_types"]["gpu"]["min_workers"] = 1
    assert not checkup.asks_for_none(aws)
    of_own_machines = {"available_node_types": {"local.cluster.node": {}}, "head_node_type": "local.cluster.node"}
    assert not checkup.asks_for_none(of_own_machines), "as Ray writes cluster.yaml on its head"
    assert not checkup.asks_for_none({})


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_check_up_says_how_many_nodes_have_joined_or_that_none_need_be_there(
    is_idle: bool,
    three_nodes: dict[tuple[str, Any], Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    aws = yaml.safe_load((ROOT / "clusters/aws.yaml").read_text())
    own = {"provider": {"head_ip": "n1", "worker_ips": ["n2", "n3", "n4"]}}
    monkeypatch.setattr(checkup, "_launched", lambda: aws if is_idle else own)
    monkeypatch.setattr(checkup, "_resolved", str)
    if is_idle:
        alive = [node | {"Resources": {}} for node in ray.nodes()[:1]]
        monkeypatch.setattr(ray, "nodes", lambda: alive)
    assert main.main(["doctor", "--cluster"]) == (0 if is_idle else 3)
    told = capsys.readouterr()
    if is_idle:
        assert told.err == "no node runs trials now: they come when trials wait for them\n"
    else:
        assert told.err == "3 of 4 nodes have joined\n"
        assert "has not joined: `ray up` may still be setting it up" in told.out


def test_a_check_up_without_a_head_is_ray_s_first_line_and_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's words are planted: on this machine another test's head may answer."""

    def refuses(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\n*** SIGABRT received\n  @ 0x7f ray::core")

    monkeypatch.setattr(ray, "init", refuses)
    assert main.main(["doctor", "--cluster"]) == 3
    assert capsys.readouterr().err == (
        "Ray must answer on this machine, but: Could not find any running Ray instance.\n"
        "  if the cluster is elsewhere: --address cluster.yaml\n"
    )


def test_a_launcher_file_may_name_its_nodes() -> None:
    addresses = {"head.site": "10.0.0.9", "one.site": "10.0.0.1"}
    launched = {"provider": {"head_ip": "head.site", "worker_ips": ["one.site", "two.site"]}}
    named = checkup.expected({"10.0.0.9", "10.0.0.1"}, launched, lambda name: addresses.get(name, name))
    assert named == {"head.site": True, "one.site": True, "two.site": False}
    assert checkup._resolved("localhost") == "127.0.0.1"
    assert checkup._resolved("no-such-host.invalid") == "no-such-host.invalid"
