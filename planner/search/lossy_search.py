"""Lossy ways of decoding as candidates of a cell: only those that ran, and lost no more than is allowed.

Nothing enters without `allow_lossy`. A run's rounds are the decoder's own, so prices are exact. The rule's time, the
entropy of a few rows of logits or a classifier's look at them, is not priced apart.

What did not run has a forecast: the recurrences of FLy and PAD, with the counts of a run. They assume independent
places, which is false, so a forecast is printed and never chosen. It shows which setting is worth a run, and beside a
run its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ...profiler.records.host_line import CHAIN
from ..inputs import PlanInputs
from ..lossy.run import LossyRun, LossyWay
from ..pricing.cost import CellCosts
from ..pricing.round import RoundTimes
from ..records import pad_rule as pad
from ..records.fly_rule import FlyRule, expected_accepted
from ..records.pad_rule import PadRule
from ..replay.shortened import answer_tokens
from ..strategies.chain import ChainPolicy
from ..strategies.stack import StackPolicy
from ..strategies.stack_replay import StackReplay
from .contest import CellSearch
from .options import SearchOptions
from .stack_search import stack_times


def with_lossy_runs(inputs: PlanInputs, runs: Sequence[LossyRun], new_tokens: int | None = None) -> PlanInputs:
    """Return the inputs with lossy runs of the same setup; `new_tokens` of an answer where requests are planned.

    PlanError: no runs, or one of other models, another number format, other prompts or shorter answers.
    """
    if not runs:
        raise PlanError("lossy decoding was allowed, and no lossy run was given; make some with: spectune lossy")
    for run in runs:
        _require_fitting(inputs, run)
        _require_as_long(run, answer_tokens(inputs, new_tokens))
    return replace(inputs, lossy=tuple(runs))


def search_lossy(
    contest: CellSearch, inputs: PlanInputs, options: SearchOptions, layers: Mapping[str, int]
) -> tuple[str, ...]:
    """Enter the lossy runs of a cell's batch size, and return notes on them for readers of the plan."""
    if not options.allow_lossy:
        return ()
    own = [run for run in inputs.lossy if run.batch == contest.batch]
    for run in own:
        _enter(contest, run, options.max_quality_loss)
    return tuple(forecast_notes(own, contest.costs, layers))


def lossy_times(contest: CellSearch, run: LossyRun) -> RoundTimes:
    """Return what every round of a run costs in a cell; errors as `CellCosts.times`."""
    draft = run.policy.draft
    if not isinstance(draft, StackPolicy):
        return contest.costs.times(run.replay, contest.costs.kind_of(draft, run.drafter), run.drafter)
    is_modelled = np.zeros((run.replay.rounds, run.widths.shape[1] + 1), dtype=np.bool_)
    found = StackReplay(replay=run.replay, levels=run.levels.astype(np.int64), is_modelled=is_modelled)
    return stack_times(draft, found, contest.costs)


def _enter(contest: CellSearch, run: LossyRun, most_loss: float | None) -> None:
    if most_loss is not None and run.quality.high > most_loss:
        contest.refuse(
            run.policy,
            run.drafter,
            f"its loss may be as much as {run.quality.high:.4g}, and {most_loss:.4g} is allowed ({run.quality.label})",
        )
        return
    try:
        times = lossy_times(contest, run)
    except PlanError as error:
        contest.refuse(run.policy, run.drafter, str(error))
        return
    contest.enter(run.policy, run.drafter, run.replay, times=times, quality=run.quality)


def _require_fitting(inputs: PlanInputs, run: LossyRun) -> None:
    for what, seen, wanted in (
        ("target", run.target, inputs.target.key),
        ("dtype", run.dtype, inputs.dtype),
        ("workload", run.workload, inputs.workload),
        ("temperature", run.temperature, inputs.temperature),
    ):
        if seen != wanted:
            raise PlanError(f"a lossy run's {what} is {seen!r}, the profile's {wanted!r}; run it on the profiled setup")
    known = {drafter.name: drafter.model.key for drafter in inputs.drafters}
    for name, key in run.drafters:
        if known.get(name) != key:
            raise PlanError(f"a lossy run drafted with {name} ({key}), which was not profiled; profile it too")
    if run.prompts != tuple(text.prompt for text in inputs.texts):
        raise PlanError(
            "a lossy run is of other prompts than the traces, so that the two cannot be compared text by text; "
            "run it with the profile's --prompts and --max-prompt-tokens"
        )


def _require_as_long(run: LossyRun, answer: int) -> None:
    if run.max_new_tokens < answer:
        raise PlanError(
            f"a lossy run's answers have at most {run.max_new_tokens} tokens, and {answer} are planned for; run "
            f"it with --max-new-tokens {answer}"
        )


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
