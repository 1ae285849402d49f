"""What `sweep submit` sends to a cluster: the code that runs a sweep, the sweep file, and what the sweep names of the
user's own code (`sweeps.spec.own_code`); nothing else.

So neither `.git` nor results or a `.env` can ever be among it, nor files whose name or content says that they hold a
key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from sweeps.errors import InputError, Mistake
from sweeps.spec.own_code import Files

ROOT = Path(__file__).parents[2]
CODE = {
    "sweeps": ("*.py", "*.css", "*.js"),
    "workers": ("*.py",),
    "references": ("*.csv", "*.md"),
}
SWEEP = "sweep.yaml"  # what can have no other name there


def pack(folder: Path, sweep: Path | None = None, text: str = "", own: Files | None = None) -> list[Path]:
    """Copy it into an empty folder; what is there then, as paths in it. The sweep's text goes to `sweep` there."""
    if own:
        _require_free(own)
        own.copy_to(folder)
    if sweep:
        put(folder, sweep, text)
    for source in _code():
        copy = folder / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _require_free(own: Files) -> None:
    """Refuse a user's files that would lie where the project's own code does."""
    for path in own.taken:
        if path.parts[0] in CODE and own.folder.resolve() != ROOT:
            rule = f"a folder of your code must have another name than {', '.join(CODE)}, which travel beside it"
            raise InputError(str(own.folder / path), [Mistake("", rule, path.parts[0])])


def put(folder: Path, sweep: Path, text: str) -> None:
    """Write a sweep's text to its place in a folder that is sent."""
    (folder / sweep).parent.mkdir(parents=True, exist_ok=True)
    (folder / sweep).write_text(text, encoding="utf-8")


def place(file: Path) -> Path:
    """Of a sweep file in the pack: as the user named it, so that what is said about it there can be read here."""
    is_inside = not file.is_absolute() and ".." not in file.parts
    named = file if is_inside else Path(file.name)
    return Path(SWEEP) if named.parts[0] in CODE else named


def contents() -> list[tuple[str, bytes]]:
    """Yield the project's code as `pack` would send it, in order."""
    return sorted((str(path.relative_to(ROOT)), path.read_bytes()) for path in _code())


def _code() -> Iterator[Path]:
    for name, patterns in CODE.items():
        for pattern in patterns:
            yield from (path for path in (ROOT / name).rglob(pattern) if not path.is_symlink())
