"""What goes on in a thread of its own beside a block of a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have this done from the block's begin to its end, of which the event tells."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=[is_over])
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
