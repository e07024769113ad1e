"""Whether a running fleet decodes as was planned, by its counters alone; nothing is sent but requests for pages.

Of every server's page, counters give the tokens of a round that drafts, and a gauge the running batch. From both
follows what was planned. With E planned tokens of a round, and w rounds that draft at a batch in a second:

    tokens a round = sum over batches of w E / sum of w
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from ...engines.counters import CounterNames, CounterPage, Counts, Series, counts_of, restart, samples_of, since
from ...engines.table import COUNTERS, SERVERS
from ...errors import MeasurementError, RequestError, SpectuneError
from ...planner.engines.served import PLAIN, Z
from ...runtime.watch.drift import PromiseTest
from .counters import NO_POSITIONS, require_engine
from .expected import Expected, best_ways, repriced

FALSE_ALARMS = 0.01  # share of fleets that keep their plan and are told otherwise, by all tests
TESTS = 2
NEAR = 1.15  # factor by which the running batch may lie beyond those of the plan
WORTH = 1.01  # a smaller gain is not worth a new plan
Read = Callable[[], CounterPage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """What a new plan would serve at one concurrency instead, and both speeds in tokens per second."""

    concurrency: int
    now: str
    instead: str
    now_tokens_per_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObservation:
    """What a fleet did in a span of time, against its plan.

    `tokens_per_round` is of rounds that draft, `planned` its 90 % interval; both None where nothing drafts.
    `acceptance` is by position of these rounds. `batch` is the mean running batch of a busy server, `shares` those of
    its moments nearest each planned concurrency. `accepted` and `mix` are "as planned", "lower", "higher" or "unknown".
    `gain` is the speed of a new plan over this one's, None where unknown.
    """

    servers: int
    generated: float
    tokens_per_round: float | None
    planned: tuple[float, float] | None
    acceptance: tuple[float, ...]
    accepted: str
    batch: float | None
    shares: dict[int, float]
    mix: str
    gain: float | None
    better: tuple[Better, ...]
    events: tuple[str, ...]

    @property
    def has_left(self) -> bool:
        """Whether it left its plan."""
        return bool({self.accepted, self.mix} & {"lower", "higher"})


class FleetWatch:
    """A fleet of one engine, its servers by name, each read as a page; a page of many counts as one server.

    `planned_for` is the engine of the plan; "" of our own decoder's, None where unknown.
    """

    def __init__(
        self,
        expected: Sequence[Expected],
        servers: Mapping[str, Read],
        *,
        model: str = "",
        planned_for: str | None = None,
    ) -> None:
        self._expected = {one.concurrency: one for one in expected}
        self._planned_for, self._has_begun = planned_for, False
        self._servers, self._model, self._engine = servers, model, ""
        self._last: dict[str, CounterPage] = {}
        self._grown: dict[str, dict[Series, float]] = {}  # since the last report
        self._batches: list[float] = []
        self._gauges: dict[str, dict[Series, list[float]]] = {}
        self._events: list[str] = []
        self._told: set[str] = set()
        self._answered = 0
        self._tests: dict[str, PromiseTest] = {}

    def look(self) -> None:
        """Read every server once; MeasurementError where none of them could ever be read."""
        failed = []
        for name, read in self._servers.items():
            try:
                page = read()
                self._require_alike(require_engine(page, name), name)
            except SpectuneError as error:
                failed.append(str(error) if name in str(error) else f"{name}: {error}")
                continue
            last = self._last.get(name, page if self._has_begun else {})
            seen = {**last, **page}  # what a Prometheus server does not scrape for a moment comes back
            if fell := restart(seen, last, self._names):
                self._events.append(f"{name}: {fell}")
            grown = self._grown.setdefault(name, {})
            gauges, own = self._names.gauges, self._gauges.setdefault(name, {})
            for series, more in since(page, last, gauges).items():
                if series[0] not in gauges:
                    grown[series] = grown.get(series, 0.0) + more
                elif more > 0.0:  # an idle server tells 0
                    own.setdefault(series, []).append(more)
            self._last[name] = seen
            running = (value for _, value in samples_of(page, self._names.running, self._model))
            self._batches += [value for value in running if value > 0.0]
        self._answered = len(self._servers) - len(failed)
        if not self._last:
            raise MeasurementError("; ".join(failed))
        self._events += failed

    def seen(self) -> FleetObservation:
        """Return what was seen since the last call, or since `begin`; at first since the servers' start."""
        pages = [{**page, **_means(self._gauges.get(name, {}))} for name, page in self._grown.items()]
        counts = [counts_of(page, self._names, self._model) for page in pages] or [Counts()]
        found = self._judged(reduce(Counts.plus, counts))
        self.begin()
        return found

    def begin(self) -> None:
        """Count from the last look on."""
        self._grown, self._gauges, self._batches, self._events, self._has_begun = {}, {}, [], [], True

    def _require_alike(self, engine: str, name: str) -> None:
        if self._engine and engine != self._engine:
            raise RequestError(f"{name} is a server of {engine}, and others are of {self._engine}; watch one engine")
        if not self._engine and self._planned_for is not None and engine != self._planned_for:
            own = self._planned_for or "spectune's own decoder"
            self._note(f"the plan is of {own}, and the servers are of {engine}: its speeds are not theirs")
        self._engine = engine

    def _note(self, note: str) -> None:
        """Note an event once."""
        if note not in self._told:
            self._told.add(note)
            self._events.append(note)

    @property
    def _names(self) -> CounterNames:
        return COUNTERS[self._engine]

    def _judged(self, counts: Counts) -> FleetObservation:
        shares = self._shares()
        ways = {at: self._way(one, counts) for at, one in self._expected.items()}
        self._note_lengths(counts)
        if self._names.tokens_per_round and counts.drafts:
            self._note(NO_POSITIONS)
        base = counts.drafts
        if counts.generated is not None and not any(one.is_model for one in self._expected.values()):
            base = counts.rounds(counts.generated, counts.answers or 0.0)
        weights = {at: self._weight(at, way, shares) for at, way in ways.items()}
        acceptance = _acceptance(counts, base, weights, {at: length for at, (_, length) in ways.items()})
        tokens = 1.0 + counts.accepted / base if base else None
        planned = self._planned(ways, weights, tokens, base)
        accepted = self._verdict("accepted tokens a round", tokens, planned)
        batch = sum(self._batches) / len(self._batches) if self._batches else None
        mix = self._verdict("running batch", batch, (min(self._expected) / NEAR, max(self._expected) * NEAR))
        is_known = bool(base) or not any(length for _, length in ways.values())  # idle servers tell of no drafts
        gain, better = self._gain(ways, acceptance, shares) if is_known else (None, ())
        return FleetObservation(
            servers=self._answered,
            generated=counts.generated or 0.0,
            tokens_per_round=tokens,
            planned=planned,
            acceptance=acceptance,
            accepted=accepted,
            batch=batch,
            shares=shares,
            mix=mix,
            gain=gain,
            better=better,
            events=tuple(dict.fromkeys(self._events)),
        )

    def _note_lengths(self, counts: Counts) -> None:
        """Note, once, that servers do not draft as the plan does; n-grams may just find nothing."""
        if not counts.drafts and not all(one.is_model for one in self._expected.values()):
            return
        drafted = len(counts.by_position) if counts.drafts else 0
        planned = {one.way[1] for one in self._expected.values()}
        note = f"servers draft up to {drafted} tokens, and the plan {max(planned)}: they run another one"
        if drafted not in planned and counts.generated:
            self._note(note)

    def _shares(self) -> dict[int, float]:
        """Return the share of moments nearest each concurrency; all alike where no batch is known."""
        nearest = [min(self._expected, key=lambda at: abs(math.log(at / batch))) for batch in self._batches]
        known = nearest or list(self._expected)
        return {at: known.count(at) / len(known) for at in self._expected}

    def _way(self, one: Expected, counts: Counts) -> tuple[str, int]:
        """Return what is served at a concurrency: of an engine with one length for all, the length that it drafts."""
        if SERVERS[self._engine].takes_table or not counts.drafts:
            return one.way
        sources = [own.way[0] for own in self._expected.values() if own.way[0] != PLAIN]
        return (sources[0], len(counts.by_position)) if sources else one.way

    def _weight(self, at: int, way: tuple[str, int], shares: Mapping[int, float]) -> float:
        """Return rounds of sequences per millisecond that draft at a concurrency."""
        one = self._expected[at]
        ran = one.of(way) or one.of(one.way)
        assert ran is not None
        return shares[at] * at / ran.round_ms if way[0] != PLAIN else 0.0

    def _planned(
        self,
        ways: Mapping[int, tuple[str, int]],
        weights: Mapping[int, float],
        tokens: float | None,
        rounds: float,
    ) -> tuple[float, float] | None:
        """Return the planned interval of tokens a round; None where the plan does not tell of what is served.

        Source of the scatter: Bhatia and Davis 2000, Amer. Math. Monthly 107(4).
        """
        total = sum(weights.values())
        if tokens is None or not total:
            return None
        mean = 0.0
        for at, weight in weights.items():
            places = (self._expected[at], *self._expected.values())  # acceptance is that of any concurrency
            ran = next(filter(None, (one.of(ways[at]) for one in places)), None)
            if ran is None and weight:
                return None
            mean += 0.0 if ran is None else weight * ran.tokens_per_round / total
        longest = max(length for _, length in ways.values())
        spread = math.sqrt((mean - 1.0) * max(longest + 1.0 - mean, 0.0) / rounds)  # the most that such counts scatter
        error = max(one.error for one in self._expected.values())
        off = Z * math.hypot(error * mean, spread)
        return max(mean - off, 1.0), mean + off

    def _verdict(self, what: str, value: float | None, planned: tuple[float, float] | None) -> str:
        """Return where a value lies, and note an event where chance no longer explains all of them so far."""
        if value is None or planned is None:
            return "unknown"
        test = self._tests.setdefault(what, PromiseTest(*planned, rate=FALSE_ALARMS / TESTS))
        test.low, test.high = planned
        if (found := test.add(value)) is not None:
            word = "lower" if found == "slower" else "higher"
            self._events.append(
                f"{what} left the plan, {word}: {value:.2f}, planned {planned[0]:.2f} to {planned[1]:.2f}"
            )
        return "lower" if value < planned[0] else "higher" if value > planned[1] else "as planned"

    def _gain(
        self, ways: Mapping[int, tuple[str, int]], acceptance: tuple[float, ...], shares: Mapping[int, float]
    ) -> tuple[float | None, tuple[Better, ...]]:
        """Return what a new plan would gain, and where; None where what is served has no price."""
        source = next((source for source, _ in ways.values() if source != PLAIN), PLAIN)
        found = repriced(list(self._expected.values()), source, acceptance)
        now = {
            at: next((one for one in own if (one.source, one.length) == ways[at]), None) for at, own in found.items()
        }
        if any(one is None for one in now.values()):
            return None, ()
        engine = SERVERS[self._engine]
        best = best_ways(found, shares, takes_table=engine.takes_table, longest_first=engine.longest_first)
        better = [
            Better(
                concurrency=at,
                now=_named(one.source, one.length),
                instead=_named(best[at].source, best[at].length),
                now_tokens_per_s=one.tokens_per_s,
                tokens_per_s=best[at].tokens_per_s,
            )
            for at, one in now.items()
            if one is not None
        ]
        speed = sum(shares[one.concurrency] * one.tokens_per_s for one in better)
        before = sum(shares[one.concurrency] * one.now_tokens_per_s for one in better)
        gain = max(speed / before, 1.0)
        return gain, tuple(one for one in better if one.now != one.instead and gain > WORTH)


def _means(gauges: Mapping[Series, Sequence[float]]) -> CounterPage:
    return {series: sum(values) / len(values) for series, values in gauges.items()}


def _acceptance(
    counts: Counts, rounds: float, weights: Mapping[int, float], lengths: Mapping[int, int]
) -> tuple[float, ...]:
    """Return acceptance by position, each of the rounds whose chain is that long."""
    total, found, most = sum(weights.values()), list[float](), 1.0
    for position, count in enumerate(counts.by_position, 1):
        reach = sum(weight for at, weight in weights.items() if lengths[at] >= position)
        most = min(most, count / (rounds * (reach / total if reach else 1.0))) if rounds else 0.0
        found.append(most)
    return tuple(found)


def _named(source: str, length: int) -> str:
    return f"{length} by {source}" if length else "plain decoding"
