"""What a plan says of a cell once its choice is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..plans.plan import Alternative, Lead, PlanCell, PublishedPrice, StackForecast
from ..plans.prediction import Prediction, PromptReading, pays_from
from ..pricing.cost import CellCosts, Floats
from ..pricing.reading import ReadingCosts
from ..records.tree import ShapeFacts
from .candidate import Candidate
from .choice import Ballot, keeps_bound, latency_ms
from .contest import CellSearch
from .estimate import resampled_rates
from .promise import Promise, SurfaceErrors
from .sensitivity import outlook_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideChoice:
    """What a cell's plan says besides its choice; `layers` of block drafters are the most tokens of a chain."""

    published: tuple[PublishedPrice, ...] = ()
    stack: StackForecast | None = None
    shape: ShapeFacts | None = None
    layers: Mapping[str, int] = field(default_factory=dict)


def planned_cell(
    contest: CellSearch, ballot: Ballot, weights: Floats, errors: SurfaceErrors, beside: BesideChoice
) -> PlanCell:
    """Return the cell's plan: the first of the ballot's near candidates; `weights` are (resamples, texts)."""
    cell, chosen = contest.costs.cell, ballot.candidates[ballot.near[0]]
    plain, able = ballot.candidates[ballot.plain], [ballot.candidates[place] for place in ballot.able]
    flattery = 0.0 if chosen is plain else ballot.flattery
    decoding = chosen.decoding
    rates = resampled_rates([decoding, plain], weights)
    promise = Promise(rates=rates, plain=plain, errors=errors, texts=weights.shape[1], batch=cell.batch)
    prediction, others = promise.of(decoding, flattery), alternatives(able, chosen)
    place, base = ballot.able.index(ballot.near[0]), ballot.able.index(ballot.plain)
    return PlanCell(
        batch=cell.batch,
        context=cell.context,
        policy=chosen.policy,
        drafter=chosen.drafter,
        run_tokens=chosen.run_tokens,
        prediction=prediction,
        plain=promise.of(plain, 0.0),
        runner_up=others[0] if others else None,
        lead=_lead(chosen, able, others, weights),
        alternatives=others,
        published=beside.published,
        outlook=outlook_of(able, place, base, contest.costs, beside.layers, optimism=flattery),
        memory_bytes=contest.needs_bytes(chosen.policy, chosen.drafter),
        keeps_bound=keeps_bound(contest, ballot.near[0], flattery),
        stack=beside.stack,
        shape=beside.shape,
        run_ms=_run_ms(contest.costs, chosen),
        quality=chosen.quality,
        reading=_reading(contest.reading, chosen, prediction, plain),
        latency_ms=latency_ms(contest, ballot.near[0], flattery),
        priced_at=contest.costs.priced_at_context,
    )


def _reading(costs: ReadingCosts, chosen: Candidate, promised: Prediction, plain: Candidate) -> PromptReading | None:
    """Return what reading prompts adds to requests; None where it is not known of all who draft."""
    drafter_ms = costs.drafter_ms(chosen.policy, chosen.drafter)
    if drafter_ms is None or (costs.target_ms is None and not costs.drafts_ms):
        return None
    is_plain = chosen.drafter is None
    return PromptReading(
        prompt_tokens=costs.prompt_tokens,
        target_ms=costs.target_ms,
        drafter_ms=drafter_ms,
        pays_from=None if is_plain else pays_from(drafter_ms, promised.tokens_per_s, plain.tokens_per_s),
        new_tokens=costs.new_tokens,
        decoded_tokens=costs.decoded_tokens,
        cached_tokens=costs.cached_tokens,
    )


def _run_ms(costs: CellCosts, chosen: Candidate) -> tuple[float, ...]:
    """Return milliseconds of the verify forwards at the cell's context; a root alone is read whole."""
    context, count = costs.cell.context, len(chosen.run_tokens)
    own = costs.verifying(chosen.policy.kind, chosen.drafter).table.row(context)[2:count]
    return (*costs.verify.row(context)[:2].tolist(), *own.tolist())


def _lead(chosen: Candidate, able: Sequence[Candidate], others: Sequence[Alternative], weights: Floats) -> Lead | None:
    if not others:
        return None
    rival = next(one for one in able if (one.policy, one.drafter) == (others[0].policy, others[0].drafter))
    drawn = resampled_rates([chosen, rival], weights)
    usable = (drawn > 0.0).all(axis=0)
    return Lead(
        relative=chosen.tokens_per_s / rival.tokens_per_s - 1.0,
        error=float((drawn[0, usable] / drawn[1, usable]).std()),
    )


def alternatives(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Alternative, ...]:
    """Return the fastest of every other kind and drafter, fastest first."""
    fastest: dict[tuple[str, str | None], Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.tokens_per_s):
        fastest.setdefault((candidate.policy.kind, candidate.drafter), candidate)
    fastest.pop((chosen.policy.kind, chosen.drafter))
    return tuple(
        Alternative(
            label=candidate.policy.code,
            policy=candidate.policy,
            drafter=candidate.drafter,
            tokens_per_s=candidate.tokens_per_s,
        )
        for candidate in fastest.values()
    )
