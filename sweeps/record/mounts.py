"""Whose locks count on a file system that several hosts share.

A sweep has one driver because that holds a lock on its ledger (`flock`). A network file system passes locks on to its
server, so that they hold between hosts, unless it is mounted otherwise: then each host has locks of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
ALONE = {  # by the kind of file system, the options by which its locks hold on one host alone
    "nfs": ("nolock", "local_lock=flock", "local_lock=all"),
    "nfs4": ("local_lock=flock", "local_lock=all"),
    "cifs": ("nobrl",),
    "smb3": ("nobrl",),
    "lustre": ("localflock",),
    "fuse.sshfs": ("",),  # however it is mounted
}


def locks_hold_here_alone(folder: Path) -> str:
    """Say how a folder is mounted if no lock in it holds between hosts: `nfs with nolock`. Else nothing."""
    at, found = folder.resolve(), (Path("/"), "", "")
    for line in MOUNTS.read_text(errors="replace").splitlines():
        first, _, last = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), first.split(" ")[4]))
        if at.is_relative_to(point) and len(point.parts) >= len(found[0].parts):  # one may hide another
            kind, _, options = last.split(" ", 2)
            found = point, kind, options
    _, kind, options = found
    given = ["", *options.split(",")]
    option = next((option for option in ALONE.get(kind, ()) if option in given), None)
    return "" if option is None else " with ".join(filter(None, (kind, option)))
