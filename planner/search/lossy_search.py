"""Lossy ways of decoding as candidates of a cell: only those that ran, and lost no more than is allowed.

Nothing enters without `allow_lossy`. A run's rounds are the decoder's own, so prices are exact. The rule's time, the
entropy of a few rows of logits or a classifier's look at them, is not priced apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import PlanError
from ..inputs import PlanInputs
from ..lossy.run import LossyRun
from ..pricing.round import RoundTimes
from ..replay.shortened import answer_tokens
from ..strategies.stack import StackPolicy
from ..strategies.stack_replay import StackReplay
from .contest import Contest
from .lossy_forecast import forecast_notes
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
    contest: Contest, inputs: PlanInputs, options: SearchOptions, layers: Mapping[str, int]
) -> tuple[str, ...]:
    """Enter the lossy runs of a cell's batch size, and return notes on them for readers of the plan.

    `layers` of block drafters are the most tokens of a chain.
    """
    if not options.allow_lossy:
        return ()
    own = [run for run in inputs.lossy if run.batch == contest.batch]
    for run in own:
        _enter(contest, run, options.max_quality_loss)
    return tuple(forecast_notes(own, contest.costs, layers))


def lossy_times(contest: Contest, run: LossyRun) -> RoundTimes:
    """Return what every round of a run costs in a cell; errors as `CellCosts.times`."""
    draft = run.policy.draft
    if not isinstance(draft, StackPolicy):
        return contest.costs.times(run.replay, contest.costs.kind_of(draft, run.drafter), run.drafter)
    is_modelled = np.zeros((run.replay.rounds, run.widths.shape[1] + 1), dtype=np.bool_)
    found = StackReplay(replay=run.replay, levels=run.levels.astype(np.int64), is_modelled=is_modelled)
    return stack_times(draft, found, contest.costs)


def _enter(contest: Contest, run: LossyRun, most_loss: float | None) -> None:
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
