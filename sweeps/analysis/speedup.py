"""How the rate grows with the GPUs.

Scaling efficiency is X(N) ÷ (N · X(1)) at the same cell in all but the GPU count and the placement, of which one GPU
has only one: weak scaling where the batch of a GPU stays the same, strong scaling where that of all GPUs does.

Over K nodes with r GPUs each, efficiency = intra × inter. Intra is the efficiency of r GPUs in one node, X(r) ÷
(r · X(1)); inter is that of K nodes against one of them, X(N) ÷ (K · X(r)). Publications that give one figure "within
the node" and one "across the nodes" mean intra and efficiency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.analysis.alike import FINGERPRINTS
from sweeps.analysis.means import cells, parameters
from sweeps.analysis.ratios import ratio_ci

if TYPE_CHECKING:
    import pandas as pd


def scaling(trials: pd.DataFrame, is_strong: bool = False) -> pd.DataFrame:
    """Return the cells with their speed-up and efficiency against one GPU at the same settings, the cell `base`; NaN
    where that, or for intra and inter the single node, was not measured."""
    table = cells(trials)
    table["global_batch"] = table["batch_size"] * table["gpus"]
    varies = ("gpus", "placement", "batch_size" if is_strong else "global_batch")
    same = [name for name in (*parameters(trials), "global_batch", *FINGERPRINTS, "data_files") if name not in varies]
    single = (
        table[table["gpus"] == 1].drop_duplicates(same).set_index(same)[["images_per_s", "images_per_s_ci", "cell"]]
    )
    joined = table.join(single, on=same, rsuffix="_1")
    table["base"] = joined["cell_1"]
    rate, ci = joined["images_per_s"], joined["images_per_s_ci"]
    of, of_ci = joined["images_per_s_1"], joined["images_per_s_ci_1"]
    is_many = table["gpus"] > 1
    table["speedup"] = rate / of
    table["speedup_ci"] = ratio_ci(rate, ci, of, of_ci).where(is_many, 0.0)
    table["efficiency"] = table["speedup"] / table["gpus"]
    table["efficiency_ci"] = table["speedup_ci"] / table["gpus"]
    _split(table, same)
    return table


def _split(table: pd.DataFrame, same: list[str]) -> None:
    """Efficiency as that inside a node × that between nodes."""
    nodes = table["nodes"] if "nodes" in table else table["gpus"].where(table["gpus"] == 1)
    nodes = nodes.where(table["gpus"] > 1, 1.0).where(table["images_per_s"].notna())
    is_even = (table["gpus"] % nodes == 0) & ~table["arrangement"].str.contains("+", regex=False)
    local = (table["gpus"] / nodes).where(is_even).astype(float)  # uneven nodes have no single node to compare
    of_local = table.assign(local=local)
    figures = ["images_per_s", "images_per_s_ci", "efficiency", "efficiency_ci"]
    inside = of_local[nodes == 1].assign(local=lambda found: found["gpus"].astype(float))
    inside = inside.drop_duplicates([*same, "local"]).set_index([*same, "local"])[figures]
    joined = of_local.join(inside, on=[*same, "local"], rsuffix="_node")
    is_one, is_inside = nodes == 1, local == 1
    of, of_ci = nodes * joined["images_per_s_node"], nodes * joined["images_per_s_ci_node"]
    table["intra"] = joined["efficiency_node"].where(~is_one, table["efficiency"])
    table["intra_ci"] = joined["efficiency_ci_node"].where(~is_one, table["efficiency_ci"])
    table["inter"] = (table["images_per_s"] / of).where(~is_one, 1.0)
    table["inter_ci"] = ratio_ci(table["images_per_s"], table["images_per_s_ci"], of, of_ci).where(~is_one, 0.0)
    unknown = table["efficiency"].isna() | local.isna()
    table.loc[unknown, ["intra", "intra_ci", "inter", "inter_ci"]] = float("nan")
    table.loc[is_inside & ~unknown, ["intra", "intra_ci"]] = 1.0, 0.0
