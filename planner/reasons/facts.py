"""The numbers that explain a cell of a plan."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from ...profiler.records.role import origin_of
from ..plans.plan import Plan, PlanCell
from ..plans.prediction import Prediction
from ..strategies.base import Bounds
from ..strategies.naming import name_of
from ..strategies.plain import PlainPolicy

Limit = Literal["verify", "draft", "host", "acceptance"]

FULL_SHARE = 0.5  # below this share of the deepest path, wrong drafts cost more than any part of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFacts:
    """A published default beside the plan; None where it has no price."""

    name: str
    drafter: str | None
    ratio: float | None  # its speed over the plan's, both as the recorded texts replay
    speedup: float | None  # over plain decoding
    reason: str  # why it has no price


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedShares:
    """What a published default would reach of a plan's speed over all cells; None where it has no price in any."""

    name: str
    least: float | None
    middle: float | None  # the median
    most: float | None
    priced: int  # cells in which it has a price
    slower_than_plain: int  # of these, those in which plain decoding is faster


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFacts:
    """What explains a cell, as numbers; shares are of the round's time."""

    batch: int
    context: int
    label: str  # the way of decoding in people's words
    settings: str  # all of it in one line
    drafter: str | None
    depth: int  # most drafted tokens on one path
    width: int  # most nodes of one drafter forward
    verify_tokens: int  # most tokens of a tree, root included
    fed_tokens: int  # what is fed for so many
    share_draft: float
    share_verify: float
    share_host: float
    limited_by: Limit  # largest part of the round; "acceptance" where under half of the deepest path is accepted
    accepted: float  # drafts per sequence and round
    break_even_accepted: float | None  # with so many as fast as plain decoding; None for plain decoding
    acceptance: float | None  # of each drafted token of a chain, implied by its tokens per round; else None
    break_even: float | None  # acceptance where a chain is as fast as plain decoding; None: no chain, or never
    ms_per_token: float  # mean of one sequence
    lead_over_runner_up: float | None  # relative, negative where the runner-up is faster within noise
    published: tuple[PublishedFacts, ...]


def cell_facts(cell: PlanCell) -> CellFacts:
    """Return the numbers that explain a cell."""
    promise, policy, extent = cell.prediction, cell.policy, cell.policy.bounds
    is_chain = policy.kind == "chain" or policy.kind == "resumed"
    needed = cell.plain.tokens_per_round * promise.round_ms / cell.plain.round_ms  # plain decoding's in that time
    return CellFacts(
        batch=cell.batch,
        context=cell.context,
        label=name_of(policy.code, cell.drafter),
        settings=policy.code,
        drafter=cell.drafter,
        depth=extent.depth,
        width=extent.width,
        verify_tokens=extent.tokens,
        fed_tokens=cell.run_tokens[extent.tokens],
        share_draft=promise.draft_ms / promise.round_ms,
        share_verify=promise.verify_ms / promise.round_ms,
        share_host=promise.host_ms / promise.round_ms,
        limited_by=_limit(promise, extent),
        accepted=promise.tokens_per_round - 1.0,
        break_even_accepted=None if isinstance(policy, PlainPolicy) else max(needed - 1.0, 0.0),
        acceptance=chain_acceptance(promise.tokens_per_round, extent.depth) if is_chain else None,
        break_even=chain_acceptance(needed, extent.depth) if is_chain else None,
        ms_per_token=1000.0 * cell.batch / promise.tokens_per_s,
        lead_over_runner_up=None if cell.lead is None else cell.lead.relative,
        published=_published(cell),
    )


def replayed_speed(cell: PlanCell) -> float:
    """Return the planned policy's tokens per second before optimism was taken off, as alternatives have them."""
    speed = decoded_speed(cell)
    return speed if cell.reading is None else cell.reading.compared(speed)


def decoded_speed(cell: PlanCell) -> float:
    """Return the same of decoding alone, without the reading of prompts."""
    return cell.prediction.tokens_per_s / (1.0 - cell.prediction.errors.optimism)


def heading(plan: Plan) -> str:
    """Return what a plan is for, and that it was not measured where it was not."""
    regimes = sorted({source.regime for source in plan.provenance.surfaces if origin_of(source.regime) != "measured"})
    computed = f", not measured but {' and '.join(regimes)}" if regimes else ""
    lossy = ", LOSSY: not the target's own output" if plan.is_lossy else ""
    return f"{plan.target.name} on {plan.device.label}, {plan.dtype}, {plan.workload}{computed}{lossy}"


def published_shares(plan: Plan) -> tuple[PublishedShares, ...]:
    """Return what every published default would keep, the best median first."""
    every = [each for cell in plan.cells for each in _published(cell)]
    found = [_shares(name, [each for each in every if each.name == name]) for name in {each.name: 0 for each in every}]
    return tuple(sorted(found, key=lambda each: -(each.middle or 0.0)))


def chain_acceptance(tokens_per_round: float, length: int) -> float | None:
    """Return the acceptance per token with which a chain yields so many tokens per round; None above length + 1.

        tokens = sum over k = 0..length of acceptance^k, solved by bisection

    Source: Leviathan et al. 2023, arXiv:2211.17192, Eq. 1.
    """
    if tokens_per_round > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(length + 1)) < tokens_per_round:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _shares(name: str, own: list[PublishedFacts]) -> PublishedShares:
    ratios = [each.ratio for each in own if each.ratio is not None]
    return PublishedShares(
        name=name,
        least=min(ratios, default=None),
        middle=statistics.median(ratios) if ratios else None,
        most=max(ratios, default=None),
        priced=len(ratios),
        slower_than_plain=sum(each.speedup is not None and each.speedup < 1.0 for each in own),
    )


def _published(cell: PlanCell) -> tuple[PublishedFacts, ...]:
    own = decoded_speed(cell)
    return tuple(
        PublishedFacts(
            name=each.name,
            drafter=each.drafter,
            ratio=None if each.tokens_per_s is None else each.tokens_per_s / own,
            speedup=None if each.tokens_per_s is None else each.tokens_per_s / cell.plain.tokens_per_s,
            reason=each.reason,
        )
        for each in cell.published
    )


def _limit(promise: Prediction, extent: Bounds) -> Limit:
    if promise.tokens_per_round - 1.0 < FULL_SHARE * extent.depth:
        return "acceptance"
    parts: dict[Limit, float] = {"verify": promise.verify_ms, "draft": promise.draft_ms, "host": promise.host_ms}
    return max(parts, key=lambda part: parts[part])
