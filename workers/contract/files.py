"""What the kernel and other programs say in small files."""

from __future__ import annotations

from pathlib import Path


def text(path: str | Path) -> str:
    """Return a small file's text without the white space around it; empty where it can't be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
