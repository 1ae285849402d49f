"""The precedence of this process before others."""

from __future__ import annotations

import os
import re


def in_force(autogroup: str = "/proc/self/autogroup") -> dict[str, str]:
    """Return what precedence the system gives to this process: its niceness, and that of its session where sessions
    have one (Linux weighs these first)."""
    found = {"niceness": str(os.getpriority(os.PRIO_PROCESS, 0))}
    try:
        with open(autogroup) as told:
            session = re.search(r"nice (-?\d+)", told.read())
    except OSError:
        session = None
    return found | ({"session_niceness": session[1]} if session else {})
