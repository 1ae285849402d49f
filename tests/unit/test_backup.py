"""A tracking store comes back as it was, and nothing is written over or outside its folder."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from sweeps.cli import main
from sweeps.errors import InputError, RefusedError
from sweeps.store import backup


def made(folder: Path, runs: int = 3) -> sqlite3.Connection:
    """A store in use: what was written last stands in its log only."""
    folder.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(folder / "mlflow.db")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE runs (run_uuid TEXT)")
    database.executemany("INSERT INTO runs VALUES (?)", [(f"run-{n}",) for n in range(runs)])
    database.commit()
    (folder / "artifacts/1/a").mkdir(parents=True)
    (folder / "artifacts/1/a/report.html").write_text("page")
    return database


def runs(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return [row[0] for row in database.execute("SELECT run_uuid FROM runs")]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def crafted(path: Path, *members: tuple[tarfile.TarInfo, bytes], database: bytes = b"") -> Path:
    """A backup by another hand."""
    said = json.dumps({"version": backup.VERSION}).encode()
    own = [(tarfile.TarInfo("manifest.json"), said), (tarfile.TarInfo("mlflow.db"), database)]
    with tarfile.open(path, "w:gz") as archive:
        for member, content in [*own, *members]:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_store_in_use_comes_back_whole(tmp_path: Path) -> None:
    writer = made(tmp_path / "a")
    writer.execute("INSERT INTO runs VALUES ('half')")  # by a writer in the middle of its work
    backup.write(tmp_path / "it.tar.gz", tmp_path / "a")
    writer.commit()
    assert files(tmp_path) & {"it.tar.gz"}
    assert not [name for name in files(tmp_path) if name.startswith(".")]
    backup.restore(tmp_path / "it.tar.gz", tmp_path / "b")
    assert runs(tmp_path / "b") == ["run-0", "run-1", "run-2"]
    assert (tmp_path / "b/artifacts/1/a/report.html").read_text() == "page"
    assert not [name for name in files(tmp_path / "b") if name.startswith(".")]


def test_the_store_of_the_current_folder_is_the_one_that_is_meant(workplace: Path) -> None:
    made(workplace)
    (workplace / "mlruns/1").mkdir(parents=True)
    (workplace / "mlruns/1/log").write_text("x")
    assert main.main(["backup", "it.tgz"]) == 0
    assert main.main(["restore", "it.tgz", "--store", "other"]) == 0
    assert (workplace / "other/mlruns/1/log").read_text() == "x"
    assert main.main(["restore", "it.tgz"]) == 3


@pytest.mark.parametrize("there", ["mlflow.db", "mlflow.db-wal", "artifacts/mine"])
def test_nothing_that_exists_is_written_over(tmp_path: Path, there: str) -> None:
    made(tmp_path / "a")
    backup.write(tmp_path / "it.tar.gz", tmp_path / "a")
    mine = tmp_path / "b" / there
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    before = files(tmp_path / "b")
    with pytest.raises(RefusedError, match="move it away"):
        backup.restore(tmp_path / "it.tar.gz", tmp_path / "b")
    assert mine.read_text() == "mine"
    assert files(tmp_path / "b") == before


def test_a_backup_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "a")
    (tmp_path / "it.tar.gz").write_text("before")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(RefusedError, match="No space left"):
        backup.write(tmp_path / "it.tar.gz", tmp_path / "a")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "it.tar.gz"}
    assert (tmp_path / "it.tar.gz").read_text() == "before"


def test_a_database_is_never_taken_for_the_place_of_a_backup(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(InputError, match=r"must end with .tar.gz"):
        backup.write(tmp_path / "mlflow.db", tmp_path)
    with pytest.raises(InputError, match="outside"):
        backup.write(tmp_path / "artifacts/it.tgz", tmp_path)
    with pytest.raises(InputError, match="no file"):
        backup.write(tmp_path / "it.tgz", tmp_path / "nowhere")
    assert len(runs(tmp_path)) == 3


def test_links_are_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "a")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "a/artifacts/link").symlink_to(tmp_path / "secret")
    (tmp_path / "a/mlruns").symlink_to(tmp_path)
    backup.write(tmp_path / "it.tgz", tmp_path / "a")
    with tarfile.open(tmp_path / "it.tgz") as archive:
        assert not [name for name in archive.getnames() if "link" in name or name.startswith("mlruns")]
    assert "artifacts/link" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "to"),
    [
        ("../out", tarfile.REGTYPE, ""),
        ("artifacts/../../out", tarfile.REGTYPE, ""),
        ("/out", tarfile.REGTYPE, ""),
        ("other", tarfile.REGTYPE, ""),
        ("artifacts/link", tarfile.SYMTYPE, "/"),
        ("artifacts/pipe", tarfile.FIFOTYPE, ""),
    ],
)
def test_what_is_no_part_of_a_store_is_refused(tmp_path: Path, name: str, kind: bytes, to: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    crafted(tmp_path / "it.tgz", (member, b""))
    with pytest.raises(InputError, match="must hold"):
        backup.restore(tmp_path / "it.tgz", tmp_path / "b")
    assert files(tmp_path) == {"it.tgz"}


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a")
    whole = tmp_path / "it.tar.gz"
    backup.write(whole, tmp_path / "a")
    torn = tmp_path / "torn.tgz"
    for content in (b"", b"text", whole.read_bytes()[:-40], whole.read_bytes()[:200]):
        torn.write_bytes(content)
        with pytest.raises(InputError, match="whole file"):
            backup.restore(torn, tmp_path / "b")
    with pytest.raises(InputError, match="no file"):
        backup.restore(tmp_path / "none.tgz", tmp_path / "b")
    with pytest.raises(InputError, match="sound database"):
        backup.restore(crafted(tmp_path / "it.tgz", database=b"text" * 1000), tmp_path / "b")
    assert not files(tmp_path / "b")


@pytest.mark.parametrize(
    ("uri", "cure"),
    [("postgresql://me:secret@db/x", "pg_dump"), ("http://me:secret@head:5000", "--store"), ("/some/mlruns", "tar")],
)
def test_other_stores_are_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, uri: str, cure: str) -> None:
    monkeypatch.setattr("sweeps.store.access.store_name", lambda: uri)
    for call in (backup.write, backup.restore):
        with pytest.raises(RefusedError, match=cure) as refused:
            call(Path("it.tar.gz"), None)
        assert "secret" not in str(refused.value)
