"""How many examples the property tests try.

By default they are few, and the same wherever the tests run: nobody's first run is a search. `make search` tries a
hundred times as many, drawn at random. What it finds becomes a test of its own.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FEW = 100  # where a test does not say how many
TIMES = 100

settings.register_profile("same", max_examples=FEW, derandomize=True, database=None, deadline=None)
settings.register_profile(
    "search",
    max_examples=TIMES * FEW,
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def examples(count: int) -> settings:
    """Return the settings of a test whose examples take long: so many instead of `FEW`, in a search `TIMES` as many."""
    return settings(max_examples=count * settings.default.max_examples // FEW)
