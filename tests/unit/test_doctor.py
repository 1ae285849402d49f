"""What `sweep doctor` calls wrong on this machine."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from sweeps import errors
from sweeps.cli import main
from sweeps.cluster import doctor

pytestmark = pytest.mark.unit

DEBIANS = (1024, 1048576)


@pytest.mark.parametrize(
    ("limits", "is_wrong"),
    [
        (DEBIANS, False),  # Ray raises it by itself
        ((1024, resource.RLIM_INFINITY), False),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), False),
        ((1024, 1024), True),
        ((4096, 4096), False),
    ],
)
def test_open_files_are_too_few_where_ray_may_not_raise_them(
    limits: tuple[int, int], is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert doctor._open_files().is_wrong is is_wrong


def test_a_probe_that_fails_is_a_refusal_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback …\nImportError: libcudart.so.12\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert main.main(["doctor", "--address", "local"]) == errors.REFUSED
    told = capsys.readouterr().err
    assert "ImportError: libcudart.so.12" in told
    assert "make clean setup" in told


def test_a_folder_of_data_is_looked_for_on_this_machine(tmp_path: Path) -> None:
    there, nowhere = doctor._data(str(tmp_path)), doctor._data(str(tmp_path / "nowhere"))
    assert (there.is_wrong, nowhere.is_wrong) == (False, True)


def test_doctor_hands_its_folders_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def examine(folders: object) -> list[doctor.CheckResult]:
        asked.append(folders)
        return []

    monkeypatch.setattr(doctor, "examine", examine)
    main.main(["doctor", "--address", "local", "--data", "/data/images"])
    assert asked == [("/data/images",)]
