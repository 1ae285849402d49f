"""The dashboard that we ship, held against Grafana's own types."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytestmark = pytest.mark.unit

TYPES = json.loads(Path(__file__).with_name("grafana_types.json").read_text())
BOARD = json.loads((Path(__file__).parents[2] / "clusters/grafana.json").read_text())


def wrong(board: dict[str, Any]) -> list[str]:
    """What of a dashboard is not as Grafana has it: a panel's options and curves are its type's to say."""
    parts = [(TYPES["dashboard"], board)]
    for panel in board.get("panels", ()):
        parts.append((TYPES["options"], panel["options"]))
        parts.append((TYPES["custom"], panel["fieldConfig"]["defaults"]["custom"]))
    return [error.message for types, part in parts for error in jsonschema.Draft7Validator(types).iter_errors(part)]


def test_the_dashboard_is_one_by_grafanas_types() -> None:
    assert {panel["type"] for panel in BOARD["panels"]} == {"timeseries"}  # whose options the types are
    assert wrong(BOARD) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("pannels",), []),
        (("schemaVersion",), "39"),
        (("panels", 0, "gridPos", "w"), "wide"),
        (("panels", 0, "fieldConfig", "defaults", "units"), "s"),
        (("panels", 0, "fieldConfig", "defaults", "custom", "fillOpacity"), "20%"),
        (("panels", 0, "fieldConfig", "defaults", "custom", "stacking", "mode"), "sometimes"),
        (("panels", 0, "options", "legend", "placement"), "top"),
        (("templating", "list", 0, "type"), "source"),
    ],
)
def test_what_grafana_does_not_know_would_be_found(place: tuple[Any, ...], value: object) -> None:
    board = part = copy.deepcopy(BOARD)
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    assert wrong(board)


def test_no_panel_lies_on_another_or_beyond_the_page() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len({*cells}) == len(cells)
    assert max(x for x, _ in cells) < 24  # Grafana's columns


def test_each_query_asks_the_prometheus_that_was_chosen() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(panel["datasource"] == chosen for panel in BOARD["panels"])
    assert BOARD["templating"]["list"][0]["name"] == "datasource"
