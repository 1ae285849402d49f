"""A packing as text: who runs where, and when. Pure.

A row a GPU (or slot) where they are few, else a row a node. The time axis is broken into bands as a paragraph is into
lines, so that most trials have room for their size; `│` is where what runs there changes, `·` is idle.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from sweeps.text import tables

FEW = 16  # slots that have a row each
MOST_ROWS = 40
LEGIBLE = 4  # columns that a trial should have on average
MOST_NAME = 14
SHORTEST_S = 1e-6  # of a makespan that can be drawn
TICK = 16  # columns between two times


@dataclasses.dataclass(frozen=True)
class Bar:
    """A trial as planned or as it ran; times in seconds."""

    label: str
    seats: Sequence[tuple[str, int]]  # node and ranks there
    start: float
    end: float

    @property
    def size(self) -> str:
        return str(sum(ranks for _, ranks in self.seats))


Row = list[list[Bar]]  # what runs there in each column


def gantt(bars: Sequence[Bar], slots: Mapping[str, int], width: int = 100) -> list[str]:
    """Lines at most so wide; `slots` has each node's, in the order of the rows."""
    begin = min((bar.start for bar in bars), default=0.0)
    makespan = max((bar.end for bar in bars), default=0.0) - begin
    if makespan < SHORTEST_S or not slots:
        return []
    has_slots = sum(slots.values()) <= FEW
    names = [_cut(name) if n == 0 else "" for name, count in slots.items() for n in range(count if has_slots else 1)]
    margin = max(map(len, names)) + 1
    shown = max(width - margin, TICK)
    drawn = sum(ranks if has_slots else 1 for bar in bars for _, ranks in bar.seats)
    needed = math.ceil(LEGIBLE * drawn / len(names) / shown)
    bands = max(1, min(needed, MOST_ROWS // (len(names) + 1)))
    column_s = makespan / (bands * shown)
    rows = _rows(bars, slots, begin, column_s, bands * shown, has_slots)
    lines = []
    for left in range(0, bands * shown, shown):
        lines.append(" " * margin + _times(left, shown, column_s))
        lines += [f"{name:<{margin}}{_drawn(row, left, left + shown)}" for name, row in zip(names, rows, strict=True)]
    busy = sum(ranks * (bar.end - bar.start) for bar in bars for _, ranks in bar.seats)
    share = busy / (makespan * sum(slots.values()))
    return [*lines, f"{len(bars)} trials in {tables.duration(makespan)}, {share:.0%} of the slots busy"]


def _rows(
    bars: Sequence[Bar], slots: Mapping[str, int], begin: float, column_s: float, columns: int, has_slots: bool
) -> list[Row]:
    """Return what runs in the middle of each column; on slots of their own, each gang in the first that are free."""
    rows: dict[str, list[Row]] = {
        name: [[[] for _ in range(columns)] for _ in range(count if has_slots else 1)] for name, count in slots.items()
    }
    until = {name: [-math.inf] * count for name, count in slots.items()}
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        first, end = (math.ceil((at - begin) / column_s - 0.5) for at in (bar.start, bar.end))
        for name, ranks in bar.seats:
            if name not in rows:
                continue
            taken = [at > bar.start for at in until[name]]
            free = sorted(range(slots[name]), key=taken.__getitem__)[:ranks]
            for slot in free:
                until[name][slot] = bar.end
            for row in (rows[name][slot] for slot in free) if has_slots else rows[name]:
                for column in row[max(first, 0) : end]:
                    column.append(bar)
    return [row for of_node in rows.values() for row in of_node]


def _drawn(row: Row, left: int, right: int) -> str:
    text = ""
    at = left
    for running, columns in itertools.groupby(row[left:right], key=lambda here: [id(bar) for bar in here]):
        length = len(list(columns))
        goes_on = at == left and left > 0 and [id(bar) for bar in row[left - 1]] == running
        text += _segment(row[at], length, goes_on)
        at += length
    return text


def _segment(running: Sequence[Bar], length: int, goes_on: bool) -> str:
    if not running:
        return "·" * length
    texts = [running[0].label] if len(running) == 1 else []
    texts += ["+".join(bar.size for bar in running), ""]
    text = next(text for text in texts if len(text) < length or not text)
    return f"{'─' if goes_on else '│'}{text}".ljust(length, "─")


def _times(left: int, shown: int, column_s: float) -> str:
    marks = (tables.clock_time((left + at) * column_s) for at in range(0, shown, TICK))
    return "".join(f"{mark:<{TICK}}" for mark in marks)[:shown].rstrip()


def _cut(name: str) -> str:
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"
