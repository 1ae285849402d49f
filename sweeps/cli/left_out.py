"""What a query left out, told as lines."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def tell() -> Iterator[None]:
    from sweeps.store import query

    with warnings.catch_warnings(record=True, action="always", category=query.LeftOut) as left_out:
        yield
    for line in dict.fromkeys(str(warning.message) for warning in left_out):
        print(line, file=sys.stderr)
