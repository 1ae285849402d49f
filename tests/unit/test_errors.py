"""What is said to a user holds no password."""

from __future__ import annotations

import pytest

from sweeps.errors import InputError, Mistake, RefusedError
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
