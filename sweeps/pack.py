"""What `sweep submit` sends to a cluster: the code that runs a sweep, and the sweep file; nothing else, by name.

So neither `.git` nor data, results, keys or a `.env` can ever be among it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {
    "sweeps": ("*.py", "*.css", "*.js"),
    "workers": ("*.py",),
    "references": ("*.csv", "*.md"),
}
SWEEP = "sweep.yaml"


def pack(text: str, folder: Path) -> list[Path]:
    """Copy it into an empty folder; what is there then, as paths in it."""
    (folder / SWEEP).write_text(text, encoding="utf-8")
    for source in _code():
        copy = folder / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _code() -> Iterator[Path]:
    for name, patterns in CODE.items():
        for pattern in patterns:
            yield from (path for path in (ROOT / name).rglob(pattern) if not path.is_symlink())
