"""The shipped cluster.yaml on three hosts: what a user does from a laptop, what fails meanwhile, who may come in."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import socket
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import link
from sweeps import errors
from tests.cluster import database, strangers
from tests.cluster.hosts import ROOT, Host
from tests.cluster.launched import PLANTED, Laptop, look_for_planted

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(900)]

SMALL = """
name: NAME
model: tiny
device: cpu
image_size: 32
classes: 10
space: {batch_size: BATCHES, gpus: GPUS, placement: [spread]}
repeats: REPEATS
steps: {warmup: 5, measured: STEPS}
"""
ANOTHERS_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPPwS8TdNc7PpVA4AqbWfDoQ1w8xh1olVavzWuleDKO5"
LOOPBACK = ("127.", "[::1]", "[::ffff:127.")


def sweep(
    laptop: Laptop,
    name: str,
    *,
    batches: str = "[8, 16]",
    gpus: str = "[1, 2]",
    repeats: int = 1,
    steps: int = 20,
    more: str = "probe_every_min: 0",
) -> Path:
    """A file of it. Its trials of one size share a gang, which takes longer to start than they do."""
    text = SMALL.replace("NAME", name).replace("BATCHES", batches).replace("GPUS", gpus)
    file = laptop.home / f"{name}.yaml"
    file.write_text(text.replace("REPEATS", str(repeats)).replace("STEPS", str(steps)) + f"{more}\n")
    return file


def status(laptop: Laptop, name: str) -> dict[str, Any]:
    return dict(json.loads(laptop.sweep("status", name, "--format", "json")))


def until(laptop: Laptop, name: str, holds: Callable[[dict[str, Any]], bool], within_s: float = 200) -> dict[str, Any]:
    """What `sweep status` would say, as soon as this holds; looking takes no processor's time from the ranks."""
    give_up = time.monotonic() + within_s
    while not holds(told := laptop.look(name)):
        assert time.monotonic() < give_up, told
        time.sleep(0.2)
    return told


def is_complete(told: dict[str, Any]) -> bool:
    return bool(told["state"] == "complete")


def ended(told: dict[str, Any]) -> int:
    return sum(told["ended"].values())


def entries(laptop: Laptop, name: str, kind: str) -> list[dict[str, Any]]:
    """Return the entries of a sweep's ledger in the shared folder, where its driver may be writing the last line."""
    whole, _, _ = (laptop.results / name / "ledger.jsonl").read_text().rpartition("\n")
    return [entry for line in whole.splitlines() if (entry := json.loads(line))["kind"] == kind]


def in_mlflow(head: Host, name: str) -> Counter[str]:
    """The status of each run of a sweep's trials, asked of the server on the head over HTTP."""
    script = (
        "import json, urllib.request as u; "
        "ask = lambda path, body: json.load(u.urlopen(u.Request('http://127.0.0.1:5000/api/2.0/mlflow/' + path, "
        "json.dumps(body).encode(), {'Content-Type': 'application/json'}))); "
        "ids = [e['experiment_id'] for e in ask('experiments/search', {'max_results': 100})['experiments']]; "
        f"found = ask('runs/search', {{'experiment_ids': ids, 'max_results': 1000, "
        f"'filter': \\\"tags.\\`sweep.name\\` = '{name}' and tags.\\`sweep.trial\\` LIKE '%-%'\\\"}}); "
        "print(json.dumps([run['info']['status'] for run in found.get('runs', [])]))"
    )
    return Counter(json.loads(head.run(f'~/ray-sweeps/.venv/bin/python -c "{script}"')))


def at_once(*calls: Callable[[], str]) -> list[str]:
    """What each says; two at a time, since a command waits for the head as long as it computes here."""
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(lambda call: call(), calls)]


WATCH = """
import json, os, psutil, sys, time
from_the_start, seen = {}, set()
while os.path.exists(sys.argv[1]):
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            is_gang = "ray::Gang" in words
            if not is_gang and "workers.launch.fork_server" not in words:
                continue
            listening = {tuple(one.laddr) for one in process.net_connections("tcp") if one.status == "LISTEN"}
            seen |= listening - (from_the_start.setdefault(process, listening) if is_gang else set())
        except psutil.Error:
            pass
    time.sleep(0.05)
print(json.dumps(sorted(seen)))
"""


@contextlib.contextmanager
def watched(laptop: Laptop) -> Iterator[dict[Host, set[str]]]:
    """At which addresses of each host something of a gang listened; known when the block has ended."""
    script, is_on = (laptop.home.parent / "shared" / name for name in ("watch.py", "watching"))
    script.write_text(WATCH)
    is_on.touch()
    heard: dict[Host, set[str]] = {}
    with ThreadPoolExecutor() as pool:
        look = f"~/ray-sweeps/.venv/bin/python {script} {is_on}"
        watching = {host: pool.submit(host.run, look, 300) for host in (laptop.head, *laptop.workers)}
        try:
            yield heard
        finally:
            is_on.unlink()
        heard |= {host: {address for address, _ in json.loads(one.result())} for host, one in watching.items()}


@dataclasses.dataclass(frozen=True)
class First:
    """A sweep that several tests look at: submitted, and followed to its end."""

    name: str
    file: Path
    data: Path
    log: Sequence[str]
    heard: Mapping[Host, set[str]]


@pytest.fixture(scope="module")
def first(laptop: Laptop) -> First:
    data = laptop.home.parent / "shared/images"
    made = f"data make {data} --images 64 --shards 4 --size 32x32 --classes 10"
    laptop.head.run(f"cd ~/ray-sweeps && .venv/bin/python -m sweeps.cli {made}")
    file = sweep(laptop, "first", more=f"data: {data}")
    with watched(laptop) as heard:
        name = laptop.sweep("submit", file).strip()
        log = laptop.sweep("logs", name, "-f", timeout_s=300).splitlines()
    return First(name, file, data, log, heard)


def test_a_sweep_is_submitted_and_its_results_are_read_from_afar(laptop: Laptop, first: First) -> None:
    name, page = first.name, laptop.home / "first.html"
    assert name == "first"
    if database.programs():  # then MLflow's runs stand in PostgreSQL, which wants a password
        asked = "psql -h 127.0.0.1 -U sweep -d mlflow -tAc 'SELECT count(*) FROM runs'"
        assert int(laptop.head.run(f"{database.programs()}/{asked}")) >= 5
    told, log, of_two, _, planned, proposed, old, listed, there = at_once(
        lambda: laptop.sweep("status", name, "--format", "json"),
        lambda: laptop.sweep("logs", name),
        lambda: laptop.sweep("trials", name, "--where", "gpus == 2", "--format", "json"),
        lambda: laptop.sweep("report", name, "--out", page),
        lambda: laptop.sweep("plan", first.file),
        lambda: laptop.sweep("plan", "--next", name, first.file),
        lambda: laptop.sweep("gc", "--older", "0"),
        lambda: laptop.sweep("list"),
        lambda: laptop.head.run("sweep list"),  # its shells look where drivers write
    )
    assert json.loads(told)["state"] == "complete"  # it was followed to its end
    assert json.loads(told)["ended"] == {"completed": 4}
    assert log.splitlines() == first.log
    nodes = {frozenset(place["node"] for place in one["outcome"]["granted"]) for one in entries(laptop, name, "trial")}
    assert frozenset({"node1", "node2"}) in nodes  # the ranks of one trial on two hosts
    assert in_mlflow(laptop.head, name) == {"FINISHED": 4}
    rows = json.loads(of_two)
    assert len(rows) == 2
    assert all(row["images_per_s"] > 0 for row in rows)
    assert "<html" in page.read_text()
    assert "4 cells × 1 repeats = 4 trials" in planned
    assert "2 nodes of" in planned
    assert "first has measured every cell" in proposed
    exported = laptop.head.run("curl -s http://127.0.0.1:44237")
    assert re.search(r'^ray_sweep_trials_total{.*outcome="completed".*sweep="first".* 4.0$', exported, re.MULTILINE)
    assert "first" in old
    assert "first" in listed
    assert there == listed


def test_what_listens_while_gangs_join_does_so_on_the_gangs_addresses(laptop: Laptop, first: First) -> None:
    """What keeps a trial is the rendezvous; of ranks, Gloo: for seconds each. What a Ray worker listens on from its
    start is Ray's, which strangers try below."""
    assert any(first.heard.values())
    for host in (laptop.head, *laptop.workers):
        assert first.heard[host] <= {host.address, "127.0.0.1"}, first.heard[host]


def test_a_ctrl_c_takes_a_submission_back(laptop: Laptop) -> None:
    def drivers() -> int:
        return int(laptop.head.run("pgrep -fc '[s]weeps.cli run' || true"))

    with laptop.started("submit", sweep(laptop, "hasty", steps=300)) as submitting:
        give_up = time.monotonic() + 60
        while not drivers():
            assert time.monotonic() < give_up
        submitting.send_signal(signal.SIGINT)
        assert submitting.wait(60) == errors.INTERRUPTED
        assert submitting.stdout
        assert submitting.stdout.read() == "", "no name of a sweep that was taken back"
    assert not drivers()
    assert [one["status"] for one in laptop.jobs() if "hasty" in one["id"]] == ["STOPPED"]


def test_a_sweep_that_is_stopped_and_resumed_from_afar_ends_complete_whatever_fails(laptop: Laptop) -> None:
    head, victim = laptop.head, laptop.workers[1]
    name = laptop.sweep("submit", sweep(laptop, "unlucky", batches="[8, 10, 12, 14, 16, 18]", steps=40)).strip()
    until(laptop, name, lambda told: ended(told) >= 1)
    head.run("pkill -9 -f '[m]lflow server'")  # it comes back by itself
    with victim.cut_off():
        time.sleep(20)
    already = ended(laptop.look(name))
    until(laptop, name, lambda told: ended(told) > already)  # the driver goes on by itself
    assert "is stopped" in laptop.sweep("stop", name)
    told = status(laptop, name)
    assert told["state"] == "stopped"
    before = ended(told)
    assert before < 12
    assert "RUNNING" not in in_mlflow(head, name)
    assert head.run("pgrep -fc '[s]weeps.cli run' || true").strip() == "0"
    laptop.sweep("resume", name)
    until(laptop, name, lambda told: any(victim.name in one["nodes"] for one in told.get("running", ())))
    victim.kill()  # a host, in mid-trial
    time.sleep(5)
    victim.start()  # its power is back: the head starts Ray there again
    head.run("pkill -9 -f '[s]weeps.cli resume'")
    laptop.sweep("resume", name)
    assert "complete: 12 completed" in laptop.sweep("status", name, "-f", timeout_s=300)
    trials = entries(laptop, name, "trial")
    assert len({one["trial"] for one in trials if one["outcome"]["status"] == "completed"}) == 12
    assert in_mlflow(head, name) == {"FINISHED": 12}
    assert "nothing is left to run" in laptop.sweep("resume", name)  # it shows its results, and that is no failure
    assert "results in" in laptop.sweep("logs", name)
    laptop.wait_for_nodes()  # the host too comes back


def test_two_sweeps_at_once_share_the_hosts(laptop: Laptop) -> None:
    names = [laptop.sweep("submit", sweep(laptop, one), "--fresh").strip() for one in ("mine", "yours")]
    both = until(laptop, names[1], lambda told: any(node["others_until"] for node in told.get("nodes", ())))
    assert len(both["nodes"]) == 2
    for name in names:
        assert until(laptop, name, is_complete)["ended"] == {"completed": 4}
    held = [
        (place["node"], one["started_at"], one["ended_at"], name)
        for name in names
        for one in entries(laptop, name, "trial")
        for place in one["outcome"]["granted"]
    ]
    assert not [
        (one, other)
        for one, other in itertools.combinations(held, 2)
        if one[0] == other[0] and one[3] != other[3] and max(one[1], other[1]) < min(one[2], other[2])
    ]  # never on one host together
    first, second = ([at for _, at, _, name in held if name == which] for which in names)
    assert min(second) < max(first)  # and not one after the other


def kinds(laptop: Laptop, file: Path, name: str) -> Counter[str]:
    """How the trials of a sweep, which gets this name, come to their figures: `cached`, or in no special way."""
    assert laptop.sweep("submit", file).strip() == name
    until(laptop, name, is_complete)
    return Counter(one["outcome"]["kind"] for one in entries(laptop, name, "trial"))


def test_hosts_are_served_nothing_that_other_code_or_other_files_have_measured(
    laptop: Laptop, first: First, tmp_path: Path
) -> None:
    """No git comes to them: what counts is what runs there."""
    for name in ("sweeps", "workers", "references"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    gantt, loop = tmp_path / "sweeps/text/gantt.py", tmp_path / "workers/workloads/images/throughput.py"
    some = laptop.home / "some.yaml"
    some.write_text(first.file.read_text().replace("[8, 16]", "8"))
    with pytest.MonkeyPatch.context() as laptops:
        laptops.setitem(laptop.environment, "PYTHONPATH", str(tmp_path))
        gantt.write_text(gantt.read_text() + "# it runs in no rank\n")
        assert kinds(laptop, first.file, "first-2") == {"cached": 4}
        loop.write_text(loop.read_text().replace("work.steps += 1", "work.steps += 1; time.sleep(0.002)", 1))
        assert kinds(laptop, some, "first-3") == {"": 2}
    shard = next(first.data.glob("train-*"))
    os.utime(shard, (shard.stat().st_atime, shard.stat().st_mtime + 60))
    assert kinds(laptop, some, "first-4") == {"": 2}
    ran = {n: entries(laptop, n, "trial") for n in ("first", "first-2", "first-3", "first-4")}
    software = {
        n: {(one["outcome"]["cached"] or one["outcome"]["granted"][0])["software"] for one in those}
        for n, those in ran.items()
    }
    assert len(software["first"]) == len(software["first-3"]) == 1
    assert software["first"] == software["first-2"] == software["first-4"] != software["first-3"]
    for those in ran.values():
        assert {tuple(one["config"]["arrangement"]) for one in those} == {(1,), (1, 1)}
    files = {
        n: {entry["data"][str(first.data)] for entry in entries(laptop, n, "node")}
        for n in ("first", "first-3", "first-4")
    }
    assert len(files["first"]) == len(files["first-4"]) == 1  # both see the same files
    assert files["first"] == files["first-3"] != files["first-4"]


@pytest.mark.long  # a long cycle in one machine does as much to the shares: tests/integration/test_limits.py
def test_a_slower_link_costs_efficiency_and_shows_as_communication(laptop: Laptop) -> None:
    """One sweep, whose link changes; what was under way at a change counts for neither."""
    rates = (0, 200, 20)
    file = sweep(laptop, "link", batches="16", gpus="2", repeats=20, steps=30)  # it is stopped once it has shown enough
    name = laptop.sweep("submit", file, "--fresh").strip()
    ran: dict[int, list[str]] = {}
    for mbit in rates:
        with laptop.workers[0].throttled(mbit) if mbit else contextlib.nullcontext():
            began = time.time()
            give_up = time.monotonic() + 200
            while len(ran.setdefault(mbit, [])) < 2:
                assert time.monotonic() < give_up, ran
                time.sleep(0.1)
                there = [one for one in entries(laptop, name, "trial") if one["started_at"] >= began]
                ran[mbit] = [one["trial"] for one in there if one["outcome"]["status"] == "completed"]
    laptop.sweep("stop", name)
    rows = {row["trial"]: row for row in json.loads(laptop.sweep("trials", name, "--format", "json"))}
    speed, share = (
        {mbit: statistics.mean(rows[trial][figure] for trial in ran[mbit]) for mbit in rates}
        for figure in ("images_per_s", "comm_share")
    )
    assert share[0] < share[200] < share[20], (share, speed)
    assert speed[200] > speed[20], (share, speed)
    slow, free = (link.LinkTrial(speed[mbit], share[mbit], 0) for mbit in (20, 0))
    # How near it comes, and how often, says `make bench ONE=link`.
    assert link.attributed(slow, free) == pytest.approx(link.removed(slow, free), abs=0.1), (share, speed)


SCRIPT = f"""
import os, time
import sweeps

assert os.environ["HF_TOKEN"] == "{PLANTED[:-1]}" + "{PLANTED[-1:]}-of-a-node"
for _ in sweeps.steps([None] * 200, items=8):
    time.sleep(0.02)
"""
OF_SCRIPT = """
name: secretive
run: python train.py --width {width}
device: cpu
unit: images
space: {gpus: 2, placement: [spread], width: [1]}
repeats: 1
env_from: [HF_TOKEN]
steps: {warmup: 5, measured: 150}
probe_every_min: 0
"""


def test_a_secret_of_a_node_reaches_a_script_there_and_nothing_that_is_written_logged_or_listed(laptop: Laptop) -> None:
    """Whatever else the tests of this file have written on the hosts is looked through too."""
    folder = laptop.home / "own"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / ".env").write_text(f"KEY={PLANTED}-beside-the-script\n")
    (folder / "hf_token.txt").write_text(f"{PLANTED}-in-a-file\n")
    (folder / "secretive.yaml").write_text(OF_SCRIPT)
    hosts = (laptop.head, *laptop.workers)
    name = laptop.sweep("submit", "secretive.yaml", "--fresh", folder=folder).strip()
    shown: list[str] = []

    def is_over(told: dict[str, Any]) -> bool:
        shown.extend(host.run(f"ps -ww -eo args= | grep -- {PLANTED}- | grep -v grep || true") for host in hosts)
        return is_complete(told)

    assert until(laptop, name, is_over)["ended"] == {"completed": 1}
    assert not [line for line in shown if line]
    assert len(shown) > len(hosts), "nothing was looked at while it ran"
    (ran,) = entries(laptop, name, "trial")
    assert {place["node"] for place in ran["outcome"]["granted"]} == {"node1", "node2"}
    told = [laptop.sweep(*command, name) for command in (("trials", "--format", "json"), ("logs",), ("status",))]
    laptop.sweep("report", name, "--out", folder / "page.html")
    assert PLANTED not in "".join([*told, (folder / "page.html").read_text()])
    for host in hosts:
        places = f"{laptop.results.parent} /tmp/ray ~/.ray-sweeps ~/ray-sweeps"
        options = "-rls --exclude-dir=.venv --binary-files=text"
        found = host.run(f"grep {options} -- {PLANTED}- {places} || true", timeout_s=120).split()
        assert [Path(path).name for path in found] == ["environment"], f"{host.name}: {found}"
        of_hosts = laptop.home.parent  # its files were looked through just now, or are the user's own
        look = look_for_planted(["/tmp", "/dev/shm"], of_hosts, of_hosts / "key")
        assert not host.run(look, timeout_s=300).split(), host.name
    jobs = laptop.job_list()
    assert any("sweeps.cli" in job for job in jobs), jobs
    assert PLANTED not in "".join(jobs)


def test_mlflow_is_seen_through_a_tunnel(laptop: Laptop) -> None:
    with laptop.started("ui", "--address", laptop.home / "cluster.yaml", "--port", 5577) as ui:
        assert ui.stdout
        assert "http://127.0.0.1:5577" in ui.stdout.readline()
        with urllib.request.urlopen("http://127.0.0.1:5577/version", timeout=10) as answer:
            assert answer.status == 200
    with socket.socket() as door:
        assert door.connect_ex(("127.0.0.1", 5577))  # it has ended with the command


def test_a_head_that_is_another_than_before_is_not_trusted(laptop: Laptop) -> None:
    known = laptop.known_hosts.read_text() if laptop.known_hosts.exists() else ""
    laptop.known_hosts.write_text(f"{laptop.head.address} {ANOTHERS_KEY}\n")
    try:
        told = laptop.sweep("ui", "--address", laptop.home / "cluster.yaml", "--port", 5578, code=3)
    finally:
        laptop.known_hosts.write_text(known)
    assert "Host key verification failed" in told
    assert f"ssh-keygen -R {laptop.head.address}" in told


def test_every_node_is_asked_the_same(laptop: Laptop) -> None:
    sound, told = at_once(
        lambda: laptop.sweep("doctor", "--cluster", "--format", "json"),
        lambda: laptop.sweep("doctor", "--cluster", "--data", "/data/nowhere", "--format", "json", code=3),
    )
    assert {row["wrong"] for row in json.JSONDecoder().raw_decode(sound)[0]} == {""}
    rows, _ = json.JSONDecoder().raw_decode(told)
    wrong = "can't read /data/nowhere"  # and nothing else is; the head reads no data
    assert {(row["node"], row["rack"], row["wrong"]) for row in rows} == {
        ("node0", "", ""),
        ("node1", "r0", wrong),
        ("node2", "r1", wrong),
    }


@contextlib.contextmanager
def in_mid_trial(laptop: Laptop, framework: str) -> Iterator[dict[Host, dict[int, str]]]:
    """What listens on each host while two ranks of a framework take their steps on two of them, which they still do
    when the block has ended."""
    file = sweep(laptop, f"scanned-{framework}", batches="8", gpus="2", steps=1_000_000)
    file.write_text(file.read_text().replace("space: {", f"space: {{framework: {framework}, "))
    name = laptop.sweep("submit", file, "--fresh").strip()
    try:
        before = until(laptop, name, lambda told: steps(told) > 0)
        yield {host: _listening(host) for host in (laptop.head, *laptop.workers)}
        after = until(laptop, name, lambda told: steps(told) > steps(before))  # strangers have ended no trial
    finally:
        laptop.sweep("stop", name)
    assert [one["trial"] for one in after["running"]] == [one["trial"] for one in before["running"]]


def of_ranks(doors: Mapping[Host, Mapping[int, str]]) -> list[tuple[str, int]]:
    """The ports of ranks, of their fork servers and of samplers."""
    return [(host.address, port) for host, ports in doors.items() for port, by in ports.items() if "workers." in by]


def test_a_stranger_gets_nothing_from_any_port_of_any_host_in_mid_trial(laptop: Laptop) -> None:
    """Whoever reaches them all, and has neither the token nor the trial's word."""
    with in_mid_trial(laptop, "tensorflow") as doors:
        opened = strangers.opened([(host.address, port) for host, ports in doors.items() for port in ports])
    assert 6379 in doors[laptop.head]
    assert not {5000, 8265} & doors[laptop.head].keys()  # MLflow and the dashboard: whoever wants them comes by SSH
    assert all(doors.values())
    assert not of_ranks(doors)
    assert not opened, {f"{place}": said for place, said in opened.items()}


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed: make setup TORCH=1")
def test_a_stranger_hears_nothing_from_the_ports_of_torch_ranks_in_mid_trial(laptop: Laptop) -> None:
    """Gloo's, one a rank at its host's address, which nothing closes."""
    with in_mid_trial(laptop, "torch") as doors:
        places = of_ranks(doors)
        said = [one for place in places for one in strangers.answers(*place)]
    assert sorted(address for address, _ in places) == sorted(host.address for host in laptop.workers)
    assert not said


def steps(told: dict[str, Any]) -> int:
    """That the trials which run have done."""
    found = [re.match(r"step (\d+)/", one["stage"]) for one in told.get("running", ())]
    return sum(int(one[1]) for one in found if one)


def test_what_a_user_can_get_wrong_is_said_in_a_line(laptop: Laptop) -> None:
    bad, large = sweep(laptop, "bad"), sweep(laptop, "large", gpus="32")
    bad.write_text(bad.read_text().replace("device: cpu", "device: abacus"))
    there = laptop.workers[0].home / "images"
    there.mkdir()
    (there / "train-0-of-1").touch()
    images = sweep(laptop, "images", more="data: /root/images")
    of_bad, of_large, of_images, of_place, of_name = at_once(
        lambda: laptop.sweep("submit", bad, code=2),
        lambda: laptop.sweep("submit", large, code=2),
        lambda: laptop.sweep("submit", images, code=2),
        lambda: laptop.sweep("list", "--address", f"http://{laptop.workers[0].address}:8265", code=3),
        lambda: laptop.sweep("status", "nosuch", code=2),
    )
    assert "device" in of_bad
    assert "32" in of_large
    assert "must hold train-*-of-* on every node, but not on node2" in of_images
    assert "must answer" in of_place
    assert "Traceback" not in of_name
    token = laptop.home / ".ray/auth_token"
    right = token.read_text()
    for wrong in ("0" * len(right.strip()), None):
        try:
            token.unlink() if wrong is None else token.write_text(wrong)
            told = laptop.sweep("list", code=3)
        finally:
            token.write_text(right)
        assert "token" in told
        assert "Traceback" not in told


def _listening(host: Host) -> dict[int, str]:
    """Ports that are open to others, but for SSH, and the command of each one's process."""
    sockets, processes = host.run("ss -Hltnp && echo and && ps -ww -eo pid=,args=").split("and\n", 1)
    commands = dict(line.split(None, 1) for line in processes.splitlines())
    found = {}
    for line in sockets.splitlines():
        address, _, port = re.sub(r"%\w+", "", line.split()[3]).rpartition(":")
        if address.startswith(LOOPBACK) or port == "22":
            continue
        found[int(port)] = "\n".join(commands.get(pid, "") for pid in re.findall(r"pid=(\d+)", line))
    return found


def take_down(laptop: Laptop) -> None:
    """And wait until nothing is left of it on any host: the nodes see their head refuse them."""
    laptop.down()
    give_up = time.monotonic() + 120
    for host in (laptop.head, *laptop.workers):
        while left := host.run("pgrep -af 'ray|mlflow|sweeps|workers' | grep -v pgrep | grep -v sshd || true"):
            assert time.monotonic() < give_up, f"{host.name}: {left}"
            time.sleep(1)


ONE_CORE = 'ray() { if [ "$1" = start ]; then command ray "$@" --num-cpus=1; else command ray "$@"; fi; }\n'


@pytest.mark.long
def test_the_next_ray_up_has_the_earlier_sweeps_and_takes_a_node_that_is_smaller_and_late(
    laptop: Laptop, first: First
) -> None:
    """On a head whose store came back from a backup, as docs/cluster.md restores it. On CPUs a core is what a GPU is
    elsewhere, so the node that has fewer has one."""
    head, early, late = laptop.head, *laptop.workers
    head.run("cd ~/ray-sweeps && .venv/bin/python -m sweeps.cli backup ~/old.tgz --store ~/.ray-sweeps/mlflow")
    after = laptop.sweep("submit", first.file).strip()
    until(laptop, after, is_complete)
    take_down(laptop)
    late.kill()
    with (late.home / ".ray-sweeps/environment").open("a") as environment:
        environment.write(ONE_CORE)
    head.run("~/ray-sweeps/scripts/node stop; mv ~/.ray-sweeps/mlflow ~/mlflow-before")
    head.run("cd ~/ray-sweeps && .venv/bin/python -m sweeps.cli restore ~/old.tgz --store ~/.ray-sweeps/mlflow")
    with laptop.cluster():
        listed = laptop.sweep("list")
        assert first.name in listed
        assert after in listed  # the backup is older: its ledger has it
        assert len(json.loads(laptop.sweep("trials", first.name, "--format", "json"))) == 4
        assert "results in" in laptop.sweep("logs", first.name)  # that this Ray has never heard of
        for _ in range(2):
            laptop.sweep("sync", after)
            assert len(json.loads(laptop.sweep("trials", after, "--format", "json"))) == 4
        told = laptop.sweep("doctor", "--cluster", code=3)
        assert late.address in told
        assert "has not joined" in told
        more = "probe_every_min: 0\nwait_for_nodes_min: 5"
        file = sweep(laptop, "late", batches="8", repeats=2, more=more)
        file.write_text(file.read_text().replace("[spread]", "[pack, spread]"))
        name = laptop.sweep("submit", file, "--fresh").strip()
        late.start()
        assert until(laptop, name, is_complete, within_s=300)["ended"] == {"completed": 6}
    ran = {
        (tuple(one["config"]["arrangement"]), frozenset(place["node"] for place in one["outcome"]["granted"]))
        for one in entries(laptop, name, "trial")
    }
    of_two = {nodes for arrangement, nodes in ran if arrangement == (2,)}
    assert of_two == {frozenset({early.name})}  # the other has no room for both ranks
    assert ((1, 1), frozenset({early.name, late.name})) in ran


def test_nothing_is_left_on_a_host_when_the_cluster_is_down(laptop: Laptop) -> None:
    """The last of this file: it takes the cluster down."""
    take_down(laptop)
