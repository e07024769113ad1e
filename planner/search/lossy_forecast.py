"""What lossy ways that did not run might do: the recurrences of FLy and PAD, with the counts of a run.

The recurrences assume independent places, which is false, so a forecast is printed and never chosen. It shows which
setting is worth a run, and beside a run its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...profiler.records.host_line import CHAIN
from ..lossy.run import LossyRun, LossyWay
from ..pricing.cost import CellCosts
from ..records import pad_rule as pad
from ..records.fly_rule import FlyRule, expected_accepted
from ..records.pad_rule import PadRule
from ..strategies.chain import ChainPolicy

LENGTHS = (4, 6, 8, 10, 12, 15, 20)
WINDOWS = (2, 4, 6)
THRESHOLDS = (0.3, 0.5, 0.7)  # PAD's published ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A way that was not run, and what the recurrence says of it."""

    policy: LossyWay
    tokens_per_round: float
    tokens_per_s: float


def expected_tokens(run: LossyRun, length: int, rule: FlyRule | PadRule) -> float:
    """Return the recurrence's tokens per sequence and round for `length` drafted tokens, with a run's counted chances.

    The run's rule is of the same kind, FLy's with the same gate, PAD's with the same floor; `rule` sets the rest.
    """
    seen = run.matched + run.mismatched
    match = run.matched / seen if seen else 0.0
    if isinstance(rule, PadRule):
        passes = float((run.pivots < rule.threshold).sum()) / run.mismatched if run.mismatched else 0.0
        return 1.0 + pad.expected_accepted(length, match, passes)
    is_open = float(np.mean(run.entropies >= rule.threshold)) if len(run.entropies) else 0.0
    return 1.0 + expected_accepted(length, match, is_open, rule)


def forecasts(run: LossyRun, costs: CellCosts, layers: int | None = None) -> Iterator[Forecast]:
    """Yield what chains of other lengths and other rules might do in a cell, by the counts of a run; none for stacks.

    `layers` are the most tokens of a chain by a block drafter; None of others.
    """
    draft = run.policy.draft
    if not isinstance(draft, ChainPolicy) or not costs.has_host(CHAIN, run.drafter) or run.drafter not in costs.drafts:
        return
    rounds = costs.at_context(CHAIN, run.drafter)
    most = min(rounds.verify.most_tokens - 1, max(LENGTHS) if layers is None else layers)
    for length in (length for length in LENGTHS if length <= most):
        for policy in _others(run.policy, length):
            tokens = expected_tokens(run, length, policy.rule)
            (ms,) = rounds.chains_ms(np.array([length]), np.array([round(tokens)])).tolist()
            yield Forecast(policy=policy, tokens_per_round=tokens, tokens_per_s=1000.0 * costs.cell.batch * tokens / ms)


def forecast_notes(runs: Sequence[LossyRun], costs: CellCosts, layers: Mapping[str, int]) -> Iterator[str]:
    """Yield, for people: the recurrence beside each run of the cell's batch, and the best forecast of what did not run.

    `layers` of block drafters are the most tokens of a chain.
    """
    cell = costs.cell
    where = f"batch {cell.batch}, context {cell.context}"
    for run in runs:
        said = expected_tokens(run, round(float(run.nodes.mean())) - 1, run.policy.rule)
        yield (
            f"{where}: {run.policy.code} kept {run.tokens_per_round:.2f} tokens per round, "
            f"the recurrence says {said:.2f}; {run.quality.label}"
        )
    ran = {(run.drafter, run.policy) for run in runs}
    others = [
        (one, run)
        for run in runs
        for one in forecasts(run, costs, layers.get(run.drafter))
        if (run.drafter, one.policy) not in ran
    ]
    if others:
        best, run = max(others, key=lambda pair: pair[0].tokens_per_s)
        yield (
            f"{where}: not run, so not chosen: the recurrence expects most of {best.policy.code} ({run.drafter}), "
            f"{best.tokens_per_s:,.1f} tokens/s; its quality is not known"
        )


def _others(policy: LossyWay, length: int) -> Iterator[LossyWay]:
    """Yield the same way with chains of a length, at every window that fits or every threshold."""
    draft = ChainPolicy(length=length)
    if policy.kind == "lossy-fly":
        for window in WINDOWS:
            if window < length:
                yield replace(policy, draft=draft, rule=replace(policy.rule, window=window))
        return
    for threshold in THRESHOLDS:
        yield replace(policy, draft=draft, rule=replace(policy.rule, threshold=threshold))
