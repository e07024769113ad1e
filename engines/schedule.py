"""The best that one server of an engine can do over all cells of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..planner.plans.schedule import Place
from ..planner.strategies import TreePolicy
from .setting import Schedule, Setting, Stage

TIE = 0.005  # mean relative distance below which two ways are equal, and the simpler one is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOffer:
    """A policy that an engine can run; speeds are None where unknown, missing where it cannot run."""

    policy: TreePolicy
    setting: Setting | None
    rates: Mapping[Place, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSchedule:
    """The offer that a server follows at each batch; all of one group, or plain decoding."""

    offers: Mapping[int, EngineOffer]
    score: float = field(compare=False)  # sum over cells of the logarithm of speed over plain decoding

    @property
    def setting(self) -> Setting | None:
        """The setting of the longest length; None where none drafts."""
        found = [offer.setting for offer in self.offers.values() if offer.setting is not None]
        return max(found, key=lambda setting: setting.length, default=None)

    @property
    def complexity(self) -> tuple[bool, bool, int]:
        """The order of simplicity: first whether it differs from what was replayed, then a model, then length."""
        setting = self.setting
        if setting is None:
            return False, False, 0
        return bool(setting.differs), setting.drafter is not None, setting.length


def best_line(plain: EngineOffer, offers: Sequence[EngineOffer]) -> OfferSchedule:
    """Return the best line, plain decoding if nothing is better; an unknown speed counts as plain decoding's."""
    found = [_line(dict.fromkeys(_batches(plain), plain), plain)]
    groups: dict[object, list[EngineOffer]] = {}
    for offer in offers:
        assert offer.setting is not None, "plain decoding is not among the offers"
        groups.setdefault(offer.setting.group, []).append(offer)
    for group in groups.values():
        found.extend(_lines(group, plain))
    best = max(line.score for line in found)
    near = [line for line in found if line.score >= best - TIE * len(plain.rates)]
    return min(near, key=lambda line: (line.complexity, -line.score))


def is_allowed(offers: Mapping[int, EngineOffer]) -> bool:
    """Return whether one server can follow these offers by batch."""
    drafting = {batch: offer.setting for batch, offer in offers.items() if offer.setting is not None}
    if not drafting:
        return True
    settings, batches = list(drafting.values()), sorted(offers)
    rules, lengths = settings[0], {setting.length for setting in settings}
    is_off = [batch not in drafting for batch in batches]
    return (
        len({setting.group for setting in settings}) == 1
        and (len(lengths) == 1 or rules.by_batch)
        and (rules.off != "never" or not any(is_off))
        and (rules.off != "above" or (not is_off[0] and is_off == sorted(is_off)))
        and (not rules.longest_first or (not is_off[0] and drafting[batches[0]].length == max(lengths)))
        and (rules.most_batch is None or max(drafting) <= rules.most_batch)
    )


def schedule_of(line: OfferSchedule) -> Schedule:
    """Return a line as stages; a batch between two planned ones goes with the nearer in logarithm, as in a plan."""
    batches = sorted(line.offers)
    stages: list[Stage] = []
    for place, batch in enumerate(batches):
        setting = line.offers[batch].setting
        length = 0 if setting is None else setting.length
        last = math.isqrt(batch * batches[place + 1]) if place + 1 < len(batches) else None
        if stages and stages[-1].length == length:
            stages[-1] = Stage(first=stages[-1].first, last=last, length=length)
        else:
            first = (stages[-1].last or 0) + 1 if stages else 1
            stages.append(Stage(first=first, last=last, length=length))
    return Schedule(setting=line.setting, stages=tuple(stages), most_batch=batches[-1])


def _batches(plain: EngineOffer) -> list[int]:
    return sorted({batch for batch, _ in plain.rates})


def _lines(group: Sequence[EngineOffer], plain: EngineOffer) -> Iterator[OfferSchedule]:
    """Yield one group's candidates: every fixed length, and the best lengths by batch where they may differ."""
    rules = group[0].setting
    assert rules is not None
    for offer in group:
        yield from _fixed(offer, plain)
    if rules.by_batch:
        lengths = sorted({offer.setting.length for offer in group if offer.setting is not None})
        for longest in lengths if rules.longest_first else lengths[-1:]:
            yield from _by_batch(group, plain, longest)


def _fixed(offer: EngineOffer, plain: EngineOffer) -> Iterator[OfferSchedule]:
    """Yield an offer at all batches, and without the batches where off is better and allowed."""
    assert offer.setting is not None
    batches = _batches(plain)
    gains = {batch: _gain(offer, plain, batch) for batch in batches}
    if offer.setting.off == "any" and not offer.setting.by_batch:
        taken = {b: offer if (gain := gains[b]) is not None and gain > 0.0 else plain for b in batches}
        yield _line(taken, plain)
    starts = range(1, len(batches) + 1) if offer.setting.off == "above" else [len(batches)]
    for start in starts:
        if all(gains[batch] is not None for batch in batches[:start]):
            yield _line({b: offer if place < start else plain for place, b in enumerate(batches)}, plain)


def _by_batch(group: Sequence[EngineOffer], plain: EngineOffer, longest: int) -> Iterator[OfferSchedule]:
    """Yield the best offer of each batch up to a length, which the smallest batch must have under `longest_first`."""
    taken: dict[int, EngineOffer] = {}
    for place, batch in enumerate(_batches(plain)):
        able = [(gain, offer) for offer in group if (gain := _gain(offer, plain, batch)) is not None]
        fitting = [(gain, offer) for gain, offer in able if offer.setting and offer.setting.length <= longest]
        rules = group[0].setting
        assert rules is not None
        if place == 0 and rules.longest_first:
            fitting = [(gain, offer) for gain, offer in fitting if offer.setting and offer.setting.length == longest]
        elif rules.off == "any":
            fitting.append((0.0, plain))
        if not fitting:
            return
        taken[batch] = max(fitting, key=lambda one: one[0])[1]
    yield _line(taken, plain)


def _line(taken: Mapping[int, EngineOffer], plain: EngineOffer) -> OfferSchedule:
    gains = [_gain(offer, plain, batch) for batch, offer in taken.items()]
    return OfferSchedule(offers=dict(taken), score=sum(gain for gain in gains if gain is not None))


def _gain(offer: EngineOffer, plain: EngineOffer, batch: int) -> float | None:
    """Return the sum over a batch's cells of log(speed / plain speed); None where it cannot run in one of them."""
    total = 0.0
    for place, base in plain.rates.items():
        if place[0] == batch:
            if place not in offer.rates:
                return None
            rate = offer.rates[place]
            assert base is not None, "plain decoding has a speed in every cell"
            total += 0.0 if rate is None else math.log(rate / base)
    return total
