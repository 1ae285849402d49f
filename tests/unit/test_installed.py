"""A package that was built or edited here is known by its content, though its version is as it was."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from workers.contract.paths import kept_digests
from workers.launch import preload
from workers.node import fingerprint, installed

NAME = "planted_package"
LIBRARY, SOURCE = f"{NAME}/lib.cpython-311-x86_64-linux-gnu.so", f"{NAME}/ops.py"
FILES = {
    f"{NAME}/__init__.py": b"",
    SOURCE: b"FUSION = 64\n",
    LIBRARY: b"\x7fELF built with -O2",
    f"{NAME}/include/header.h": b"#pragma once\n",
    f"{NAME}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n".encode(),
    f"../bin/{NAME}.py": b"#!/one/place/bin/python\n",
}
INSTALLED_AT = 1_700_000_000


def install(root: Path, files: Mapping[str, bytes] = FILES) -> None:
    """As an installer does, RECORD last."""
    lines = []
    for path, content in files.items():
        write(root / path, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    record = root / f"{NAME}-1.0.dist-info" / "RECORD"
    record.write_text("\n".join([*lines, f"{NAME}-1.0.dist-info/RECORD,,"]) + "\n")
    os.utime(record, (INSTALLED_AT + 1, INSTALLED_AT + 1))
    importlib.invalidate_caches()


def write(path: Path, content: bytes, at: float = INSTALLED_AT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(fingerprint.COMPUTING, "tensorflow", (NAME,))
    root = tmp_path / "site-packages"
    install(root)
    monkeypatch.syspath_prepend(str(root))
    return root


def content() -> str:
    return installed.contents([NAME])[NAME]


def test_a_library_that_was_built_anew_in_the_same_version_is_other_software(packages: Path) -> None:
    before = fingerprint.software({})
    install(packages, FILES | {LIBRARY: b"\x7fELF built with -O3"})
    after = fingerprint.software({})
    assert before["packages"] == after["packages"]
    assert before["package_contents"].keys() == after["package_contents"].keys() == {NAME}
    assert fingerprint.digest(before) != fingerprint.digest(after)


@pytest.mark.parametrize("path", [LIBRARY, SOURCE])
def test_a_file_that_was_edited_where_it_lies_is_seen_and_taking_the_edit_back_too(packages: Path, path: str) -> None:
    before, was = content(), (packages / path).read_bytes()
    write(packages / path, was.swapcase(), at=INSTALLED_AT + 60)  # as large
    assert content() != before
    write(packages / path, was + b"longer")  # as old
    assert content() != before
    (packages / path).unlink()
    assert content() != before
    write(packages / path, was, at=INSTALLED_AT + 60)
    assert content() == before, "what counts is the content, wherever it is known from"


def test_equal_packages_have_equal_contents_wherever_and_whenever_they_were_installed(packages: Path) -> None:
    before = content()
    for path in (f"{NAME}/include/header.h", f"../bin/{NAME}.py"):
        write(packages / path, b"of another place", at=INSTALLED_AT + 60)
    write(packages / NAME / "__pycache__" / "ops.cpython-311.pyc", b"compiled")
    for path in (LIBRARY, SOURCE):
        os.utime(packages / path, (INSTALLED_AT + 99, INSTALLED_AT + 99))
    assert content() == before


def test_a_package_without_a_record_is_read(packages: Path) -> None:
    shutil.rmtree(packages / f"{NAME}-1.0.dist-info")
    write(packages / f"{NAME}.egg-info" / "PKG-INFO", FILES[f"{NAME}-1.0.dist-info/METADATA"])
    importlib.invalidate_caches()
    before = content()
    write(packages / SOURCE, b"FUSION = 32\n")
    assert content() not in ("", before)


def test_what_is_not_installed_has_no_content() -> None:
    assert installed.contents(["no-such-package"]) == {}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    seen: list[str] = []
    read: Callable[[str], str] = installed._read

    def noted(path: str) -> str:
        seen.append(os.path.basename(path))
        return read(path)

    monkeypatch.setattr(installed, "_read", noted)
    return seen


def test_what_lies_there_as_it_was_installed_is_not_read(packages: Path, reads: list[str]) -> None:
    assert content()
    assert reads == []


def test_a_large_file_is_read_once_until_it_changes(
    packages: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "LARGE", 10)
    library = packages / LIBRARY
    write(library, b"\x7fELF built with -O3", at=INSTALLED_AT + 60)
    first = content()
    assert content() == first
    assert reads == [library.name]
    write(library, b"\x7fELF built with -O1", at=INSTALLED_AT + 60)  # as large, and of the same time
    assert content() != first
    assert reads == [library.name] * 2
    for kept in kept_digests().glob("*.jsonl"):
        kept.write_bytes(kept.read_bytes()[:-20])  # torn
    content()
    assert reads == [library.name] * 3


def test_a_large_file_is_read_though_nothing_can_be_kept(
    packages: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "LARGE", 10)
    write(packages.parent / "cache", b"a file where a folder should be")
    write(packages / LIBRARY, b"\x7fELF built with -O3", at=INSTALLED_AT + 60)
    assert content() == content()
    assert len(reads) == 2


def test_what_a_process_has_loaded_is_told_as_it_lay_there_then(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a rank that is a process of its own, and has its other facts from the fork server."""
    monkeypatch.setitem(preload.MODULES, "tensorflow", ())
    monkeypatch.setattr(preload, "_unlike", lambda lying: iter(()))
    facts = fingerprint.software({})
    write(packages / SOURCE, b"FUSION = 32\n", at=INSTALLED_AT + 60)
    told = preload.loaded(facts)
    assert told["package_contents"] == {NAME: content()} != facts["package_contents"]
    assert told | {"package_contents": 0} == facts | {"package_contents": 0}


def test_nccl_of_the_same_version_may_be_another(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "NCCL_FOLDERS", (str(packages),))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    told = []
    for build in (b"one", b"another"):
        write(packages / "libnccl.so.2.21.5", build)
        (packages / "libnccl.so.2").unlink(missing_ok=True)
        (packages / "libnccl.so.2").symlink_to("libnccl.so.2.21.5")
        told.append(fingerprint.software({}))
    assert [facts["nccl"] for facts in told] == ["2.21.5"] * 2
    assert told[0]["nccl_content"] != told[1]["nccl_content"]
