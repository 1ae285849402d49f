"""The formats in which images are found in sets, by the bytes that they begin with."""

from __future__ import annotations

JPEG_START = b"\xff\xd8\xff"
STARTS = {JPEG_START: "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"GIF8": "GIF", b"BM": "BMP"}
