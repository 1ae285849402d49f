"""A claim, its benchmark and what was measured, planted for tests of claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import claims
import results

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

ROW = claims.ClaimRow(
    claim="how long it takes", ours="{took_s:.1f} s", peer="the others", peer_figures="{theirs_s:.1f} s"
)
SECOND = claims.ClaimRow(peer="one more", peer_figures="{more_s:.1f} s", last="{times:.0f}×")
CLAIM = claims.Claim(
    benchmark="it", code=("code",), rows=(ROW, SECOND), notes=("Always said.", "It took {took_s:.2f} s.")
)
OTHER = claims.Claim(benchmark="other", code=("code",), rows=(claims.ClaimRow(claim="another", ours="{n:.0f}"),))
FIGURES = {"took_s": 1.25, "theirs_s": 5.0, "more_s": 7.5, "times": 6.0}
SCRIPT = '"""What it measures."""\nN = 1\n'


def measured(tree: Path, claim: Any = CLAIM, **fields: Any) -> Any:
    planted = results.Result(
        figures=FIGURES if claim is CLAIM else {"n": 3}, bounds={"took_s": "<= 2"}, met=True, unmet=(), arguments=(),
        run="2026-11-22T01:00:00Z", date="2026-11-22T01:10:00Z", took_s=60.0, commit="abc1234", machine="2 cores",
        busy_before=0.0, code=results.digests(claim, tree), pace_before_ms=(10.0, 10.1), pace_after_ms=(10.1, 10.2),
        pace_best_ms=10.0, pace_code="0f0f",
    )  # fmt: skip
    return dataclasses.replace(planted, **fields)
