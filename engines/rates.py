"""Speeds of an engine's settings: tokens per second by cell, and which policy's price a setting has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..planner.plans.plan import Plan
from ..planner.plans.schedule import Place
from ..planner.search.restricted import Staged
from ..planner.strategies.plain import PlainPolicy
from .schedule import EngineOffer
from .setting import Setting

PLAIN: Staged = (PlainPolicy(), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of policies by cell, all from one source.

    Attributes:
        known: by policy and drafter, then by cell, with plain decoding and every cell's own policy.
        padded: prices where the engine pads rounds to full size; those in `known` are our own decoder's.
    """

    known: Mapping[Staged, Mapping[Place, float]]
    is_complete: bool  # whether a missing cell means that the policy cannot run there; else it is unknown
    notes: tuple[str, ...] = ()  # what a reader must know of them
    padded: Mapping[Staged, Mapping[Place, float]] = field(default_factory=dict)

    def in_engine(self, one: Staged) -> Mapping[Place, float]:
        """Return a policy's speeds in the engine, by cell."""
        return self.padded.get(one, self.known.get(one, {}))

    def of(self, one: Staged, places: Sequence[Place]) -> dict[Place, float | None]:
        """Return a policy's speeds in the engine by cell, None where unknown."""
        known = self.in_engine(one)
        return {place: known.get(place) for place in places if place in known or not self.is_complete}

    def gain(self, one: Staged) -> float:
        """Return the sum over cells of log(speed / plain speed), skipping unknown speeds."""
        plain = self.known[PLAIN]
        return sum(math.log(rate / plain[place]) for place, rate in self.in_engine(one).items())


def rates_of_plan(plan: Plan) -> Rates:
    """Return the rates in a plan, with the discount for optimism on a cell's prediction undone."""
    known: dict[Staged, dict[Place, float]] = {}
    for cell in plan.cells:
        place = (cell.batch, cell.context)
        known.setdefault(PLAIN, {})[place] = cell.plain.tokens_per_s
        for other in cell.alternatives:
            known.setdefault((other.policy, other.drafter), {})[place] = other.tokens_per_s
        own = cell.prediction.tokens_per_s / (1.0 - cell.prediction.errors.optimism)
        known.setdefault((cell.policy, cell.drafter), {})[place] = own
    return Rates(known=known, is_complete=False)


def plain_offer(rates: Rates, places: Sequence[Place]) -> EngineOffer:
    """Return the offer of plain decoding."""
    return EngineOffer(policy=PLAIN[0], setting=None, rates=rates.of(PLAIN, places))


def offers_of(settings: Mapping[Staged, Setting], rates: Rates, places: Sequence[Place]) -> list[EngineOffer]:
    """Return an offer of every distinct setting, which several policies may have."""
    alike: dict[object, list[Staged]] = {}
    for one, setting in settings.items():
        alike.setdefault(setting.told, []).append(one)
    return [_offer(same, settings, rates, places) for same in alike.values()]


def _offer(
    same: Sequence[Staged], settings: Mapping[Staged, Setting], rates: Rates, places: Sequence[Place]
) -> EngineOffer:
    one = _nearest(same, settings, rates)
    found = rates.of(one, places)
    if not rates.is_complete:
        found = {place: _nearest_rate(same, settings, rates, place) for place in places}
    return EngineOffer(policy=one[0], setting=settings[one], rates=_within(found, settings[one]))


def _nearest(same: Sequence[Staged], settings: Mapping[Staged, Setting], rates: Rates) -> Staged:
    priced = [one for one in same if rates.in_engine(one)] or same
    return min(priced, key=lambda one: (settings[one].distance, rates.gain(one)))


def _nearest_rate(
    same: Sequence[Staged], settings: Mapping[Staged, Setting], rates: Rates, place: Place
) -> float | None:
    known = [(settings[one].distance, rates.in_engine(one)[place]) for one in same if place in rates.in_engine(one)]
    return min(known)[1] if known else None


def _within(rates: dict[Place, float | None], setting: Setting) -> dict[Place, float | None]:
    if setting.most_batch is None:
        return rates
    return {place: rate for place, rate in rates.items() if place[0] <= setting.most_batch}
