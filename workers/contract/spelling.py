"""What a mistyped name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return ` (did you mean batch_size?)`, to stand behind a rule; what is said otherwise where nothing is near.

    `most` is for names that a user gives, of which many are alike; a smaller `cutoff` for long names of which a part
    is typed.
    """
    near = difflib.get_close_matches(name, sorted(set(known)), n=most, cutoff=cutoff)
    says = f"did you mean {' or '.join(near)}?" if near else otherwise
    return f" ({says})" if says else ""
