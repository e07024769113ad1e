"""What every published default would do in a cell, for comparison: with its fastest drafter, also where it loses."""

from __future__ import annotations

from ..inputs import LOOKUP
from ..plans.plan import PublishedPrice
from ..replay.rehearsal import Rehearsal
from ..search.contest import Contest
from .rules import published_defaults, unpriceable_defaults


def price_published(contest: Contest, rehearsal: Rehearsal) -> tuple[PublishedPrice, ...]:
    """Return the price of every published default in a cell, fastest first, and enter them among its candidates.

    A default that no drafter's trace and no table can price has a reason in the place of a speed.
    """
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
