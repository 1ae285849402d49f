"""Published figures as the frames that analysis reads, so that a sweep can be held against them.

`trials(system)` has the columns that a publication states and no others: one row a figure, one repeat each. Its
hardware is `published:SYSTEM`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweeps.errors import InputError, Mistake
from workers.contract import imagenet
from workers.contract.spelling import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parents[2] / "references"
PUBLISHED = "published:"  # begins the fingerprint of a machine that somebody else measured
PARAMETERS = ("model", "precision", "batch_size", "gpus")  # parameters that a figure comes with


def table(name: str) -> pd.DataFrame:
    """One of the files: throughput, differences, speedups, convergence, precision, int8_accuracy, simulator."""
    import pandas as pd

    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.csv"))) or "none"
        raise InputError("reference", [Mistake("", f"must be in the folder references/ (there: {known})", name)])
    return pd.read_csv(path)


def systems() -> list[str]:
    """Return the systems whose images/s are published."""
    return sorted(table("throughput")["system"].unique())


def system(name: str) -> str:
    """Return the system that a name or its beginning means."""
    known = systems()
    found = [full for full in known if full == name] or [full for full in known if full.startswith(name) and name]
    if len(found) == 1:
        return found[0]
    hint = "" if found else did_you_mean(name, known, cutoff=0.3)
    rule = f"must begin the name of one published system ({', '.join(found or known)}){hint}"
    raise InputError("reference", [Mistake("", rule, name)])


def trials(name: str) -> pd.DataFrame:
    """Return the published throughput of a system, one row a figure."""
    from sweeps.record import rows

    full = system(name)
    found = table("throughput").query("system == @full").reset_index(drop=True)
    cells = [f"{full}:{row.model}:{row.precision}:b{row.batch_size}:x{row.gpus}" for row in found.itertuples()]
    made = found[[*PARAMETERS]].assign(
        trial=cells,
        cell=cells,
        outcome="completed",
        repeat=0,
        **dict.fromkeys(("kind", "message", "limited_by", "why_withheld", "pinned", "why_not_pinned"), ""),
    )
    made["hardware"] = f"{PUBLISHED}{full}"
    made = made.assign(**dict.fromkeys(("software", "data_files", "arrangement"), ""))
    made = made.assign(**dict.fromkeys(rows.METRICS, float("nan")))
    made["nodes"] = found["nodes"].astype(float)
    made["images_per_s"] = found["images_per_s"].astype(float)
    made["images_per_s_per_gpu"] = made["images_per_s"] / made["gpus"]
    made["gpu_hours_per_epoch"] = made["gpus"] * imagenet.TRAIN_IMAGES / made["images_per_s"] / 3600
    made["step_ms_mean"] = 1e3 * made["batch_size"] * made["gpus"] / made["images_per_s"]
    return made
