"""Time to an accuracy, told apart: how much faster images go by, and how many more of them it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis.alike import FINGERPRINTS
from sweeps.analysis.means import cells, varied
from sweeps.analysis.ratios import ratio_ci

if TYPE_CHECKING:
    import pandas as pd

GROWS_WITH = ("gpus", "placement", "batch_size")


def convergence(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that came to their target, each against the one of its line with the smallest global batch.

    `speedup` = `throughput` × `statistical`: hours(base) ÷ hours = rate ÷ rate(base) × epochs(base) ÷ epochs. Hours
    are those of training, validations left out; what the product misses of the hours measured is `unexplained`, a
    ratio near 1. A line holds all that but the GPU count, their placement and the batch of a GPU have in common.
    """
    table = cells(trials)
    table = table[(table["reached"] > 0) & table["epochs_to_target"].notna()]
    table = table.assign(global_batch=table["batch_size"] * table["gpus"])
    by = [name for name in (*varied(trials), *FINGERPRINTS, "data_files") if name not in GROWS_WITH]
    table = table.sort_values(["global_batch", "gpus"], kind="stable")
    base = table.drop_duplicates(by).set_index(by)
    figures = [
        f"{name}{ci}" for name in ("images_per_s", "epochs_to_target", "train_hours_to_target") for ci in ("", "_ci")
    ]
    joined = table.join(base[[*figures, "cell"]], on=by, rsuffix="_base")
    is_base = joined["cell"] == joined["cell_base"]

    def gain(figure: str, is_more: bool) -> tuple[pd.Series, pd.Series]:
        mine, its = joined[figure], joined[f"{figure}_base"]
        mine_ci, its_ci = joined[f"{figure}_ci"], joined[f"{figure}_ci_base"]
        up, under = ((mine, mine_ci), (its, its_ci)) if is_more else ((its, its_ci), (mine, mine_ci))
        return up[0] / under[0], ratio_ci(*up, *under).where(~is_base, 0.0)

    made = joined.drop(columns=[name for name in joined if name.endswith("_base")])
    made["throughput"], made["throughput_ci"] = gain("images_per_s", is_more=True)
    made["statistical"], made["statistical_ci"] = gain("epochs_to_target", is_more=False)
    made["speedup"], made["speedup_ci"] = gain("train_hours_to_target", is_more=False)
    made["unexplained"] = made["speedup"] / (made["throughput"] * made["statistical"])
    return made.reset_index(drop=True)
