"""What a store that was only opened leaves there, and what counts as its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException, RestException

from sweeps.store import tracking

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("said", "is_answered"),
    [
        ({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}, True),
        ({"error_code": "INTERNAL_ERROR", "message": "the database"}, True),
        ({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "503"}, False),
        ({"error_code": "DEADLINE_EXCEEDED", "message": "504"}, False),
        ({"error_code": 502, "message": "Bad gateway"}, False),
        ({"error_code": "504", "message": "Gateway timeout"}, False),
        ({"message": "Endpoint request timed out"}, False),
        ({"error": "Bad gateway"}, False),
    ],
)
def test_a_gateways_error_in_json_is_no_answer_of_the_server(said: dict[str, Any], is_answered: bool) -> None:
    assert tracking._is_answered(RestException(said)) is is_answered


def test_an_error_without_json_is_no_answer_either() -> None:
    assert not tracking._is_answered(MlflowException("failed with error code 504 != 200"))


@pytest.mark.parametrize("is_new", [True, False])
def test_to_delete_runs_that_were_made_twice_leaves_none_open(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    store = SimpleNamespace(is_new=is_new, may_come=1, close=closed.append)
    monkeypatch.setattr(tracking, "Store", lambda _: store)
    assert tracking.leave_one_each(None) == 1  # type: ignore[arg-type]
    assert closed == ["KILLED"] * is_new
