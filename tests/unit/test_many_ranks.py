"""A thousand ranks: what is decided, written and said about them grows no faster than they do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sweeps.record import rows
from sweeps.record.ledger import TrialRecord
from sweeps.run import status
from sweeps.scheduling.changes import Sameness
from sweeps.scheduling.durations import Durations
from sweeps.scheduling.packing import Packing, _Left
from sweeps.simulator import cluster as simulated
from sweeps.simulator.group import SimulatedGroup
from sweeps.spec import arrangements
from sweeps.spec.arrangements import Node
from tests.unit.records import config, record
from tests.unit.simulations import trial
from workers.contract import messages
from workers.contract.ranks import Seat
from workers.launch.fork_server import LARGEST_ORDER
from workers.launch.seats import Location, seated
from workers.launch.supervisor import Order, _encode
from workers.strategies import meeting, rendezvous
from workers.strategies.meeting import Meeting

MOST = messages.MOST_RANKS
GPUS = 8  # of a node
TIMES = 8.0  # as long, at most, for four times as much: sixteen times would be its square
ROUNDS = 5


def process_s(do: Callable[[], object]) -> float:
    """Of the quickest round: others are at work on these cores."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        do()
        taken.append(time.process_time() - began)
    return min(taken)


def nodes(count: int) -> list[Node]:
    return [Node(f"node-{n}", cpus=40, gpus=GPUS) for n in range(count)]


def gang(gpus: int, **fields: Any) -> messages.TrialConfig:
    return dataclasses.replace(config(), device="gpu", isolation="exclusive", gpus=gpus, **fields)


def full(count: int) -> Packing:
    """Nodes each of which but one has a trial of its own, and one trial that waits for all of them."""
    packing = Packing(nodes(count + 1))
    for n in range(count):
        packing.add(gang(1, seed=n))
    for _ in range(count):
        assert packing.start(0.0, seconds)
    packing.add(gang(GPUS * (count + 1), repeat=1))
    return packing


def seconds(trial: messages.TrialConfig) -> float:
    return 10.0 + trial.seed


def test_seats_kept_for_a_gang_are_looked_for_once_however_many_trials_end_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    rooms = _Left.rooms
    monkeypatch.setattr(_Left, "rooms", lambda left, *of: looked.append(1) or rooms(left, *of))
    for count in (8, 64):
        looked.clear()
        assert full(count).start(0.0, seconds) is None
        assert len(looked) < 8 + count + 4, "one for each that has started, and a few for the one that waits"


def test_four_times_the_nodes_take_at_most_eight_times_as_long_to_keep_seats_on() -> None:
    few, many = full(64), full(256)
    assert process_s(lambda: kept_anew(many)) <= TIMES * process_s(lambda: kept_anew(few))


def kept_anew(packing: Packing) -> None:
    packing._first = ""
    assert packing.start(0.0, seconds) is None


def test_what_a_node_has_room_for_is_asked_once_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    room = arrangements.room

    def counted(config: messages.TrialConfig, node: Node, left: Node) -> int:
        asked.append(node.name)
        return room(config, node, left)

    packing = Packing(nodes(16))
    packing.add(gang(GPUS * 12))
    assert packing.start(0.0, seconds)
    for ranks in range(1, 30):  # none fits into what is left but the last shapes; all wait
        packing.add(gang(GPUS * 5 + ranks))
    monkeypatch.setattr(arrangements, "room", counted)
    assert packing.start(0.0, seconds) is None
    assert len(asked) < 6 * 16, "not once for each of the 29 that wait"


def test_the_nodes_that_a_start_lacks_are_looked_up_once_for_all_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packing = Packing(nodes(32))
    packing.add(gang(GPUS * 32))
    asked: list[str] = []
    slots = arrangements.slots
    monkeypatch.setattr(arrangements, "slots", lambda one, node: asked.append(node.name) or slots(one, node))
    (need,) = packing.needs()
    assert need == (frozenset(node.name for node in packing.nodes),) * 32
    assert len(asked) < 4 * 32, "not once for each of the 32 that it lacks"


def test_status_names_a_few_nodes_of_a_trial_on_many() -> None:
    one = {"trial": "b32 ×1024 #0", "stage": "starting", "images_per_s": None, "since_s": 1.0, "ends_at": 0.0}
    few, many = ([f"n{n}" for n in range(count)] for count in (8, 128))
    assert status._run({**one, "nodes": few}, 0.0)[1] == "n0 n1 n2 n3 n4 n5 n6 n7"
    assert status._run({**one, "nodes": many}, 0.0)[1] == "n0 and 127 more"
    assert status._run({**one, "nodes": []}, 0.0)[1] == ""


def test_a_trial_s_time_is_modelled_once() -> None:
    modelled: list[str] = []
    known = Durations(lambda one: modelled.append(one.trial) or 5.0)  # type: ignore[func-returns-value]
    assert {known.predict(gang(1)).seconds for _ in range(9)} == {5.0}
    assert len(modelled) == 1


def test_seats_of_four_times_the_ranks_take_at_most_eight_times_as_long() -> None:
    few, many = ([location(rank) for rank in range(ranks)] for ranks in (MOST, 4 * MOST))
    assert process_s(lambda: seated(many)) <= TIMES * process_s(lambda: seated(few))


def location(rank: int) -> Location:
    node = f"n{rank // GPUS}"
    return Location(node=node, address=node, interface="eth0", gpu=str(rank % GPUS), fork_server=node)


class _Dear(dict[str, str]):
    """That takes long to compare."""

    def __ne__(self, other: object) -> bool:
        raise AssertionError("compared")

    __eq__ = __ne__
    __hash__ = None  # type: ignore[assignment]


def test_what_ranks_share_is_not_compared_rank_by_rank_to_be_written_once() -> None:
    whole = record(gang(64)).outcome.measurement
    assert whole
    first = dataclasses.replace(whole.ranks[0], in_force=_Dear(OMP_NUM_THREADS="1"))
    ranks = tuple(messages.report_like(first, {"rank": rank}) for rank in range(64))
    written = messages.to_json(messages.Measurement(ranks=ranks))["ranks"]
    assert written[0]["in_force"] == {"OMP_NUM_THREADS": "1"}
    assert written[1:] == [{"rank": rank} for rank in range(1, 64)]


def test_ranks_that_ran_alike_on_a_node_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Sameness, "_strange", lambda self, kind, now, *of: asked.append(now) or [])
    made = record(gang(64))
    places = tuple(
        messages.Granted(rank=rank, node=f"node-{rank // GPUS}", software="sw" if rank else "edited")
        for rank in range(64)
    )
    Sameness().ended(dataclasses.replace(made, outcome=dataclasses.replace(made.outcome, granted=places)))
    assert asked.count("sw") == 64 // GPUS
    assert asked.count("edited") == 1


def test_the_last_of_1024_seats_fits_in_an_order() -> None:
    last = seated([location(rank) for rank in range(MOST)])[-1]
    assert (last.rank, last.local_rank, last.local_size) == (MOST - 1, GPUS - 1, GPUS)
    assert (last.cross_rank, last.cross_size) == (MOST // GPUS - 1, MOST // GPUS)
    one = dataclasses.replace(gang(MOST), arrangement=(1,) * MOST)
    order = Order(config=one, seat=last, entry="a:b", env={}, log="log", gpus=last.gpus)
    assert len(_encode(order, "scratch", 12_345_678.901)) < LARGEST_ORDER / 4


def simulated_record(gpus: int) -> TrialRecord:
    cluster = simulated.parse(f"nodes={MOST // GPUS},gpus={GPUS},gpu=v100")
    one = trial(gpus=gpus)
    seats = arrangements.place(one, cluster.nodes, arrangements.idle(cluster.nodes))
    assert seats
    group = SimulatedGroup(cluster, seats)
    group.start(one)
    return TrialRecord(config=one, outcome=group.wait(), started_at=0.0, ended_at=group.took_s)


def test_a_rank_that_says_what_the_first_says_adds_its_number_and_its_place_to_a_ledger_s_line() -> None:
    one, many = (simulated_record(gpus) for gpus in (1, MOST))
    first, all_ranks = (len(json.dumps(messages.to_json(of.outcome))) for of in (one, many))
    assert all_ranks / MOST < first / 20
    read = messages.trial_outcome(json.loads(json.dumps(messages.to_json(many.outcome))))
    assert read == many.outcome
    assert rows.row(dataclasses.replace(many, outcome=read)) == rows.row(many)


def test_what_ranks_say_otherwise_than_the_first_is_kept() -> None:
    told = record(config(gpus=3)).outcome
    assert told.measurement
    first, second, third = told.measurement.ranks
    without = {"nothing": ((1.0, 2.0),), "comm": ((0.5, 1.5),)}
    first = dataclasses.replace(
        first, window=messages.Window(warmup_steps=3, stopped_by="steps", half_width_ms=None), without_ms=without
    )
    third = dataclasses.replace(third, steps=third.steps[:4], window_s=0.7, pinned="4-7", without_ms=without)
    said = dataclasses.replace(told, measurement=messages.Measurement(ranks=(first, second, third)))
    written = json.loads(json.dumps(messages.to_json(said)))
    assert messages.trial_outcome(written) == said
    assert written["measurement"]["ranks"][2].keys() == {"rank", "steps", "window", "window_s", "pinned"}
    in_full = [messages.to_json(rank) for rank in (first, second, third)]  # as ledgers of before have them
    assert messages.trial_outcome({**written, "measurement": {"ranks": in_full}}) == said


def test_a_rendezvous_takes_in_all_ranks_that_ask_at_once() -> None:
    store = rendezvous._Store("127.0.0.1", "word", ["127.0.0.1"], 400, lambda: None)
    with store, contextlib.ExitStack() as lines:
        for _ in range(400):  # while it answers none of them
            lines.enter_context(socket.create_connection(("127.0.0.1", store.port), timeout=5))


def test_a_thousand_ranks_ask_a_rendezvous_no_more_often_than_32(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    answers = iter([b"", b"there"] * 2)
    monkeypatch.setattr(rendezvous, "value_at", lambda address, path: next(answers))
    monkeypatch.setattr(rendezvous.time, "sleep", rests.append)
    for size in (32, MOST):
        seat = Seat(rank=1, size=size, local_rank=1, local_size=8, cross_rank=0, cross_size=1, host="h")
        assert rendezvous.awaited(seat, "x") == b"there"
    assert rests[1] / rests[0] == MOST / 32


OPENS = """
import resource, sys
from workers.launch.rank import may_open_lines
soft, hard = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
may_open_lines(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("size", "limits", "then"),
    [(MOST, (256, 8000), (5120, 8000)), (MOST, (256, 2000), (2000, 2000)), (2, (4000, 8000), (4000, 8000))],
)
def test_a_rank_may_open_a_line_to_each_other_as_far_as_its_user_may(
    size: int, limits: tuple[int, int], then: tuple[int, int]
) -> None:
    command = [sys.executable, "-c", OPENS, str(size), *map(str, limits)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(map(int, ran.stdout.split())) == then


@pytest.fixture
def many_files() -> None:
    """Of all ranks, which are in this process here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MOST
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_ranks_meet_and_add_up() -> None:
    of = {"size": MOST, "local_size": GPUS, "cross_size": MOST // GPUS, "host": "127.0.0.1"}
    places = [Seat(rank=n, local_rank=n % GPUS, cross_rank=n // GPUS, **of) for n in range(MOST)]  # type: ignore[arg-type]
    store = rendezvous.Rendezvous(places, "127.0.0.1")

    def met(seat: Seat) -> float:
        here: Meeting = meeting.joined(seat)
        with contextlib.closing(here):
            return float(here.total(np.array([1.0]))[0])

    with ThreadPoolExecutor(MOST) as pool:
        found = [*pool.map(met, [dataclasses.replace(seat, rendezvous=store.address) for seat in places])]
    store.close()
    assert found == [float(MOST)] * MOST
