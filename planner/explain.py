"""Why a plan decodes as it does: facts for programs, sentences for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .plan import Plan, PlanCell, Prediction
from .policy import (
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    LookupPolicy,
    OptTreePolicy,
    PlainPolicy,
    StaticPolicy,
    TalonPolicy,
)

Limit = Literal["verify", "draft", "host", "acceptance"]

FULL_SHARE = 0.5  # below this share of the deepest path, wrong drafts cost more than any part of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFacts:
    """What explains a cell, as numbers.

    Attributes:
        depth: most drafted tokens on one path; width: most nodes of one drafter forward.
        share_*: of the round's time.
        limited_by: the largest part of the round, or "acceptance" where fewer than half of the
            deepest path is accepted on average.
        acceptance: of each drafted token of a chain, implied by its tokens per round; else None.
        break_even: acceptance at which the chain would be no faster than plain decoding; None for
            other policies and where even a perfect drafter would lose.
        lead_over_runner_up: relative, negative where the runner-up is faster within noise.
    """

    batch: int
    context: int
    label: str
    drafter: str | None
    depth: int
    width: int
    verify_tokens: int
    share_draft: float
    share_verify: float
    share_host: float
    limited_by: Limit
    acceptance: float | None
    break_even: float | None
    lead_over_runner_up: float | None


def cell_facts(cell: PlanCell) -> CellFacts:
    """Return the numbers that explain a cell."""
    promise, policy = cell.prediction, cell.policy
    depth, width = _depth_and_width(cell)
    is_chain = isinstance(policy, ChainPolicy)
    needed = promise.round_ms / cell.plain.round_ms
    lead = None
    if cell.runner_up is not None:
        untouched = promise.tokens_per_s / (1.0 - promise.errors.optimism)  # alternatives keep their optimism
        lead = untouched / cell.runner_up.tokens_per_s - 1.0
    return CellFacts(
        batch=cell.batch,
        context=cell.context,
        label=policy.label,
        drafter=cell.drafter,
        depth=depth,
        width=width,
        verify_tokens=policy.max_verify_tokens,
        share_draft=promise.draft_ms / promise.round_ms,
        share_verify=promise.verify_ms / promise.round_ms,
        share_host=promise.host_ms / promise.round_ms,
        limited_by=_limit(promise, depth),
        acceptance=chain_acceptance(promise.tokens_per_round, depth) if is_chain else None,
        break_even=chain_acceptance(needed, depth) if is_chain else None,
        lead_over_runner_up=lead,
    )


def chain_acceptance(tokens_per_round: float, length: int) -> float | None:
    """Return the acceptance per token with which a chain yields so many tokens per round.

    tokens = sum over k = 0..length of acceptance^k; solved by bisection. None above length + 1.

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


def explain_plan(plan: Plan) -> list[str]:
    """Return the explanation of every cell, and what the plan rests on, line by line."""
    lines = [f"{plan.target.name} on {plan.device.label}, {plan.dtype}, {plan.workload}"]
    for cell in plan.cells:
        lines += ["", *explain_cell(cell)]
    origin = plan.provenance
    lines += ["", f"{origin.candidates} priced candidates on {origin.texts} texts; {len(origin.censored)} left out"]
    lines += [f"note: {note}" for note in origin.notes]
    return lines


def explain_cell(cell: PlanCell) -> list[str]:
    """Return why a cell decodes as it does, one sentence per line."""
    facts, promise = cell_facts(cell), cell.prediction
    lines = [f"batch {cell.batch}, context {cell.context}: {_choice(facts)}", f"  {_promise(promise)}"]
    lines.append(f"  {_round(promise, facts)}")
    lines += [f"  {line}" for line in (_limits(facts), _break_even(facts), *_others(cell, facts)) if line]
    return lines


def _choice(facts: CellFacts) -> str:
    if facts.drafter is None:
        return "do not speculate"
    shape = f"up to {facts.depth} deep, {facts.width} wide, {facts.verify_tokens} tokens verified"
    return f"{facts.label} by {facts.drafter} ({shape})"


def _promise(promise: Prediction) -> str:
    return (
        f"{promise.tokens_per_s:.1f} tokens/s, 90 % between {promise.low:.1f} and {promise.high:.1f}; "
        f"{promise.speedup_over_plain:.2f} times plain decoding "
        f"({promise.speedup_low:.2f} to {promise.speedup_high:.2f})"
    )


def _round(promise: Prediction, facts: CellFacts) -> str:
    return (
        f"a round yields {promise.tokens_per_round:.2f} tokens per sequence in {promise.round_ms:.2f} ms: "
        f"verify {promise.verify_ms:.2f} ({facts.share_verify:.0%}), draft {promise.draft_ms:.2f} "
        f"({facts.share_draft:.0%}), host {promise.host_ms:.2f} ({facts.share_host:.0%})"
    )


def _limits(facts: CellFacts) -> str:
    if facts.drafter is None:
        return ""
    if facts.limited_by == "acceptance":
        return "limited by acceptance: on average most of the deepest path is rejected"
    return f"limited by {facts.limited_by}: the largest part of a round"


def _break_even(facts: CellFacts) -> str:
    if facts.break_even is None or facts.acceptance is None:
        return ""
    return (
        f"its drafts are accepted with {facts.acceptance:.2f} per token; "
        f"below {facts.break_even:.2f} plain decoding would be faster"
    )


def _others(cell: PlanCell, facts: CellFacts) -> list[str]:
    lines = []
    if cell.runner_up is not None and facts.lead_over_runner_up is not None:
        lead = facts.lead_over_runner_up
        distance = f"{lead:.1%} slower" if lead >= 0 else f"{-lead:.1%} faster, within noise, and less simple"
        lines.append(f"runner-up: {_name(cell.runner_up.label, cell.runner_up.drafter)}, {distance}")
    for other in cell.alternatives[1:]:
        lines.append(f"best {_name(other.label, other.drafter)}: {other.tokens_per_s:.1f} tokens/s")
    return lines


def _name(label: str, drafter: str | None) -> str:
    return label if drafter is None else f"{label} by {drafter}"


def _limit(promise: Prediction, depth: int) -> Limit:
    if depth and promise.tokens_per_round - 1.0 < FULL_SHARE * depth:
        return "acceptance"
    parts: dict[Limit, float] = {"verify": promise.verify_ms, "draft": promise.draft_ms, "host": promise.host_ms}
    return max(parts, key=lambda part: parts[part])


def _depth_and_width(cell: PlanCell) -> tuple[int, int]:
    match cell.policy:
        case PlainPolicy():
            return 0, 0
        case ChainPolicy() | ConfidentChainPolicy() | LookupPolicy():
            return cell.policy.length, 1
        case StaticPolicy():
            return cell.policy.tree.depth, max(len(inner) for inner in cell.policy.tree.inner_by_depth())
        case Eagle2Policy():
            return cell.policy.depth + 1, cell.policy.top_k
        case TalonPolicy():
            return cell.policy.draft_forwards, max(cell.policy.nodes - 1 - cell.policy.top_k, cell.policy.top_k)
        case OptTreePolicy():
            return cell.policy.max_depth, cell.policy.nodes
        case CastPolicy():
            return cell.policy.max_depth, cell.policy.max_width
