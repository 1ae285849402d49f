"""Which files of images a trial reads, and a fingerprint of them: their names, sizes and times. Standard library only.

Nothing of their content is read: a set may be as large as ImageNet, and a trial may want its pages out of memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from workers.contract.messages import Protocol, TrialConfig, has_jpegs

SPLITS: dict[Protocol, tuple[str, ...]] = {"throughput": ("train",), "convergence": ("train", "validation")}


def pattern(split: str) -> str:
    return f"{split}-*-of-*"


def fingerprint(folder: str, splits: Sequence[str]) -> str:
    """Return a digest of the files of these splits; empty where there are none, or they can't be looked at.

    Times count in whole seconds: what copies files may cut the rest off, and a file that a trial has read is older.
    """
    try:
        files = sorted(path for split in splits for path in Path(folder).glob(pattern(split)))
        listed = [(path.name, (found := path.stat()).st_size, int(found.st_mtime)) for path in files]
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:10] if listed else ""


def of_trial(config: TrialConfig) -> str:
    """Return a digest of the files that a trial reads; empty where its images are no files."""
    return fingerprint(config.data, SPLITS[config.protocol]) if has_jpegs(config.data) else ""
