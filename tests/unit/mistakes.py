"""What a sweep file that can't be is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sweeps.errors import InputError


def refused_with(make: Callable[[], object], key: str, rule: str) -> dict[str, str]:
    """Check that what is made is refused, at this key by a rule with these words; all rules, by their keys."""
    with pytest.raises(InputError) as refused:
        make()
    found = {mistake.key: mistake.rule for mistake in refused.value.mistakes}
    assert key in found, found
    assert rule in found[key], found
    return found
