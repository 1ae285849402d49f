"""Unit tests load no Ray and no framework: each would cost every worker of `make unit` seconds."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from sweeps.record import ledger
from sweeps.run import terms
from sweeps.run.terms import Setting
from tests.unit.driving import WAITS, Place
from tests.unit.planted_claims import SCRIPT

HEAVY = {"ray", "tensorflow", "horovod", "keras", "torch"}


class Refusing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds heavy packages where they lie, so that one may ask for their place, and loads none."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname in HEAVY else None
        if found:
            found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(
            f"what is in tests/unit must load no Ray and no framework, but this loads {module.__name__}: "
            "it belongs into tests/integration"
        )


@contextlib.contextmanager
def none_loaded() -> Iterator[None]:
    """Refuse within the block what is not loaded yet: other suites may run in the same process."""
    sys.meta_path.insert(0, refusing := Refusing())
    try:
        yield
    finally:
        sys.meta_path.remove(refusing)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with none_loaded():
        return (yield)


@pytest.fixture(autouse=True)
def _loads_nothing_heavy() -> Iterator[None]:
    with none_loaded():
        yield


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two benchmarks and the code that they measure, for tests of claims."""
    for name in ("benchmarks/it.py", "benchmarks/other.py", "code/one.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def there(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The cluster that drivers find, and the file of a sweep that waits for its nodes."""
    place = Place()

    @contextlib.contextmanager
    def site(*_: object) -> Iterator[Place]:
        yield place

    monkeypatch.setattr(terms, "open_site", site)
    monkeypatch.setattr(Setting, "executor", lambda *_: None)  # of a real cluster it loads Ray
    monkeypatch.setattr("sweeps.store.query.finished", lambda _: [])
    (workplace / "mine.yaml").write_text(WAITS)
    return place


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is a job of a cluster."""
    monkeypatch.setenv(ledger.JOB, "sweep-mine-1")
