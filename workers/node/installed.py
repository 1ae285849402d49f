"""The content of the installed packages that a rank loads: a version says what was released, not what was built here.

Counted are Python sources and native libraries. An installer writes down the digest and the size of every file that it
brings, in RECORD. A file that is as large as that says, and was not written after RECORD, is taken for what RECORD
says: to read TensorFlow's libraries takes seconds. Any other file, built or edited in place, is read. Digests of large
ones are kept in the user's cache folder, by size and times; nothing there is missed when it is deleted.

Not seen is a file that was put in the place of one of the same size, and is older than the installation.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from workers.contract.paths import kept_digests

LOADED = re.compile(r"\.(py|so(\.\d+)*)$")  # by a rank
LARGE = 1 << 20  # bytes; what is smaller is read as quickly as looked up
ALGORITHM = "sha256="


def contents(packages: Iterable[str]) -> dict[str, str]:
    """Return a digest of each of these packages that is installed."""
    return {name: content for name in packages if (content := _content(name))}


def _content(name: str) -> str:
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    root = str(package.locate_file(""))
    told = package.read_text("RECORD") or ""
    files = {path: digest_of(f"{root}/{path}", *known) for path, known in _listed(told, root)}
    if not any("/" in path for path in files):  # installed by something else, or run from where it is developed
        files |= _in_folder(name)
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{path} {files[path]}\n".encode())
    return whole.hexdigest()[:16] if files else ""


def _listed(told: str, root: str) -> Iterator[tuple[str, tuple[str, int, int]]]:
    """Yield the files that RECORD tells of, each with its digest, its size, and when it was written at the latest."""
    lines = told.splitlines()
    own = next((line.rsplit(",", 2)[0] for line in lines if ".dist-info/RECORD," in line), "")
    with contextlib.suppress(OSError):
        written_ns = os.stat(f"{root}/{own}").st_mtime_ns
        for line in lines:
            if ".py," in line or ".so" in line:  # nearly all others are headers: it is quick
                path, digest, size = line.rsplit(",", 2)
                if LOADED.search(path) and not path.startswith("..") and digest.startswith(ALGORITHM):
                    yield path, (digest.removeprefix(ALGORITHM), int(size or 0), written_ns)


def _in_folder(name: str) -> dict[str, str]:
    """Return the digests of what lies in a package's folder."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    root = Path(next(iter(folders or ()), ""))
    found = (path for path in root.rglob("*") if LOADED.search(path.name)) if folders else ()
    return {f"{name}/{path.relative_to(root).as_posix()}": digest_of(str(path)) for path in found}


def digest_of(path: str, told: str = "", size: int = -1, written_ns: int = -1) -> str:
    """Return the digest of a file's content as RECORD would have it; empty if it can't be read. It need not be read if
    it has the size that was told, and is not newer."""
    try:
        before = os.stat(path)
        if before.st_size == size and before.st_mtime_ns <= written_ns:
            return told
        return _kept(path, before) if before.st_size >= LARGE else _read(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _kept(path: str, before: os.stat_result) -> str:
    """Return the digest of a large file, which is read only if none is kept of it as it is now."""
    stamp = _stamp(path, before)
    file = kept_digests() / f"{os.uname().nodename}.jsonl"
    if known := _kept_in(file).get(stamp):
        return known
    digest = _read(path)
    if _stamp(path, os.stat(path)) == stamp:
        line = f"\n{json.dumps([stamp, digest])}\n".encode()
        with contextlib.suppress(OSError):  # then it is read again the next time
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab", buffering=0) as out:
                out.write(line)  # in one call, so that other processes' lines come before it or behind it
    return digest


def _stamp(path: str, now: os.stat_result) -> str:
    return f"{path} {now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}"


def _kept_in(file: Path) -> Mapping[str, str]:
    """Return what is kept; a line that is torn is none."""
    found = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            stamp, digest = json.loads(line)
            found[str(stamp)] = str(digest)
    return found
