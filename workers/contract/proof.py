"""How one side of a line shows that it knows a word, and does not send it: it is asked a question that was drawn for
this line, and answers with an HMAC of it. Standard library only."""

from __future__ import annotations

import hmac
import secrets
import socket

BYTES = 32  # of a question, and of a proof


def question() -> bytes:
    """Draw the question of one line."""
    return secrets.token_bytes(BYTES)


def of(word: bytes, asked: bytes, said: bytes = b"") -> bytes:
    """Return the proof of a word for a question, and for what is said with it."""
    return hmac.digest(word, asked + said, "sha256")


def is_of(shown: bytes, word: bytes, asked: bytes, said: bytes = b"") -> bool:
    """Say whether what was shown is that proof."""
    return hmac.compare_digest(shown, of(word, asked, said))


def received(line: socket.socket, size: int = BYTES) -> bytes:
    """Return so many bytes, or what there were until the other side hung up."""
    got = b""
    while len(got) < size and (more := line.recv(size - len(got))):
        got += more
    return got
