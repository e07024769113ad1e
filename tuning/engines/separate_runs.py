"""Chains of 1, 2, ... steps, run one after the other: what each step adds, as far as noise allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from ...errors import RequestError

MEASURED = ("acc_length", "step_time")  # by a line of SGLang's tool
SLACK = 1e-3  # by which a rate may exceed the one before it: engines round to three digits
MOST_MOVED = 0.1  # of a round's tokens: a test holds noise of separate runs, of 8,192 tokens each, to less
Json = dict[str, Any]  # JSON values


def joined(rows: Sequence[Json]) -> list[Json]:
    """Return one row per server that was tried: several runs of the tool write behind each other, and are averaged."""
    alike: dict[tuple[int, int, int], list[Json]] = {}
    for row in rows:
        alike.setdefault((int(row["steps"]), int(row["topk"]), int(row["num_draft_tokens"])), []).append(row)
    return [
        {**runs[0], "runs": len(runs), **{name: mean(float(run[name]) for run in runs) for name in MEASURED}}
        for runs in alike.values()
    ]


def differences(chains: Mapping[int, float], batch: int) -> list[float]:
    """Return the tokens that each further tried step adds to a round; RequestError for more than all drafts and one."""
    for steps, length in chains.items():
        if length > steps + 1 + SLACK:
            raise RequestError(f"batch {batch}: {steps} steps yield {steps + 1} tokens a round at most, not {length:g}")
    rates: list[float] = []
    before = 1.0
    while len(rates) + 1 in chains:
        rates.append(chains[len(rates) + 1] - before)
        before = chains[len(rates)]
    return rates


def falling(measured: Sequence[float], batch: int) -> list[float]:
    """Return the nearest falling rates in [0, 1]; RequestError for moves over `MOST_MOVED` of a round's tokens."""
    fitted, length = nearest_falling(measured), 1.0
    for steps, (before, after) in enumerate(zip(measured, fitted, strict=True), start=1):
        length += before
        if abs(after - before) > MOST_MOVED * length:
            raise RequestError(
                f"batch {batch}: step {steps} added {before:.3f} tokens to a round, where the nearest acceptance that "
                f"falls with the position is {after:.3f}; a longer prefix cannot be accepted more often, and noise of "
                f"separate runs is below {MOST_MOVED * length:.3f}. Run these steps again, on more prompts"
            )
    return fitted


def nearest_falling(rates: Sequence[float]) -> list[float]:
    """Return the falling rates in [0, 1] with the least squared distance from those given.

    Rising neighbours are pooled to their mean, then clipped, which stays the nearest within bounds.

    Source: Ayer et al. 1955, Ann. Math. Statist. 26(4), pooling of adjacent violators.
    """
    from scipy.optimize import isotonic_regression

    if not rates:
        return []
    pooled = isotonic_regression(list(rates), increasing=False).x.tolist()
    return [min(max(rate, 0.0), 1.0) for rate in pooled]
