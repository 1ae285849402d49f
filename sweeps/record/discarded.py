"""Folders of sweeps that were discarded: nothing was measured, so nothing of them is to stay.

Such a folder is renamed first, to a name that is no sweep's (`.NAME.` and 32 hexadecimal digits), and then deleted.
What is there under such a name is being deleted, or its driver was killed meanwhile, or it waits: where the tracking
store could not be told, the sweep's run may be open there, and a file in the folder says in which store. `sweep gc`
collects both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from workers.contract.paths import results_root

OPEN_RUN = "open-run.json"
HIDDEN = re.compile(r"\.(.+)\.[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """What a tracking store may hold of a discarded sweep, or make late."""

    sweep: str  # its id
    store: str  # its address, without a password
    at: float  # when the sweep was discarded


def hide(folder: Path) -> Path:
    """Rename a sweep's folder; its new path."""
    return folder.rename(folder.with_name(f".{folder.name}.{uuid.uuid4().hex}"))


def folders() -> list[Path]:
    """Yield what is hidden in the results folder."""
    return sorted(path for path in results_root().glob(".*") if HIDDEN.fullmatch(path.name) and not path.is_symlink())


def name_of(folder: Path) -> str:
    """Return the name that the sweep of a hidden folder had."""
    return HIDDEN.sub(r"\1", folder.name)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Whether nobody else deletes it now; then nobody else does within the block either. The system lets go of what
    somebody held who was killed."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(at)
        yield False
        return
    except OSError:  # a file system that locks no folders: at worst it is deleted by two
        pass
    try:
        yield True
    finally:
        os.close(at)


def note(folder: Path, run: OpenRun) -> None:
    with (folder / OPEN_RUN).open("w") as file:
        json.dump(dataclasses.asdict(run), file)
        file.flush()
        os.fsync(file.fileno())


def open_run(folder: Path) -> OpenRun | None:
    """Return what is to be deleted in a tracking store before the folder goes."""
    try:
        return OpenRun(**json.loads((folder / OPEN_RUN).read_text()))
    except FileNotFoundError:
        return None
