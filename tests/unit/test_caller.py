"""Commands that messages suggest: they can be copied as they stand."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.analysis import findings
from sweeps.analysis.findings import next_steps
from sweeps.analysis.study import Study
from sweeps.cli import gc, main
from sweeps.cluster import versions
from sweeps.record import ledger
from sweeps.run import status
from sweeps.store import query
from sweeps.text import addresses, caller
from sweeps.text.caller import Caller
from tests.unit import commands, sources
from tests.unit import test_findings as ends

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2] / "sweeps"
URL = "http://head:8265"
COMMANDS = [*main.sweep.commands]
A_COMMAND = re.compile(rf"(?:\bsweep|{{\w*}}) (?:{'|'.join(COMMANDS)}) (?:[A-Z]{{2,}}|--?\w|{{\w*}})")
NO_MESSAGES = {  # texts for whoever reads them, wherever they sit
    "text/caller.py",
    "report/trials.py",  # a page to send on
    "cli/main.py",  # the help
    "text/addresses.py",  # refuses the address that was given, and names forms of others
    "store/backup.py",  # is done where the store is
}
DONE_HERE = {"text/caller.py", "cluster/doctor.py", "run/reproduce.py", "store/backup.py"}  # by no head for others


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text but docstrings, with {} for what is put into it."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_message_writes_a_command_by_itself() -> None:
    assert len(COMMANDS) > 15
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in NO_MESSAGES
        for line, text in texts(sources.tree(path))
        if A_COMMAND.search(text)
    ]
    assert not found, "sweeps.text.caller.command writes it as the user can copy it"


def test_a_message_that_names_a_variable_asks_first_whose_counts() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = sources.tree(path)
        calls = [node for node in sources.nodes(path) if isinstance(node, ast.Call)]
        asks = [call for call in calls if ast.unparse(call.func) == "caller.elsewhere"]
        asked = {text for call in asks for _, text in texts(call)}
        for line, text in texts(tree):
            names = any(name in text and name != text for name in caller.OF_CLUSTER)
            if names and text not in asked and str(path.relative_to(ROOT)) not in DONE_HERE:
                found.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert not found, "sweeps.text.caller.elsewhere says what sets the head's"


def test_what_is_said_of_commands_and_their_addresses_is_so() -> None:
    kinds = {name: {*option.kinds} if (option := commands.address(one)) else set()
             for name, one in main.sweep.commands.items()}  # fmt: skip
    assert {name for name, may in kinds.items() if not may} == caller.NEVER
    assert {name for name, may in kinds.items() if "ray" in may} == caller.IN_RAY
    assert {name for name, may in kinds.items() if not may & {*addresses.AFAR}} == caller.NOT_AFAR


@pytest.mark.parametrize("text", ["to go on: {} resume {}", "mend it with `sweep sync {0}`", "sweep gc --yes"])
def test_a_command_that_a_message_writes_by_itself_is_found(text: str) -> None:
    assert A_COMMAND.search(text)


@pytest.mark.parametrize(
    "words",
    [
        ["trials", "x", "--where", "outcome == 'failed' or kind == 'a b'"],
        ["run", "my file.yaml", "--set", "batch_size=[8,16]"],
        ["status", "it's $HOME"],
    ],
)
def test_a_shell_reads_what_was_meant(words: list[str]) -> None:
    there = Caller("./my bin/sweep", "ssh" if words[0] != "run" else "ray", "our sites/one.yaml")
    where = ["--address", "our sites/one.yaml"]
    assert shlex.split(there.command(*words)) == ["./my bin/sweep", *words, *where]


@functools.cache  # the callers differ, not what was found
def found_in(**how: int) -> tuple[Study, findings.Findings]:
    of = ends.ended(**how)
    return of, findings.find(of)


@pytest.mark.parametrize("how", [{"failed": 2}, {"lost": 1}, {"infeasible": 9}, {"cancelled": 2}, {}])
@pytest.mark.parametrize("stopped", ["", "interrupted", "nothing else fits in the budget"])
@pytest.mark.parametrize(("kind", "address"), [("ssh", "our sites/one.yaml"), ("http", URL), ("ssh", "")])
def test_whoever_submitted_a_sweep_can_copy_each_step_after_it(
    how: dict[str, int], stopped: next_steps.Stopped, kind: addresses.Kind, address: str
) -> None:
    of, found = found_in(**how)
    at = next_steps.Situation(caller=Caller(kind=kind, address=address), file="a b.yaml", stopped=stopped)
    steps = [step for step in next_steps.suggest(of, found, at) if step.word != "log"]
    assert steps
    for step in steps:
        words = shlex.split(step.what)
        read = commands.read(words[1:])
        assert (read.params["address"] or "") == ("FILE" if (words[1], kind) == ("ui", "http") else address), step
        assert kind in commands.address(read.command).kinds or words[1] == "ui"  # type: ignore[union-attr]


def test_a_log_that_lies_on_the_head_is_said_to() -> None:
    of = ends.ended(failed=1)
    at = next_steps.Situation(caller=Caller(kind="ssh", address="c.yaml"))
    (why,) = [step.why for step in next_steps.suggest(of, findings.find(of), at) if step.word == "log"]
    assert why == "on the head"


def test_a_sweep_that_was_submitted_goes_on_in_the_cluster_also_from_a_shell_on_the_head(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"sweep": "x", "state": "stopped", "ended": {}, "waiting": 2, "spent": 0.0, "unit": "GPU-hours"}
    for is_submitted, says in ((True, "sweep resume x --address auto"), (False, "sweep resume x")):
        status.render(iter([told | {"is_submitted": is_submitted}]))
        assert capsys.readouterr().out.rstrip().endswith(says)
    with caller.introduce(URL, "http"):
        status.render(iter([told | {"is_submitted": True}]))
    assert capsys.readouterr().out.rstrip().endswith(f"sweep resume x --address {URL}")


def test_deeper_down_a_message_knows_the_address_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger, "names", lambda: ["x"])
    monkeypatch.setattr(gc, "find", lambda *_: ([gc.Leftover("x", (), 1, 100.0)], {}))
    with caller.introduce("c.yaml", "ssh"):
        assert "sweep sync x --address c.yaml brings it" in str(query._unknown("x", []))
        gc.collect(30.0, True, False, "table")
        assert "ray up c.yaml" in versions.difference('{"code": "a", "ray": "1"}', '{"code": "a", "ray": "2"}')
    assert "sweep gc --older 30 --ledgers --yes --address c.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "variable", "says"),
    [
        ("a b.yaml", "other.yaml", "ray up 'a b.yaml' brings"),
        ("", "other.yaml", "ray up other.yaml brings"),
        (URL, "other.yaml", "ray up FILE (the cluster's launcher file) brings"),
        ("", URL, "ray up FILE (the cluster's launcher file) brings"),
    ],
)
def test_ray_up_is_suggested_with_the_launcher_file_that_was_named_and_with_no_other(
    given: str, variable: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end another cluster's sweeps. Here and on the head, which is told."""
    heard = []

    def relay(arguments: object, url: str, sends: object = None) -> int:
        heard.append(versions.message(["x"]))
        monkeypatch.setenv(caller.CALLED, caller.as_json())
        heard.append(versions.message(["x"]))
        return 0

    monkeypatch.setattr("sweeps.cluster.ray_jobs.relay", relay)
    monkeypatch.setenv(addresses.JOB_SERVER, variable)
    assert main.main(["list", *(["--address", given] if given else [])]) == 0
    assert [says in words for words in heard] == [True, True], heard


def test_a_head_answers_one_whose_newer_command_tells_it_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caller.CALLED, '{"me": "sweep", "kind": "http", "address": "", "mood": "calm"}')
    assert caller.current().kind == "http"


def test_a_secret_in_an_address_is_not_passed_on() -> None:
    with caller.introduce("http://me:secret-of-mine@head:8265", "http"):
        assert "secret-of-mine" not in caller.as_json()


def test_a_command_that_is_refused_says_it_with_the_address_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "a b.yaml", "--set", "x=[1, 2]", "--address", "our.yaml"]) == 2
    assert "sweep submit 'a b.yaml' --set 'x=[1, 2]' --address our.yaml" in capsys.readouterr().err
