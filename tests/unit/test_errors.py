"""What is said to a user is of one tree with its exit codes, and holds no password."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps import errors
from sweeps.cli.main import main, sweep
from sweeps.errors import DataError, InputError, Mistake, RefusedError, SweepError
from workers.contract.redact import masked

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@db/sweeps", "postgresql://me:***@db/sweeps"),
        ("postgresql+psycopg://me:se:c@ret@db:5432/sweeps", "postgresql+psycopg://me:***@db:5432/sweeps"),
        ("http://:secret@head:5000", "http://:***@head:5000"),
        ("http://head:5000/#/runs/a@b", "http://head:5000/#/runs/a@b"),
        ("sqlite:////home/me:a@b/mlflow.db", "sqlite:////home/me:a@b/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert masked(address) == shown
    assert str(RefusedError(f"the store must answer\n  {address}")).endswith(shown)
    assert str(InputError(address, [Mistake("", "must hold it", "x")])).startswith(shown)


def test_the_tree_in_the_docstring_is_the_tree_with_its_exit_codes() -> None:
    for kind in SweepError.__subclasses__():
        assert f"─ {kind.__name__:<12}  {kind.exit_code}: " in str(errors.__doc__)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (["make", "{}", "--images", "4", "--shards", "0"], DataError, "a set has from 1 to 99999 shards, but got 0"),
        (["check", "{}/none"], DataError, "DIR must be a folder, but got nothing: {}/none"),
        (["check", "{}"], DataError, "a set has files as train-00000-of-00008, but got none in {}"),
        (["make", "/proc/set", "--images", "8"], RefusedError, "/proc/set must be writable, but got "),
    ],
)
def test_what_the_data_command_refuses_is_of_the_same_tree(
    arguments: list[str], kind: type[SweepError], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["data", *(word.format(tmp_path) for word in arguments)]
    with pytest.raises(kind) as caught:
        sweep.invoke(sweep.make_context("sweep", [*given]))
    assert str(caught.value).startswith(says.format(tmp_path))
    assert main(given) == kind.exit_code
    assert capsys.readouterr().err == f"{caught.value}\n"
