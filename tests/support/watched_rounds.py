"""Rounds made up for a watch: no model runs, and the time they take is invented."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

from spectune.planner.plans.plan import Alternative, Plan, PlanCell
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.match import DeviceMatch
from spectune.runtime.batch.faults import Fault
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.plan_choice import Choice

from .plans import plain_cell, plan_of
from .synthetic import model

CHAIN = ChainPolicy(length=3)


def drafting_cell(batch: int, context: int) -> PlanCell:
    """Return a cell that promises 100 (90 to 110) tokens/s with a chain of 3 of `small`."""
    return replace(
        plain_cell(batch, context),
        policy=CHAIN,
        drafter="small",
        run_tokens=(0, 2, 2, 4, 4),
        plain=replace(plain_cell(batch, context).plain, tokens_per_s=50.0, low=45.0, high=55.0),
        alternatives=(
            Alternative(label="chain of 2", policy=ChainPolicy(length=2), drafter="small", tokens_per_s=90.0),
            Alternative(label="chain of 2", policy=ChainPolicy(length=2), drafter="other", tokens_per_s=80.0),
            Alternative(
                label="lookup", policy=LookupPolicy(length=2, max_ngram=2), drafter="lookup", tokens_per_s=70.0
            ),
            Alternative(label="plain", policy=PlainPolicy(), drafter=None, tokens_per_s=50.0),
        ),
    )


def drafting_plan(places: Many[tuple[int, int]] = ((1, 100),)) -> Plan:
    """Return a plan of drafting cells."""
    drafters = (("small", model("small")), ("other", model("other")))
    return replace(plan_of(places), cells=tuple(drafting_cell(*place) for place in places), drafters=drafters)


def choice_of(plan: Plan | None) -> Choice:
    """Return the choice of a plan that the store holds as number 7."""
    if plan is None:
        return Choice(plan=None, source="none", reason="a test")
    return Choice(plan=plan, source="this device", reason="a test", plan_id=7, match=DeviceMatch(grade="same"))


def round_of(
    setup: StepConfig,
    kept: Many[int],
    ms: float,
    *,
    context: int = 100,
    texts: int = 0,
    faults: tuple[Fault, ...] = (),
    temperature: float | None = 0.0,
    instead_of: StepConfig | None = None,
    finished: tuple[Sequence, ...] = (),
    joined: tuple[int, ...] = (),
) -> StepOutput:
    """Return a round that kept so many tokens per sequence; a quarter of its time is drafting, half verifying."""
    return StepOutput(
        setup=setup,
        instead_of=instead_of,
        context=context,
        sequences=list(range(len(kept))),
        kept=list(kept),
        verify_tokens=setup.padded(1),
        widths=(),
        uncached=0,
        finished=list(finished),
        joined=joined,
        left=texts,
        temperature=temperature,
        faults=faults,
        draft_ms=ms / 4,
        verify_ms=ms / 2,
        round_ms=ms,
    )


def finished_text(*emitted: int, prompt: tuple[int, ...] = (1, 2)) -> Sequence:
    """Return the first sequence of a batch, which has ended with these tokens."""
    text = Sequence(Request(prompt=prompt, max_new_tokens=len(emitted)), 0)
    text.commit(list(emitted))
    return text
