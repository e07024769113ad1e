"""What ran of a server, compared at one pace of the machine, and what is best by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...engines.bundle import Bundle, Trial
from ...engines.server_engine import Start
from ...planner.engines.served import PLAIN, Served, served
from ...planner.engines.served_choice import Ways, best_for_all, best_of
from .pace import Paces
from .ran import by_way, paced_gain, paces_of, ran_of
from .serving import Serving, TuneRequest

THRASHES = 1.25  # times a longer chain's round: a row of a table that takes so long is not what it costs alone


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedChoice:
    """A way at one concurrency: the `gain` over plain decoding, its 90 % over prompts, whether the bounds hold."""

    concurrency: int
    way: Served
    plain: Served
    gain: float
    interval: tuple[float, float]
    fits: bool


class Compared:
    """What ran at every concurrency, and what is best by it, computed once: it is of one bundle."""

    def __init__(self, request: TuneRequest, serving: Serving, bundle: Bundle) -> None:
        self.request, self.serving, self.bundle = request, serving, bundle

    @cached_property
    def ways(self) -> dict[int, tuple[Served, ...]]:
        """What every way yields at each concurrency, measured or guessed."""
        found: dict[int, tuple[Served, ...]] = {}
        paces = self.paces
        for concurrency in self.request.concurrencies:
            cells = self._cells(concurrency)
            plain = cells.get((PLAIN, 0), ())
            ran = [ran_of(*own, paces=paces, basis=plain) for own in cells.values()]
            found[concurrency] = served(concurrency, ran)
        return found

    def chosen(self, tables: Sequence[Start]) -> Start:
        """Return the best start for all concurrencies together: some table, or one length."""
        ways = self.ways
        single = self.single(*best_for_all(ways, self.request.bounds))
        return max([single, *tables], key=lambda start: self.score(start, ways))

    def choices(self, start: Start) -> Iterator[TunedChoice]:
        """Yield each concurrency's best way; that of a start where it serves them all."""
        for concurrency, own in self.ways.items():
            way = best_of(own, self.request.bounds)
            if self.serving.takes_table:  # one start serves them all
                length = start.at(concurrency)
                way = next(one for one in own if one.length == length and one.source in (start.source, PLAIN))
            yield self.choice(concurrency, way, own[0])

    def tried(self) -> Iterator[TunedChoice]:
        """Yield every way that ran."""
        for concurrency, own in self.ways.items():
            yield from (self.choice(concurrency, way, own[0]) for way in own if way.is_measured)

    def choice(self, concurrency: int, way: Served, plain: Served) -> TunedChoice:
        """Return a way beside plain decoding."""
        cells, paces = self._cells(concurrency), self.paces
        gain = way.tokens_per_s / plain.tokens_per_s
        interval = (1.0, 1.0)
        if way.length and way.is_measured:
            fast, slow = cells[way.source, way.length], cells[PLAIN, 0]
            interval = paced_gain(fast, slow, paces)
        elif way.length:
            interval = way.interval[0] / plain.tokens_per_s, way.interval[1] / plain.tokens_per_s
        return TunedChoice(
            concurrency=concurrency,
            way=way,
            plain=plain,
            gain=gain,
            interval=interval,
            fits=self.request.bounds.holds(way),
        )

    def single(self, source: str, length: int) -> Start:
        """Return the start of one length at all concurrencies."""
        return Start.of(source, dict.fromkeys(self.request.concurrencies, length))

    @cached_property
    def paces(self) -> Paces:
        """The machine's pace while each load ran."""
        return paces_of(self.bundle.trials)

    @cached_property
    def thrash(self) -> bool:
        """Whether a table's round takes much longer than the source's longest chain alone."""
        return any(map(self._thrashes, self.bundle.starts()))

    @property
    def tables(self) -> set[str]:
        """Who may draft other lengths at other batches."""
        if not self._takes_table:
            return set()
        return {source.name for source in self.serving.sources() if source.setting.by_batch}

    @property
    def longest_first(self) -> set[str]:
        """Whose longest length must be that of the smallest batch."""
        return {source.name for source in self.serving.sources() if source.setting.longest_first}

    @property
    def whole_tables(self) -> list[Start]:
        """The tables that ran at every concurrency; others crashed there, or were interrupted."""
        asked, tables = set(self.request.concurrencies), (one for one in self.bundle.starts() if one.is_table)
        return [start for start in tables if asked <= {trial.concurrency for trial in self.bundle.of(start)}]

    @property
    def _takes_table(self) -> bool:
        """Whether tables may be chosen: none of them thrashed or failed."""
        failed = any(failure.start.is_table for failure in self.bundle.failures)
        return self.serving.takes_table and not failed and not self.thrash

    def _cells(self, concurrency: int) -> dict[tuple[str, int], list[Trial]]:
        """Return the loads of each source and length; tables count only as a whole, and while they do not thrash."""
        tables = self.whole_tables if self._takes_table else ()
        return by_way(self.bundle, concurrency, tables=tables)

    def _thrashes(self, start: Start) -> bool:
        if not start.is_table:
            return False
        paces = self.paces
        alone = {
            trial.concurrency: ran_of(trial, paces=paces).round_ms
            for trial in self.bundle.of(self.single(start.source, self.request.longest))
        }
        return any(
            ran_of(trial, paces=paces).round_ms > THRASHES * alone[trial.concurrency]
            for trial in self.bundle.of(start)
            if trial.concurrency in alone
        )

    def score(self, start: Start, ways: Ways) -> tuple[int, float, bool]:
        """Return at how many concurrencies the bounds hold, then the mean log speed-up; a simpler start wins a tie."""
        speeds = [
            next(way for way in own if way.length == start.at(at) and way.source in (start.source, PLAIN))
            for at, own in ways.items()
        ]
        plain = [own[0] for own in ways.values()]
        gains = [np.log(way.least_tokens_per_s / one.tokens_per_s) for way, one in zip(speeds, plain, strict=True)]
        fitting = sum(self.request.bounds.holds(way) for way in speeds)
        return fitting, float(np.mean(gains)), not start.is_table
