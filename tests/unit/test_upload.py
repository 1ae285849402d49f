"""What is packed for a cluster, and what of it is not: secrets, and all that is no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.cluster import upload

pytestmark = pytest.mark.unit

TEXT = "name: x\nmodel: tiny\ndevice: cpu\nspace: {batch_size: 8, gpus: [1, 2]}\nrepeats: 1\n"


def test_a_pack_holds_the_code_and_the_file_and_nothing_else(tmp_path: Path) -> None:
    files = upload.pack(tmp_path, Path("sweep.yaml"), TEXT)
    assert {path.parts[0] for path in files} == {"sweep.yaml", "sweeps", "workers", "references"}
    assert {path.suffix for path in files} <= {".py", ".css", ".js", ".csv", ".md", ".yaml"}
    assert (tmp_path / "sweep.yaml").read_text() == TEXT
    assert (tmp_path / "sweeps/cli/main.py").exists()


def test_a_secret_beside_the_code_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    for name in ("sweeps/a.py", "sweeps/.env", "sweeps/key.pem", ".git/config", "data/x.py", "results/x/ledger.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    (root / "sweeps/link.py").symlink_to("/etc/passwd")
    monkeypatch.setattr(upload, "ROOT", root)
    (tmp_path / "out").mkdir()
    packed = upload.pack(tmp_path / "out", Path("sweep.yaml"), TEXT)
    assert [str(path) for path in packed] == ["sweep.yaml", "sweeps/a.py"]


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("search_spaces/x.yaml", "search_spaces/x.yaml"),
        ("../x.yaml", "x.yaml"),
        ("/tmp/x.yaml", "x.yaml"),
        ("sweeps/cli/main.py", "sweep.yaml"),
        ("/tmp/sweeps", "sweep.yaml"),
    ],
)
def test_a_sweep_file_is_called_there_what_it_is_called_here(named: str, place: str) -> None:
    assert upload.place(Path(named)) == Path(place)
