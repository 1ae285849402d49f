"""Where a record stands in its set, and as one number."""

from __future__ import annotations

from typing import Any, NamedTuple

FILLERS = -1  # and below: numbers of records that only fill up batches
HOPELESS = 1000  # records that could not be decoded, before it is asked how many could


class RecordPlace(NamedTuple):
    file: int  # its place in the set
    record: int  # its place in the file


def number_of(files: Any, records: Any) -> Any:
    """Negative where the file is: that is how fillers are marked."""
    return files * 2**32 + records


def place_of(number: int) -> RecordPlace:
    return RecordPlace(*divmod(number, 2**32))
