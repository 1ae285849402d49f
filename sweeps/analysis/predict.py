"""From a few GPUs to many: a step time fitted on what was measured, predictions with intervals, what to measure next.

    step = max(input, compute + communication)              of N ranks on K nodes, each with a batch of b
    compute        fixed + image · b
    communication  (N − 1) · latency + (N − 1) · b · wait + (N − 1) / N · transfer
    input          decode · b · N / K, where trials were seen to wait for it

A ring takes N − 1 hops and sends (N − 1) / N of the gradients; its latency and transfer are those of the links inside
a node for K = 1 and of those between nodes otherwise. The slowest of N ranks is waited for, the longer the more there
are and the longer a step is. No term is negative. What hides behind computing is part of what is fitted: the terms are
what is exposed. Fitted to relative errors, a model for all that is otherwise equal.

Each term starts from a wide guess (it may be nothing, or as large as a whole step), and what the trials leave possible
is drawn from. A prediction is the mean of these draws. Intervals are 95%: of the draws, of the spread of cells around
the model, and of what the model was off when it was fitted on fewer GPUs to predict those that are there (`held_out`
shows that too).

What trials have shown a little of makes an interval wide. Of what none has shown, links between nodes where all ran in
one, nothing is predicted: the draws would be the guess and nothing else. `Model.lacks` says what a shape needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sweeps.analysis import apart, cells, plain, varied
from workers.contract.messages import TrialConfig, nodes_by_ranks

if TYPE_CHECKING:
    import pandas as pd

TERMS = (
    "fixed_ms",
    "image_ms",
    "wait_ms",
    "latency_inside_ms",
    "transfer_inside_ms",
    "latency_between_ms",
    "transfer_between_ms",
)
SHAPE = ("gpus", "batch_size", "placement")  # parameters that the model is about; all others make models of their own
WAITS = 0.1  # share of a step, from which a trial's input counts as what limits it
LEAST_SPREAD = 0.002  # of a cell's mean around the model, relative
FEWEST_CELLS = 3
CHAINS, STEPS, LEFT_OUT = 64, 150, 50  # draws of what the trials leave possible; the first steps don't count


BETWEEN, INSIDE, BATCH = "links between nodes", "links inside a node", "a second batch size"  # what a trial shows

Shape = tuple[float, float, float]  # GPUs, nodes, batch


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the step times of cells that differ in GPUs, placement and batch only."""

    at: dict[str, Any]  # the other parameters that vary
    terms: dict[str, float]  # those that the trials show
    decode_ms: float  # a node's, for an image; 0 where nothing waits for it
    spread: float  # of a cell around the model, relative
    drift: float  # what predictions from half of the GPUs were off, relative
    largest: int  # GPUs that it was fitted on
    cells: int
    links: frozenset[str]  # that a trial used
    batches: frozenset[float]
    _draws: Any = dataclasses.field(repr=False)  # rows of terms that the trials leave possible
    _mean: Any = dataclasses.field(repr=False)
    _quantile: float = dataclasses.field(repr=False)

    def lacks(self, gpus: float, nodes: float, batch_size: float, also: Shape | None = None) -> tuple[str, ...]:
        """Return what no trial has shown that this shape depends on, nor would `also`: with any, its figures mean
        nothing."""
        shown = [also] if also else []
        links = self.links.union(*(_links(*shape[:2]) for shape in shown))
        batches = self.batches.union(shape[2] for shape in shown)
        is_other = len(batches) == 1 and batch_size not in batches
        return (*sorted(_links(gpus, nodes) - links), *([BATCH] if is_other else ()))

    def step_ms(self, gpus: float, nodes: float, batch_size: float) -> float:
        rest = float(_terms(gpus, nodes, batch_size) @ self._mean)
        return max(rest, self.decode_ms * batch_size * gpus / nodes)

    def images_per_s(self, gpus: float, nodes: float, batch_size: float) -> float:
        return 1e3 * gpus * batch_size / self.step_ms(gpus, nodes, batch_size)

    def within(self, gpus: float, nodes: float, batch_size: float, also: Shape | None = None) -> float:
        """Half of the interval of a prediction, relative; with `also`, if that shape were measured once more."""
        drawn = self._drawn(gpus, nodes, batch_size)
        known = float(drawn.var())
        if also:
            other = self._drawn(*also)
            explained = float(((drawn - drawn.mean()) * (other - other.mean())).mean()) ** 2
            known -= explained / (float(other.var()) + self.spread**2)  # as a linear estimate is told by it
        reach = math.log2(max(gpus / self.largest, 1.0))
        return float(self._quantile * math.sqrt(max(known, 0.0) + self.spread**2 + (self.drift * reach) ** 2))

    def _drawn(self, gpus: float, nodes: float, batch_size: float) -> Any:
        """Return the step times of a shape that the trials leave possible, relative."""
        return self._draws @ _terms(gpus, nodes, batch_size) / self.step_ms(gpus, nodes, batch_size)


def _links(gpus: float, nodes: float) -> frozenset[str]:
    """Return the kinds of links that so many ranks use."""
    return frozenset() if gpus <= 1 else frozenset({INSIDE if nodes <= 1 else BETWEEN})


def _terms(gpus: float, nodes: float, batch_size: float) -> Any:
    import numpy as np

    hops, sent = gpus - 1, (gpus - 1) / gpus
    is_inside = nodes <= 1
    links = [hops, sent, 0.0, 0.0] if is_inside else [0.0, 0.0, hops, sent]
    return np.array([1.0, batch_size, hops * batch_size, *links], float)


def fit(trials: pd.DataFrame) -> list[Model]:
    """Return a model for each combination of the other parameters that has cells enough; of trials that know their
    nodes."""
    table, by = _measured(trials)
    groups = table.groupby(by, sort=False, dropna=False) if by else [((), table)]
    made = (_fitted(cells_, {name: cells_.iloc[0][name] for name in by}) for _, cells_ in groups if len(cells_))
    return [model for model in made if model]


def _measured(trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    table = cells(trials)
    table = table.assign(nodes=table["nodes"].where(table["gpus"] > 1, 1.0))
    by = [name for name in varied(trials) if name not in SHAPE]
    by += apart(table)
    table = table[(table["images_per_s"] > 0) & table["nodes"].notna()]
    return table.assign(step_ms=1e3 * table["batch_size"] * table["gpus"] / table["images_per_s"]), by


def _fitted(table: pd.DataFrame, at: dict[str, Any]) -> Model | None:
    """Fit a model; its drift is what predictions of the larger half from the smaller were off by."""
    model = _once(table, at)
    if model is None:
        return None
    errors = [row["error"] / row["reach"] for row in _tried(table, at)]
    drift = math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0
    return dataclasses.replace(model, drift=drift)


def _once(table: pd.DataFrame, at: dict[str, Any]) -> Model | None:
    import numpy as np
    from scipy.optimize import nnls

    from workers.measure import student_t

    if len(table) < FEWEST_CELLS:
        return None
    waits = table["input_share"].fillna(0.0).clip(lower=0.0) > WAITS
    step_ms = table["step_ms"].to_numpy(float)
    shares = table["input_share"].where(waits, 0.0).to_numpy(float)
    rest_ms = step_ms * (1 - shares)
    local = (table["gpus"] / table["nodes"] * table["batch_size"]).to_numpy(float)
    decode_ms = float(np.median((step_ms / local)[waits.to_numpy()])) if waits.any() else 0.0
    shape = table[["gpus", "nodes", "batch_size"]].to_numpy(float)
    terms = np.array([_terms(*row) for row in shape]) / rest_ms[:, None]
    far = np.array([_terms(*row) for row in _reaching(shape)]) / rest_ms.max()
    guess = np.diag(np.maximum(terms.max(axis=0), far.max(axis=0)))  # a term is about a step at most
    spread = 0.01
    for _ in range(5):  # the spread weighs the data against the guess, and comes out of the fit
        design = np.vstack([terms / spread, guess])
        aim = np.concatenate([np.full(len(terms), 1 / spread), np.zeros(len(guess))])
        found, _ = nnls(design, aim)
        off = terms @ found - 1
        free = max(len(terms) - int((found > 0).sum()), 1)
        spread = max(math.sqrt(float((off**2).sum()) / free), LEAST_SPREAD)
    draws = _draws(design, aim, found)
    mean = draws.mean(axis=0)
    is_shown = terms.any(axis=0)
    return Model(
        at=at,
        terms={name: float(ms) for name, ms, shown in zip(TERMS, mean, is_shown, strict=True) if shown},
        decode_ms=decode_ms,
        spread=spread,
        drift=0.0,
        largest=int(table["gpus"].max()),
        cells=len(table),
        links=frozenset().union(*(_links(gpus, nodes) for gpus, nodes, _ in shape)),
        batches=frozenset(map(float, shape[:, 2])),
        _draws=draws,
        _mean=mean,
        _quantile=student_t.quantile(free),
    )


def _draws(design: Any, aim: Any, start: Any) -> Any:
    """Terms from the normal distribution of least squares, where none is negative: hit and run, from its peak."""
    import numpy as np

    drawn = np.random.default_rng(0)
    root = np.linalg.cholesky(np.linalg.inv(design.T @ design))
    peak = np.linalg.lstsq(design, aim, rcond=None)[0]
    at = np.tile(start, (CHAINS, 1))
    kept = []
    for step in range(STEPS):
        toward = drawn.standard_normal((CHAINS, len(start)))
        toward /= np.linalg.norm(toward, axis=1, keepdims=True)
        moves = toward @ root.T
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = -at / moves
        low = np.where(moves > 0, ends, -np.inf).max(axis=1)
        high = np.where(moves < 0, ends, np.inf).min(axis=1)
        middle = (toward * np.linalg.solve(root, (peak - at).T).T).sum(axis=1)
        length = middle + _normal_within(low - middle, high - middle, drawn.random(CHAINS))
        at = np.maximum(at + length[:, None] * moves, 0.0)
        if step >= LEFT_OUT:
            kept.append(at)
    return np.concatenate(kept)


def _normal_within(low: Any, high: Any, chance: Any) -> Any:
    """Draw standard normal numbers between two bounds, also far out in a tail."""
    import numpy as np
    from scipy.special import log_ndtr, ndtri_exp

    is_upper = low > 0
    a, b = np.where(is_upper, -high, low), np.where(is_upper, -low, high)
    log_a, log_b = log_ndtr(a), log_ndtr(b)
    part = np.exp(log_a - log_b)
    found = np.clip(ndtri_exp(np.minimum(log_b + np.log(part + chance * (1 - part)), -1e-300)), a, b)
    return np.where(is_upper, -found, found)


def _reaching(shape: Any) -> Any:
    """Return shapes of as many ranks, all in one node and one on each: they have every term."""
    import numpy as np

    gpus, batch_size = max(shape[:, 0].max(), 2.0), shape[:, 2].max()
    return np.array([[gpus, nodes, batch_size] for nodes in (1.0, gpus)])


def _tried(table: pd.DataFrame, at: dict[str, Any]) -> list[dict[str, Any]]:
    """Each GPU count beyond the second predicted from those up to half of it."""
    rows = []
    for gpus in sorted(table["gpus"].unique())[2:]:
        known = table[table["gpus"] <= gpus / 2]
        model = _once(known, at)
        for row in table[table["gpus"] == gpus].to_dict("records") if model else ():
            assert model
            where = _where(row)
            if model.lacks(*where):
                continue  # no error of the model's
            error = model.step_ms(*where) / row["step_ms"] - 1
            rows.append({"error": error, "reach": math.log2(gpus / model.largest)})
    return rows


def predictions(models: Sequence[Model], shapes: pd.DataFrame) -> pd.DataFrame:
    """Shapes, rows of gpus, nodes, batch_size and what else tells models apart, with the images/s predicted.

    Empty where no model is about such cells, and where nothing measured shows what they depend on: that `lacks` says.
    """
    import pandas as pd

    rows = []
    for shape in shapes.to_dict("records"):
        model = _model_of(models, shape)
        where = _where(shape)
        lacks = model.lacks(*where) if model else ()
        if model is None or where[1] != where[1] or lacks:
            rows.append({"predicted": math.nan, "predicted_ci": math.nan, "lacks": ", ".join(lacks)})
            continue
        rate = model.images_per_s(*where)
        rows.append({"predicted": rate, "predicted_ci": rate * model.within(*where), "lacks": ""})
    made = pd.DataFrame(rows, columns=["predicted", "predicted_ci", "lacks"], index=shapes.index)
    return pd.concat([shapes, made], axis=1)


def _where(row: dict[str, Any]) -> Shape:
    return row["gpus"], row["nodes"], row["batch_size"]


def _model_of(models: Sequence[Model], shape: dict[str, Any]) -> Model | None:
    return next((one for one in models if all(shape.get(name, at) == at for name, at in one.at.items())), None)


def held_out(trials: pd.DataFrame, known: int = 0) -> pd.DataFrame:
    """Return the cells of more than `known` GPUs (else of more than half of the most) as the others predict them.

    `error` is relative, predicted over measured less one; `is_within` whether the measured rate lies in the interval.
    Both are missing where there is no prediction.
    """
    table, by = _measured(trials)
    limit = known or (max(int(table["gpus"].max()) // 2, 1) if len(table) else 1)
    models = fit(trials[trials["gpus"] <= limit])
    beyond = table[table["gpus"] > limit]
    columns = [*dict.fromkeys(["cell", *by, *(name for name in SHAPE if name in table), "nodes"])]
    made = predictions(models, beyond[[*columns, "images_per_s", "images_per_s_ci"]])
    made["error"] = made["predicted"] / made["images_per_s"] - 1
    is_within = (made["predicted"] - made["images_per_s"]).abs() <= made["predicted_ci"]
    made["is_within"] = is_within.astype("boolean").mask(made["predicted"].isna())
    return made.reset_index(drop=True)


def next_trials(trials: pd.DataFrame, shapes: pd.DataFrame) -> pd.DataFrame:
    """Return the shapes of a plan by how much measuring one would tell of those not measured yet, the best first.

    First those that show something which cells of the plan depend on and no trial has shown, the smallest of them
    foremost: `tells` says what, `opens` of how many cells that nothing is predicted of without it. Then by how much one
    more repeat narrows the predictions that there are, of `predicts` cells: `within` is their mean relative half-width
    now, `then` after it, empty where that is unknown. Shapes that were infeasible are neither proposed nor
    predicted.
    """
    import pandas as pd

    models = fit(trials)
    table, _ = _measured(trials)
    done = {*table["cell"]}
    is_infeasible = shapes["cell"].isin(trials.loc[trials["outcome"] == "infeasible", "cell"])
    shapes = shapes[~is_infeasible & shapes["nodes"].notna()]
    open_ = [shape for shape in shapes.to_dict("records") if shape["cell"] not in done]
    rows = []
    for candidate in shapes.to_dict("records"):
        model = _model_of(models, candidate)
        targets = [_where(shape) for shape in open_ if _model_of(models, shape) is model]
        if model is None or not targets:
            continue
        found = _expected(model, _where(candidate), targets)
        rows.append(candidate | {"is_measured": candidate["cell"] in done} | found)
    columns = [*shapes.columns, "is_measured", "tells", "opens", "within", "then", "predicts"]
    made = pd.DataFrame(rows, columns=[*columns, "untold", "gain"])
    news = made[made["opens"] > 0].sort_values(
        ["untold", "opens", "nodes", "gpus", "batch_size"], ascending=[True, False, True, True, True], kind="stable"
    )
    rest = made[~made.index.isin(news.index)].sort_values("gain", ascending=False, kind="stable")
    return made.loc[[*news.index, *rest.index], columns].reset_index(drop=True)


def _expected(model: Model, by: Shape, targets: Sequence[Shape]) -> dict[str, Any]:
    """Return what one more trial of a shape would tell of others; `untold` counts what it would have to tell at
    once."""
    import numpy as np

    opened = [{*model.lacks(*target)} - {*model.lacks(*target, by)} for target in targets]
    is_new = bool(model.lacks(*by))  # how much it narrows is then a guess too
    known = [target for target in targets if not model.lacks(*target)]
    widths = [[model.within(*target, also) for also in (None, by)] for target in known]
    now, then = np.mean(widths, axis=0) if widths else (math.nan, math.nan)
    return {
        "tells": ", ".join(sorted(set().union(*opened))),
        "opens": sum(map(bool, opened)),
        "within": now,
        "then": math.nan if is_new else then,
        "predicts": len(widths),
        "untold": len(model.lacks(*by)),
        "gain": 0.0 if is_new or not widths else (now - then) * len(widths),
    }


def shapes(planned: Sequence[TrialConfig], trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a plan as rows, each with the nodes that it would run on where these trials did.

    As many as it is planned for, or as it did; else, packed, nodes of as many ranks as the fullest had, and spread,
    the most nodes there were.
    """
    import pandas as pd

    from sweeps.record import rows

    known = plain(trials)[trials["nodes"] > 0]
    ran = known.groupby(["gpus", "placement"])["nodes"].max().to_dict()
    full = max((known["gpus"] / known["nodes"]).max(), 1.0) if len(known) else math.nan
    most = known["nodes"].max() if len(known) else math.nan

    def nodes(config: TrialConfig) -> float:
        if config.arrangement:
            return float(len(config.arrangement))
        if form := nodes_by_ranks(config.placement):
            return float(form[0])
        if config.gpus == 1 or (config.gpus, config.placement) in ran:
            return float(ran.get((config.gpus, config.placement), 1.0))
        packed = math.ceil(config.gpus / full) if full == full else math.nan
        return float(packed if config.placement == "pack" else max(min(config.gpus, most), packed))

    made = [{"cell": one.cell, **rows.params(one), "nodes": nodes(one)} for one in planned if one.repeat == 0]
    table = pd.DataFrame(made)
    if "decode_threads" in table:
        table["decode_threads"] = table["decode_threads"].astype(str)
    return table
