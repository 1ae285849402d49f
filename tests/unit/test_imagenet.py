"""ImageNet's size stands in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit import sources
from workers.contract import imagenet

ROOT = Path(__file__).parents[2]


def test_it_is_as_published() -> None:
    assert (imagenet.TRAIN_IMAGES, imagenet.VALIDATION_IMAGES, imagenet.CLASSES) == (1_281_167, 50_000, 1000)


@pytest.mark.parametrize("plane", ["sweeps", "workers", "benchmarks"])
def test_nobody_else_writes_its_number(plane: str) -> None:
    for path in (ROOT / plane).rglob("*.py"):
        if path != Path(str(imagenet.__file__)):
            said = [node.value for node in sources.nodes(path) if isinstance(node, ast.Constant)]
            assert imagenet.TRAIN_IMAGES not in said, path
            assert not [text for text in said if isinstance(text, str) and "1,281,167" in text], path
