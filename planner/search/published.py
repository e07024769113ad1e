"""What others publish as their default, as strategies for one cell: the rivals that a plan is compared with.

Each lies in its strategy's file. A default is taken as its authors set it, even where this device favours another.
Conventions become ours: the root counts among verified tokens, and a beam of `depth` d runs d + 1 drafter forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError
from ..inputs import LOOKUP
from ..plans.plan import PublishedPrice
from ..pricing.cost import CellCosts
from ..replay.rehearsal import Rehearsal
from ..strategies import REGISTRY, TreePolicy
from .contest import CellSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDefault:
    """A published default that can be priced in a cell."""

    name: str  # for people, different for each
    source: str  # where it is published
    policy: TreePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriceable:
    """A published default that this cell's tables or this trace cannot tell the speed of."""

    name: str
    source: str
    reason: str


def published_defaults(costs: CellCosts, drafter: str | None, children: int) -> tuple[PublishedDefault, ...]:
    """Return the published defaults that can be priced in a cell; `drafter` None leaves those that need no model.

    A layer of TALON or OPT-Tree may still be wider than any measured forward; only a replay shows that. A beam of more
    than `children` recorded next tokens is left out. The paper's TALON and OPT-Tree come beside the same ones over the
    recorded children.
    """
    return tuple(found for found in _all(costs, drafter, children) if isinstance(found, PublishedDefault))


def unpriceable_defaults(costs: CellCosts, drafter: str | None, children: int) -> tuple[Unpriceable, ...]:
    """Return the published defaults that cannot be priced in a cell, each with the reason."""
    return tuple(found for found in _all(costs, drafter, children) if isinstance(found, Unpriceable))


def price_published(contest: CellSearch, rehearsal: Rehearsal) -> tuple[PublishedPrice, ...]:
    """Return the price of every published default in a cell, fastest first, and enter them among its candidates."""
    found: dict[str, PublishedPrice] = {}
    reasons: dict[str, str] = {}
    for drafter in (None, *(drafter.name for drafter in rehearsal.inputs.drafters)):
        children = 0 if drafter is None else rehearsal.recording(drafter).children
        for default in published_defaults(contest.costs, drafter, children):
            source = LOOKUP if default.policy.source == "text" else drafter
            known = contest.find(default.policy, source)
            if known is None:
                replay = rehearsal.replay(default.policy, source, contest.costs.cell.batch)
                known = contest.enter(default.policy, source, replay)
            if known is None:
                reasons.setdefault(default.name, contest.reason(default.policy, source))
                continue
            speed = known.decoding.tokens_per_s
            if default.name not in found or speed > (found[default.name].tokens_per_s or 0.0):
                found[default.name] = PublishedPrice(name=default.name, drafter=source, tokens_per_s=speed)
        for gone in unpriceable_defaults(contest.costs, drafter, children):
            reasons.setdefault(gone.name, gone.reason)
    lost = [
        PublishedPrice(name=name, drafter=None, tokens_per_s=None, reason=reason)
        for name, reason in reasons.items()
        if name not in found
    ]
    return (*sorted(found.values(), key=lambda one: -(one.tokens_per_s or 0.0)), *lost)


def _all(costs: CellCosts, drafter: str | None, children: int) -> list[PublishedDefault | Unpriceable]:
    rules = [rule for strategy in REGISTRY.values() for rule in strategy.published(costs, drafter, children)]
    found = list[PublishedDefault | Unpriceable]()
    for rule in sorted(rules, key=lambda rule: rule.place):
        try:
            policy = rule.make()
            _require_priceable(policy, costs, drafter, children)
        except PlanError as error:
            found.append(Unpriceable(name=rule.name, source=rule.source, reason=str(error)))
        else:
            found.append(PublishedDefault(name=rule.name, source=rule.source, policy=policy))
    return found


def _require_priceable(policy: TreePolicy, costs: CellCosts, drafter: str | None, children: int) -> None:
    costs.host_of(policy.kind, drafter)
    costs.require_verified(policy, drafter)
    width = policy.sure_width
    if policy.children > children:
        raise PlanError(f"it looks at {policy.children} children of a node and {children} are recorded; record more")
    if drafter is None or not width:
        return
    most = costs.drafting(drafter).most_tokens
    if width > most:
        raise PlanError(
            f"a draft of {width} tokens was not measured for {drafter}, at most {most}; profile larger ones"
        )
