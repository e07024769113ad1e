"""Which way of drafting to serve, and which one to measure next.

A way that ran is chosen by its measurement, and over plain decoding only where it gains more than its standard error.
Another is chosen only where it wins in its worst case, so that no step of the cost lies between measurement and choice.
The next to measure is the way that promises most over the best that ran: by the guess first, then halfway to its best
case.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PlanError
from ..plans.objective import EXAMPLE, parse_slo
from .served import PLAIN, Served

WORTH = 0.01  # relative: less than that over plain decoding, or over the best that ran, is not worth a start
PROMISING = 0.004  # expected gain over the best that ran, of all concurrencies, for which a server is started
COSTS = 9  # between a way's bounds
REACHES = (0.3, 0.8)  # of the way from the guess to either bound, within which a cost is looked for: near it first
ALIKE = 0.01  # relative: one length for all batches that loses no more than that needs no table
Ways = Mapping[int, Sequence[Served]]  # by concurrency
Way = tuple[str, Mapping[int, int]]  # source, and drafted tokens by concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBounds:
    """Bounds on an answer's mean latencies, in milliseconds."""

    tpot_ms: float = math.inf
    ttft_ms: float = math.inf

    def holds(self, way: Served) -> bool:
        """Return whether a way is within both."""
        return way.tpot_ms <= self.tpot_ms and way.ttft_ms <= self.ttft_ms


def latency_bounds(text: str) -> LatencyBounds:
    """Return the bounds of a text such as `tpot<=20ms,ttft<=500ms`; PlanError for another form, or one of p90."""
    found = parse_slo(text)
    if "p90_itl" in found:
        raise PlanError(f"mean latencies are bounded here, METRIC tpot or ttft, got {text!r}; {EXAMPLE}")
    return LatencyBounds(tpot_ms=found.get("itl", math.inf), ttft_ms=found.get("ttft", math.inf))


def best_of(ways: Sequence[Served], bounds: LatencyBounds) -> Served:
    """Return the way to take at one concurrency: plain decoding where drafts gain nothing."""
    sure = [way for way in ways if way.is_measured]
    within = [way for way in sure if bounds.holds(way)]
    if not within:
        return min(sure, key=lambda way: way.tpot_ms)
    best = max(within, key=lambda way: way.tokens_per_s)
    winners = [way for way in ways if bounds.holds(way) and way.least_tokens_per_s > best.tokens_per_s]
    best = max([best, *winners], key=lambda way: way.least_tokens_per_s)
    plain = ways[0]
    is_worth = best.tokens_per_s > (1.0 + max(WORTH, _doubt(best, plain))) * plain.tokens_per_s
    return best if is_worth or not bounds.holds(plain) else plain


def _doubt(way: Served, plain: Served) -> float:
    """Return the relative standard error of a way over plain decoding; that of a guess is larger than of what ran."""
    return math.hypot(way.error, plain.error)


def best_for_all(ways: Ways, bounds: LatencyBounds) -> tuple[str, int]:
    """Return the source and the one length with the largest geometric mean speed-up over all concurrencies."""
    singles = {(way.source, way.length) for own in ways.values() for way in own}

    def score(single: tuple[str, int]) -> tuple[float, float, bool]:
        own = [_of(ways[concurrency], single) for concurrency in ways]
        if any(way is None for way in own):
            return (-math.inf, -math.inf, False)
        known = [way for way in own if way is not None]
        fitting = sum(bounds.holds(way) for way in known)
        plain = [found[0].tokens_per_s for found in ways.values()]
        gains = [math.log(way.least_tokens_per_s / one) for way, one in zip(known, plain, strict=True)]
        gain = sum(gains) / len(gains)
        doubts = (_doubt(way, found[0]) for way, found in zip(known, ways.values(), strict=True))
        doubt = math.hypot(*doubts) / len(gains)
        return (float(fitting), 0.0 if single[0] == PLAIN else gain - max(WORTH, doubt), single[0] == PLAIN)

    return max(sorted(singles), key=score)


def best_table(ways: Ways, bounds: LatencyBounds, source: str, *, longest_first: bool = False) -> Way:
    """Return a source's best length at every concurrency, or one for all where that loses little.

    With `longest_first` no length is longer than that of the lowest concurrency.
    """
    own = {at: [all_ways[0], *(way for way in all_ways if way.source == source)] for at, all_ways in ways.items()}
    if longest_first:
        own = _up_to(own, best_of(own[min(own)], bounds).length)
    lengths = {at: best_of(found, bounds).length for at, found in own.items()}
    for single in sorted(set(lengths.values())):
        if all(
            (alone := _at_length(found, single)) is not None
            and alone.least_tokens_per_s >= (1.0 - ALIKE) * _speed(found, lengths[at])
            and (bounds.holds(alone) or not bounds.holds(best_of(found, bounds)))
            for at, found in own.items()
        ):
            return source, dict.fromkeys(own, single)
    return source, lengths


def sources_of(ways: Ways) -> list[str]:
    """Return the sources that draft at every concurrency, in the order in which they ran."""
    own = [dict.fromkeys(way.source for way in found if way.length) for found in ways.values()]
    return [source for source in own[0] if all(source in other for other in own)]


def next_way(ways: Ways, tables: Collection[str] = (), longest_first: Collection[str] = ()) -> Way | None:
    """Return what to measure next; None where nothing promises enough.

    `tables` are the sources of which one start may draft other lengths at other concurrencies, `longest_first` those
    that draft nowhere more than at the lowest.
    """
    for reach in REACHES:
        singles = (one for one in _singles(ways) if one[0] not in tables)
        candidates = [*singles, *(one for one in _tables(ways, reach, longest_first) if one[0] in tables)]
        promises = [(_promise(ways, one, reach), one) for one in candidates]
        promise, best = max(promises, key=lambda pair: pair[0], default=(0.0, None))
        if best is not None and promise >= PROMISING:
            return best
    return None


def promise(ways: Ways, one: Way) -> float:
    """Return the expected gain of a way over the best that ran, in logarithms, summed over concurrencies."""
    return max(_promise(ways, one, reach) for reach in REACHES)


def _singles(ways: Ways) -> Sequence[Way]:
    pairs = dict.fromkeys((way.source, way.length) for own in ways.values() for way in own if not way.is_measured)
    return [(source, dict.fromkeys(ways, length)) for source, length in pairs]


def _tables(ways: Ways, reach: float, longest_first: Collection[str]) -> list[Way]:
    found: list[Way] = []
    for source in sources_of(ways):
        own = {at: [way for way in all_ways if way.source == source] for at, all_ways in ways.items()}
        if source not in longest_first:
            found.append((source, _most_promising(own, ways, reach)))
            continue
        first = min(own)
        for longest in own[first]:
            able = {**_up_to(own, longest.length), first: [longest]}
            if all(able.values()):
                found.append((source, _most_promising(able, ways, reach)))
    return found


def _most_promising(own: Ways, ways: Ways, reach: float) -> dict[int, int]:
    lengths = {}
    for concurrency, able in own.items():
        best = _best_that_ran(ways[concurrency])
        lengths[concurrency] = max(able, key=lambda way: (_expected(way, best, reach), way.tokens_per_s)).length
    return lengths


def _up_to(ways: Mapping[int, list[Served]], length: int) -> dict[int, list[Served]]:
    return {at: [way for way in own if way.length <= length] for at, own in ways.items()}


def _promise(ways: Ways, one: Way, reach: float) -> float:
    """Return the expected gain of a way over the best that ran, summed over concurrencies."""
    source, lengths = one
    total = 0.0
    for concurrency, own in ways.items():
        way = _of(own, (source, lengths[concurrency]))
        if way is not None:
            total += _expected(way, _best_that_ran(own), reach)
    return total


def _best_that_ran(ways: Sequence[Served]) -> float:
    return max(way.tokens_per_s for way in ways if way.is_measured)


def _expected(way: Served, best: float, reach: float) -> float:
    """Return the expected gain over the best that ran, in logarithms, with uniform cost within reach."""
    if way.is_measured:
        return 0.0
    low, guess, high = (1.0 / speed for speed in (way.most_tokens_per_s, way.tokens_per_s, way.least_tokens_per_s))
    times = np.linspace(guess + reach * (low - guess), guess + reach * (high - guess), COSTS)
    return float(np.maximum(0.0, -np.log(times * best)).mean())


def _of(ways: Sequence[Served], single: tuple[str, int]) -> Served | None:
    return next((way for way in ways if (way.source, way.length) == single), None)


def _at_length(ways: Sequence[Served], length: int) -> Served | None:
    return next((way for way in ways if way.length == length), None)


def _speed(ways: Sequence[Served], length: int) -> float:
    way = _at_length(ways, length)
    assert way is not None
    return way.tokens_per_s
