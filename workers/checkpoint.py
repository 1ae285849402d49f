"""A trial's state after an epoch, as one file that is there whole or not at all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workers import contract
from workers.contract import EpochRecord
from workers.paths import written_whole
from workers.rank import Fault


def save(path: Path, variables: Sequence[Any], epochs: Sequence[EpochRecord]) -> None:
    with written_whole(path) as partial, partial.open("wb") as file:
        history = json.dumps([contract.to_json(epoch) for epoch in epochs])
        np.savez(file, np.array(history), *(variable.numpy() for variable in variables))


def load(path: Path, variables: Sequence[Any]) -> tuple[EpochRecord, ...]:
    """Set the variables to what was saved, and give back the epochs until then; none where nothing was saved."""
    if not path.exists():
        return ()
    try:
        with np.load(path) as saved:
            arrays = [saved[f"arr_{n}"] for n in range(len(saved.files))]
        history, values = json.loads(str(arrays[0])), arrays[1:]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise Fault("checkpoint", f"{path} must be this trial's checkpoint, but {error}: remove it") from error
    return tuple(EpochRecord(**epoch) for epoch in history)
