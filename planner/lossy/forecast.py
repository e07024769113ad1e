"""What lossy ways that were not run might do: the recurrences of FLy and PAD, fed by what a run has counted.

The recurrences take places for independent, which they are not, so a forecast is told and never chosen. It says which
setting is worth a run, and beside a run how far off it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..policies.chain import ChainPolicy
from ..policies.fly import FlyPolicy
from ..pricing.cost import CellCosts
from . import pad
from .fly import FlyRule, expected_accepted
from .pad import PadRule
from .run import LossyRun, LossyWay

LENGTHS = (4, 6, 8, 10, 12, 15, 20)
WINDOWS = (2, 4, 6)
THRESHOLDS = (0.3, 0.5, 0.7)  # PAD's published ones
CHAIN = "chain"  # the kind whose host time a lossy chain has


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A way that was not run, and what the recurrence says of it."""

    policy: LossyWay
    tokens_per_round: float
    tokens_per_s: float


def expected_tokens(run: LossyRun, length: int, rule: FlyRule | PadRule) -> float:
    """Return the recurrence's tokens per sequence and round, with the chances that a run has counted.

    Args:
        run: by a rule of the same kind; of FLy by the same gate, of PAD by the same floor.
        length: drafted tokens.
        rule: whose window, or threshold, counts.
    """
    seen = run.matched + run.mismatched
    match = run.matched / seen if seen else 0.0
    if isinstance(rule, PadRule):
        passes = float((run.pivots < rule.threshold).sum()) / run.mismatched if run.mismatched else 0.0
        return 1.0 + pad.expected_accepted(length, match, passes)
    is_open = float(np.mean(run.entropies >= rule.threshold)) if len(run.entropies) else 0.0
    return 1.0 + expected_accepted(length, match, is_open, rule)


def forecasts(run: LossyRun, costs: CellCosts) -> Iterator[Forecast]:
    """Yield what chains of other lengths and looser or stricter rules might do in a cell, by what a run counted."""
    draft = run.policy.draft
    if not isinstance(draft, ChainPolicy) or CHAIN not in costs.host or run.drafter not in costs.drafts:
        return
    table, context = costs.drafts[run.drafter], float(costs.cell.context)
    drafting, verify = table.row(context), costs.verify.row(context)
    base, per_forward, per_node = costs.host[CHAIN]
    for length in LENGTHS:
        for policy in _others(run.policy, length):
            if length + 1 > costs.verify.most_tokens:
                continue
            tokens = expected_tokens(run, length, policy.rule)
            fresh = min(round(tokens), table.most_tokens)
            ms = drafting[fresh] + (length - 1) * drafting[1] + verify[length + 1]
            ms += base + per_forward * length + per_node * (length + 1)
            yield Forecast(
                policy=policy,
                tokens_per_round=tokens,
                tokens_per_s=1000.0 * costs.cell.batch * tokens / float(ms),
            )


def forecast_notes(runs: list[LossyRun], costs: CellCosts) -> Iterator[str]:
    """Yield, for people: what the recurrence says beside each run, and the best forecast of what was not run."""
    cell = costs.cell
    where = f"batch {cell.batch}, context {cell.context}"
    for run in runs:
        said = expected_tokens(run, round(float(run.nodes.mean())) - 1, run.policy.rule)
        yield (
            f"{where}: {run.policy.label} kept {run.tokens_per_round:.2f} tokens per round, "
            f"the recurrence says {said:.2f}; {run.quality.label}"
        )
    ran = {(run.drafter, run.policy) for run in runs}
    others = [(one, run) for run in runs for one in forecasts(run, costs) if (run.drafter, one.policy) not in ran]
    if others:
        best, run = max(others, key=lambda pair: pair[0].tokens_per_s)
        yield (
            f"{where}: not run, so not chosen: the recurrence expects most of {best.policy.label} ({run.drafter}), "
            f"{best.tokens_per_s:,.1f} tokens/s; its quality is not known"
        )


def _others(policy: LossyWay, length: int) -> Iterator[LossyWay]:
    """Yield the same way with chains of a length, at every window that fits or every threshold."""
    draft = ChainPolicy(length=length)
    if isinstance(policy, FlyPolicy):
        for window in WINDOWS:
            if window < length:
                yield replace(policy, draft=draft, rule=replace(policy.rule, window=window))
        return
    for threshold in THRESHOLDS:
        yield replace(policy, draft=draft, rule=replace(policy.rule, threshold=threshold))
