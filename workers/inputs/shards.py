"""The TFRecord files of a set: which records are a rank's, where each begins, where a file is damaged.

A record is its length (8 bytes) and the length's checksum (4 bytes), its content and the content's checksum (4).
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import google_crc32c

from workers.contract import datafiles
from workers.contract.ranks import Fault

Split = Literal["train", "validation"]
Way = Literal["alone", "block"]  # of reading a record's head
WAYS: tuple[Way, ...] = get_args(Way)

HEAD, CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")
DAMAGED = "damaged data"
BLOCK_BYTES = 4 << 20
ALONE_FIRST = 4  # heads of a file, before a block is tried


class Part(NamedTuple):
    """The records of a file that are a rank's: every so many, from the first."""

    file: int  # its place in the set
    path: str
    every: int
    first: int


def files_of(folder: str, split: Split) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob(datafiles.pattern(split)))


def deal(paths: Sequence[str], rank: int, ranks: int) -> list[Part]:
    """Deal as many whole files as every rank can have; what is left over is split record by record. So every record is
    one rank's, and hardly any byte is read twice.

    So every record is one rank's, and hardly any byte is read twice.
    """
    whole = len(paths) // ranks * ranks
    parts = [Part(file, paths[file], 1, 0) for file in range(rank, whole, ranks)]
    return parts + [Part(file, paths[file], ranks, rank) for file in range(whole, len(paths))]


def owned(part: Part, records: int) -> int:
    """How many of the first records of its file it has."""
    return len(range(part.first, records, part.every))


def holds(parts: Sequence[Part], wanted: int) -> bool:
    """Say whether there are so many records. Reads no more record heads than it must."""
    for part in parts:
        if wanted <= 0:
            break
        enough = part.first + (wanted - 1) * part.every + 1
        wanted -= owned(part, sum(1 for _ in itertools.islice(heads(part.path), enough)))
    return wanted <= 0


def heads(path: str) -> Iterator[tuple[int, int]]:
    """Yield where each record starts, and the length of its content. Raises a `Fault` where the file is not whole."""
    with open(path, "rb", buffering=0) as file:
        size_bytes, at, index = os.fstat(file.fileno()).st_size, 0, 0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # it need not read ahead
        reader = HeadReader(file.fileno())
        while at < size_bytes:
            length = length_of(reader.head(at), path, index, size_bytes - at)
            yield at, length
            at, index = at + HEAD.size + length + CHECKSUM.size, index + 1


def length_of(head: bytes, path: str, index: int, left_bytes: int) -> int:
    """Return the length of a record's content. `left_bytes` are those of its file, from its head on."""
    if len(head) == HEAD.size:
        length, checksum = HEAD.unpack(head)
        if checksum != masked_crc(head[:8]):
            raise damaged(path, index, "its length must match its checksum, but does not")
        if HEAD.size + length + CHECKSUM.size <= left_bytes:
            return int(length)
    raise damaged(path, index, f"must be whole, but got {left_bytes} bytes")


class HeadReader:
    """Reads a file's record heads in order: each alone, or as many as a block of the file holds.

    Where an answer is slow to come, blocks are cheaper; where bytes are slow to come, heads alone are. So both are
    tried, and the one that has cost less time a head so far is used.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._at = 0
        self._bytes = b""
        self._way: Way = "alone"
        self._took_s: dict[Way, float] = {"alone": 0.0, "block": 0.0}
        self._heads: dict[Way, int] = {"alone": 0, "block": 0}

    def head(self, at: int) -> bytes:
        """Return what stands there, cut short by the end of the file."""
        found = self._bytes[at - self._at : at - self._at + HEAD.size]
        if len(found) < HEAD.size:
            self._way = self._cheaper()
            began = time.perf_counter()
            self._at, self._bytes = at, os.pread(self._file, HEAD.size if self._way == "alone" else BLOCK_BYTES, at)
            self._took_s[self._way] += time.perf_counter() - began
            found = self._bytes[: HEAD.size]
        self._heads[self._way] += 1
        return found

    def _cheaper(self) -> Way:
        if self._heads["alone"] < ALONE_FIRST:
            return "alone"
        if not self._heads["block"]:
            return "block"
        return min(WAYS, key=lambda way: self._took_s[way] / self._heads[way])


def blame(paths: Sequence[str], complaint: str) -> Fault:
    """Return what TensorFlow's reader complains of, with the file and the record, which it does not tell."""
    byte = int(match[1]) if (match := re.search(r"record at (\d+)", complaint)) else -1
    try:
        for path in paths:
            for index, (at, length) in enumerate(heads(path)):
                if byte == at + HEAD.size and not is_sound(path, byte, length):
                    return corrupted(path, index)
    except Fault as fault:
        return fault
    except OSError as error:
        return unreadable(error)
    return unreadable(complaint.splitlines()[0])


def is_sound(path: str, at: int, length: int) -> bool:
    with open(path, "rb") as file:
        file.seek(at)
        return CHECKSUM.pack(masked_crc(file.read(length))) == file.read(CHECKSUM.size)


def place(path: str, index: int) -> str:
    return f"{Path(path).name}, record {index}"


def damaged(path: str, index: int, what: str) -> Fault:
    return Fault(DAMAGED, f"{place(path, index)}: {what}")


def corrupted(path: str, index: int) -> Fault:
    return damaged(path, index, "its content must match its checksum, but does not")


def unreadable(why: object) -> Fault:
    return Fault("unreadable data", f"the data must stay readable, but got {why}")


def masked_crc(content: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated and moved."""
    crc: int = google_crc32c.value(content)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
