"""Sources of images as ranks of either framework have them, and a process of its own that may open them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

from tests.conftest import MARK
from tests.unit.planted_sets import config
from workers.inputs import opening
from workers.inputs.plain import opening as plain_opening
from workers.inputs.source import Cores, Source
from workers.strategies.ring import Solo

Kind = Literal["tensorflow", "plain"]
OPENINGS: dict[Kind, Callable[..., Source]] = {
    "tensorflow": opening.open_source,
    "plain": plain_opening.open_source,
}
_kind: Kind = "tensorflow"  # of what this process opens


class Elsewhere:
    """Calls functions of this module in a process that may start TensorFlow."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=without_gpu)
        mark = os.environ.pop(MARK, None)  # the process it starts is nothing that a fork server left behind
        self._pool.submit(os.getpid).result()
        if mark:
            os.environ[MARK] = mark

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._pool.submit(function, *arguments).result(timeout=240)

    def close(self) -> None:
        self._pool.shutdown()


class Sources:
    """Calls functions elsewhere, where `open_source` then opens sources of one kind."""

    def __init__(self, elsewhere: Elsewhere, kind: Kind) -> None:
        self._elsewhere, self.kind = elsewhere, kind

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._elsewhere(opening_of, self.kind, function, *arguments)


def opening_of(kind: Kind, function: Callable[..., Any], *arguments: object) -> Any:
    global _kind
    _kind = kind
    return function(*arguments)


def without_gpu() -> None:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def open_source(folder: Path | str, ring: Any = None, cores: Cores | None = None, **fields: Any) -> Source:
    asked, ring = config(folder, **fields), ring or Solo()
    return OPENINGS[_kind](asked, ring, cores or opening.cores_here(asked, ring.local_size))
