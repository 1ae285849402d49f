"""What the windows of a cell's earlier trials have shown, kept in a small file on the node of its first rank."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from workers.contract.paths import written_whole
from workers.measure import steady


def load(file: str) -> steady.Known:
    """Return what the file holds; nothing is known where there is none, or it can't be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        kept = json.loads(Path(file).read_text())
        return steady.Known(**{name: type(getattr(steady.NOTHING, name))(value) for name, value in kept.items()})
    return steady.NOTHING


def save(file: str, known: steady.Known) -> None:
    """Keep it for the next trial of the cell; a trial does not fail for want of a place to do so."""
    with contextlib.suppress(OSError), written_whole(Path(file)) as partial:
        partial.write_text(json.dumps(dataclasses.asdict(known)))
