"""`tune`: which drafts a server should make at each concurrency, found by a few starts of it.

    profile: plain -> every source's longest chain -> the lengths that promise most, until none does; plan: a choice

Starts are the cost: drafts are fixed while a server runs. So a start runs the load of every concurrency. The longest
chain's acceptance by position gives that of shorter ones; rounds of lengths between are guessed from those that ran
(`planner/engines/served.py`). Results are saved after every load, so that an interrupted run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ...engines.bundle import Bundle, Failure, Trial
from ...engines.sentinel import NO_WORDS, Reading
from ...engines.server import Measured
from ...engines.server_engine import Source, Start
from ...errors import MeasurementError, PlanError, RequestError
from ...planner.engines.served import PLAIN, Served, served
from ...planner.engines.served_choice import (
    LatencyBounds,
    Ways,
    best_for_all,
    best_of,
    best_table,
    next_way,
    promise,
    sources_of,
)
from .copies import SCREEN
from .ran import by_way, paces_of, paired_gain, ran_of

THRASHES = 1.25  # times a longer chain's round: a row of a table that takes so long is not what it costs alone
MOST_STARTS = 8
MOVED = 0.05  # relative: what the pace moves less is not told
HOPELESS = 1.02  # tokens of a round, below which no drafts are faster than plain decoding
NO_COPIES = "words of the plain answers repeat too seldom to be copied"
NO_DRAFTS = "next to none of its tokens are accepted; its other loads were left out"
THRASHED = (
    "lengths by batch size are slower in this server than each length alone, as in vLLM's issue 49548; one length for "
    "all batches is chosen"
)
Progress = Callable[[str, float], None]
Save = Callable[[Bundle], None]


class Loaded(Protocol):
    """A server that runs."""

    def measure(self, concurrency: int) -> Measured:
        """Run the load of a concurrency: the same requests for every start."""
        ...


class Paced(Loaded, Protocol):
    """A server that runs, and tells the machine's pace."""

    def pace(self, place: int, words: int) -> Reading:
        """Return a reading of the sentinel at a place of this start, as `read_pace`."""
        ...


class Serving(Protocol):
    """A server that can be started with any drafts."""

    @property
    def takes_table(self) -> bool:
        """Whether one start may draft other lengths at other concurrencies."""
        ...

    @property
    def version(self) -> str:
        """The engine's version; "" before the first start."""
        ...

    def sources(self) -> Sequence[Source]:
        """Return what can draft; called after the first start."""
        ...

    def started(self, start: Start) -> AbstractContextManager[Paced]:
        """Start it; leaving the context stops it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedChoice:
    """A way at one concurrency: the `gain` over plain decoding, its 90 % over prompts, whether the bounds hold."""

    concurrency: int
    way: Served
    plain: Served
    gain: float
    interval: tuple[float, float]
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A run's result: choices of each concurrency alone, all ways measured or guessed, and notes.

    `start` is to be served, for all concurrencies together where the engine takes one length. `tried` are the ways that
    ran, compared as the choices are.
    """

    start: Start
    choices: tuple[TunedChoice, ...]
    tried: tuple[TunedChoice, ...]
    ways: Ways
    bundle: Bundle
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """A request to `tune`; `longest` counts drafted tokens, `most_starts` includes those of an interrupted run."""

    concurrencies: tuple[int, ...]
    longest: int = 8
    most_starts: int = MOST_STARTS
    bounds: LatencyBounds = field(default_factory=LatencyBounds)

    def __post_init__(self) -> None:
        if not self.concurrencies or min(self.concurrencies) < 1 or self.longest < 1 or self.most_starts < 2:
            raise RequestError(f"a tuning needs concurrencies, a length and 2 starts or more, got {self}")


def tune(request: TuneRequest, serving: Serving, bundle: Bundle, *, save: Save, progress: Progress) -> Tuned:
    """Return what a server should draft: `profile`, and then `plan`; errors as theirs."""
    ran, notes = profile(request, serving, bundle, save=save, progress=progress)
    found = plan(request, serving, ran)
    save(found.bundle)
    return replace(found, notes=(*notes, *found.notes))


def profile(
    request: TuneRequest, serving: Serving, bundle: Bundle, *, save: Save, progress: Progress
) -> tuple[Bundle, tuple[str, ...]]:
    """Return all loads that a plan needs, and notes; MeasurementError if plain decoding cannot run or nothing drafts.

    `bundle` is empty or an interrupted run's; `save` gets it after every load. `progress` gets a message and a share.
    """
    run = _Run(request, serving, bundle, save, progress)
    run.whole()
    return run.bundle, tuple(run.notes)


def plan(request: TuneRequest, serving: Serving, bundle: Bundle) -> Tuned:
    """Return what a server should draft by what ran; nothing is started. A table counts where it ran as a whole."""
    loads = _Loads(request, serving, bundle)
    start = loads.chosen([start for start in loads.whole_tables if start.source in loads.tables])
    return Tuned(
        start=start,
        choices=tuple(loads.choices(start)),
        tried=tuple(
            loads.choice(at, way, own[0]) for at, own in loads.ways().items() for way in own if way.is_measured
        ),
        ways=loads.ways(),
        bundle=replace(bundle, chosen=start),
        notes=(*loads.pace_notes(), *((THRASHED,) if serving.takes_table and loads.thrash else ())),
    )


class _Loads:
    """What ran, and what is best by it."""

    def __init__(self, request: TuneRequest, serving: Serving, bundle: Bundle) -> None:
        self.request, self.serving, self.bundle = request, serving, bundle

    def ways(self) -> dict[int, tuple[Served, ...]]:
        found: dict[int, tuple[Served, ...]] = {}
        paces = paces_of(self.bundle)
        for concurrency in self.request.concurrencies:
            cells = self._cells(concurrency)
            plain = cells.get((PLAIN, 0), ())
            ran = [ran_of(*own, paces=paces, basis=plain) for own in cells.values()]
            found[concurrency] = served(concurrency, ran)
        return found

    def chosen(self, tables: Sequence[Start]) -> Start:
        """Return the best start for all concurrencies together: some table, or one length."""
        ways = self.ways()
        single = self.single(*best_for_all(ways, self.request.bounds))
        return max([single, *tables], key=lambda start: self._score(start, ways))

    def choices(self, start: Start) -> Iterator[TunedChoice]:
        for concurrency, own in self.ways().items():
            way = best_of(own, self.request.bounds)
            if self.serving.takes_table:  # one start serves them all
                length = start.at(concurrency)
                way = next(one for one in own if one.length == length and one.source in (start.source, PLAIN))
            yield self.choice(concurrency, way, own[0])

    def choice(self, concurrency: int, way: Served, plain: Served) -> TunedChoice:
        cells, paces = self._cells(concurrency), paces_of(self.bundle)
        gain = way.tokens_per_s / plain.tokens_per_s
        interval = (1.0, 1.0)
        if way.length and way.is_measured:
            fast, slow = cells[way.source, way.length], cells[PLAIN, 0]
            interval = paired_gain(paces.steadied(fast), paces.steadied(slow), paces.error(fast, slow))
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

    def pace_notes(self) -> Iterator[str]:
        fastest, slowest = paces_of(self.bundle).spread
        if slowest > (1.0 + MOVED) * fastest:
            yield (
                f"the machine's pace moved between starts: by the sentinel's readings times were from {fastest:.2f} to "
                f"{slowest:.2f} of their mean; speeds and gains are of the mean pace"
            )

    def single(self, source: str, length: int) -> Start:
        return Start.of(source, dict.fromkeys(self.request.concurrencies, length))

    @property
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
        paces = paces_of(self.bundle)
        alone = {
            trial.concurrency: ran_of(trial, paces=paces).round_ms
            for trial in self.bundle.of(self.single(start.source, self.request.longest))
        }
        return any(
            ran_of(trial, paces=paces).round_ms > THRASHES * alone[trial.concurrency]
            for trial in self.bundle.of(start)
            if trial.concurrency in alone
        )

    def _score(self, start: Start, ways: Ways) -> tuple[int, float, bool]:
        """Return at how many concurrencies the bounds hold, then the mean log speed-up; a simpler start wins a tie."""
        speeds = [
            next(way for way in own if way.length == start.at(at) and way.source in (start.source, PLAIN))
            for at, own in ways.items()
        ]
        plain = [own[0] for own in ways.values()]
        gains = [np.log(way.least_tokens_per_s / one.tokens_per_s) for way, one in zip(speeds, plain, strict=True)]
        fitting = sum(self.request.bounds.holds(way) for way in speeds)
        return fitting, float(np.mean(gains)), not start.is_table


class _Run(_Loads):
    """The starts of a profile."""

    def __init__(self, request: TuneRequest, serving: Serving, bundle: Bundle, save: Save, progress: Progress) -> None:
        super().__init__(request, serving, replace(bundle, failures=()))  # what failed may start now
        self._save, self._progress = save, progress
        self.notes: list[str] = []
        self._started = len(bundle.starts())

    def whole(self) -> None:
        plain = self.single(PLAIN, 0)
        if not self._measure(plain):
            raise MeasurementError(f"plain decoding cannot be measured: {self.bundle.failures[-1].reason}")
        for source in self.serving.sources():
            if not source.is_model and self._copied(plain) < SCREEN:
                self.notes.append(f"{source.name} were not tried: {NO_COPIES}")
            elif self._has_starts:
                self._measure(self.single(source.name, self.request.longest))
            else:
                self.notes.append(f"{source.name} was not tried: no starts are left; give more with --starts")
        while self._has_starts and (way := next_way(self.ways(), self.tables, self.longest_first)):
            is_last = self._started + 1 == self.request.most_starts
            if is_last and self._gain_of(self._best) > promise(self.ways(), way):
                break
            if not self._measure(Start.of(*way)):
                break  # it failed; what ran before is chosen from
        best = self._best
        is_begun = best in self.bundle.starts()  # before an interruption
        if best.is_table and (self._has_starts or is_begun):
            self._measure(best)  # it runs as a whole before it is chosen

    @property
    def _has_starts(self) -> bool:
        return self._started < self.request.most_starts

    @property
    def _best(self) -> Start:
        """The best start by what ran: one length, or a table, which may not have run as a whole."""
        ways, bounds = self.ways(), self.request.bounds
        tables = [
            Start.of(*best_table(ways, bounds, one, longest_first=one in self.longest_first))
            for one in sources_of(ways)
            if one in self.tables
        ]
        return self.chosen(tables)

    def _gain_of(self, start: Start) -> float:
        """Return the gain of a start over the best that may be chosen without it, summed over concurrencies."""
        ways = self.ways()
        without = self.chosen([one for one in self.whole_tables if one.source in self.tables])
        return len(ways) * (self._score(start, ways)[1] - self._score(without, ways)[1])

    def _measure(self, start: Start) -> bool:
        """Run the missing loads of a start; return whether all of them ran and are of use."""
        done = {trial.concurrency for trial in self.bundle.of(start)}
        left = [one for one in self.request.concurrencies if one not in done]
        if start in self._failed() or self._is_hopeless(start):
            return False
        if not left:
            return True
        self._started += not done
        try:
            self._run(start, left)
        except (MeasurementError, PlanError) as error:
            failure = Failure(start=start, reason=str(error))
            self._keep(replace(self.bundle, failures=(*self.bundle.failures, failure)))
            self.notes.append(f"{start.label}: {str(error).splitlines()[0]}")
            return False
        if self._is_hopeless(start):
            self.notes.append(f"{start.source}: {NO_DRAFTS}")
            return False
        return True

    def _run(self, start: Start, concurrencies: Sequence[int]) -> None:
        share = (self._started - 1) / self.request.most_starts
        self._progress(f"start {self._started} of at most {self.request.most_starts}: {start.label}", share)
        with self.serving.started(start) as loaded:
            self._keep(replace(self.bundle, version=self.serving.version))
            words = next((trial.pace[0].words for trial in self.bundle.trials if trial.pace), NO_WORDS)
            before = loaded.pace(0, words)
            for place, concurrency in enumerate(concurrencies):
                if self._is_hopeless(start):
                    return
                share = (self._started - 1 + place / len(concurrencies)) / self.request.most_starts
                self._progress(f"  {start.label}: {concurrency} at once", share)
                measured = loaded.measure(concurrency)
                after = loaded.pace(place + 1, before.words)
                trial = replace(trial_of(start, concurrency, measured), pace=(before, after))
                before = after
                ran_of(trial)  # what cannot be read is not kept
                self._keep(self.bundle.with_trial(trial))

    def _copied(self, plain: Start) -> float:
        return max(math.inf if trial.copied is None else trial.copied for trial in self.bundle.of(plain))

    def _failed(self) -> set[Start]:
        return {failure.start for failure in self.bundle.failures}

    def _is_hopeless(self, start: Start) -> bool:
        """Return whether a load shows that almost none of a start's drafts are accepted."""
        drafting = (trial for trial in self.bundle.of(start) if start.at(trial.concurrency))
        return any(ran_of(trial).tokens_per_round < HOPELESS for trial in drafting)

    def _keep(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._save(bundle)


def trial_of(start: Start, concurrency: int, measured: Measured) -> Trial:
    """Return a load as a bundle keeps it."""
    return Trial(
        start=start, concurrency=concurrency, load=measured.load, counts=measured.counts, copied=measured.copied
    )
