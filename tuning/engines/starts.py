"""The starts of a tuning: plain decoding, every source's longest chain, then the lengths that promise most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...engines.bundle import Bundle, Failure
from ...engines.server_engine import Start
from ...errors import MeasurementError, PlanError
from ...planner.engines.served import PLAIN
from ...planner.engines.served_choice import best_table, next_way, promise, sources_of
from .compared import Compared
from .copies import SCREEN
from .loads import paced_loads, words_of
from .ran import ran_of
from .serving import Progress, Save, Serving, TuneRequest

HOPELESS = 1.02  # tokens of a round, below which no drafts are faster than plain decoding
NO_COPIES = "words of the plain answers repeat too seldom to be copied"
NO_DRAFTS = "next to none of its tokens are accepted; its other loads were left out"


class Starts:
    """The starts of a tuning, one after the other; every load is saved."""

    def __init__(self, request: TuneRequest, serving: Serving, bundle: Bundle, save: Save, progress: Progress) -> None:
        self.ran = Compared(request, serving, replace(bundle, failures=()))  # what failed may start now
        self._request, self._serving, self._save, self._progress = request, serving, save, progress
        self.notes: list[str] = []
        self._started = len(bundle.starts())

    def measure_plain(self) -> None:
        """Measure plain decoding; MeasurementError where that cannot run."""
        if not self._measure(self.ran.single(PLAIN, 0)):
            raise MeasurementError(f"plain decoding cannot be measured: {self.ran.bundle.failures[-1].reason}")

    def measure_longest_chains(self) -> None:
        """Measure every source's longest chain; what plain answers show to be hopeless is left out."""
        for source in self._serving.sources():
            if not source.is_model and self._copied() < SCREEN:
                self.notes.append(f"{source.name} were not tried: {NO_COPIES}")
            elif self._has_starts:
                self._measure(self.ran.single(source.name, self._request.longest))
            else:
                self.notes.append(f"{source.name} was not tried: no starts are left; give more with --starts")

    def measure_promising_lengths(self) -> None:
        """Measure the lengths that promise most, until none does or one fails."""
        while self._has_starts and (way := next_way(self.ran.ways, self.ran.tables, self.ran.longest_first)):
            is_last = self._started + 1 == self._request.most_starts
            if is_last and self._gain_of(self._best) > promise(self.ran.ways, way):
                return
            if not self._measure(Start.of(*way)):
                return  # what ran before is chosen from

    def measure_best_table(self) -> None:
        """Measure a table that is best: it runs as a whole before it is chosen."""
        best = self._best
        is_begun = best in self.ran.bundle.starts()  # before an interruption
        if best.is_table and (self._has_starts or is_begun):
            self._measure(best)

    @property
    def _has_starts(self) -> bool:
        return self._started < self._request.most_starts

    @property
    def _best(self) -> Start:
        """The best start by what ran: one length, or a table, which may not have run as a whole."""
        ways, bounds = self.ran.ways, self._request.bounds
        tables = [
            Start.of(*best_table(ways, bounds, one, longest_first=one in self.ran.longest_first))
            for one in sources_of(ways)
            if one in self.ran.tables
        ]
        return self.ran.chosen(tables)

    def _gain_of(self, start: Start) -> float:
        """Return the gain of a start over the best that may be chosen without it, summed over concurrencies."""
        ways = self.ran.ways
        without = self.ran.chosen([one for one in self.ran.whole_tables if one.source in self.ran.tables])
        return len(ways) * (self.ran.score(start, ways)[1] - self.ran.score(without, ways)[1])

    def _measure(self, start: Start) -> bool:
        """Run the missing loads of a start; return whether all of them ran and are of use."""
        done = {trial.concurrency for trial in self.ran.bundle.of(start)}
        left = [one for one in self._request.concurrencies if one not in done]
        if start in self._failed() or self._is_hopeless(start):
            return False
        if not left:
            return True
        self._started += not done
        try:
            self._run(start, left)
        except (MeasurementError, PlanError) as error:
            failure = Failure(start=start, reason=str(error))
            self._keep(replace(self.ran.bundle, failures=(*self.ran.bundle.failures, failure)))
            self.notes.append(f"{start.label}: {str(error).splitlines()[0]}")
            return False
        if self._is_hopeless(start):
            self.notes.append(f"{start.source}: {NO_DRAFTS}")
            return False
        return True

    def _run(self, start: Start, concurrencies: Sequence[int]) -> None:
        self._tell(f"start {self._started} of at most {self._request.most_starts}: {start.label}", 0.0)
        with self._serving.started(start) as loaded:
            self._keep(replace(self.ran.bundle, version=self._serving.version))
            ahead = self._reported(start, concurrencies)
            for trial in paced_loads(loaded, start, ahead, words_of(self.ran.bundle.trials)):
                ran_of(trial)  # what cannot be read is not kept
                self._keep(self.ran.bundle.with_trial(trial))
                if self._is_hopeless(start):
                    return

    def _reported(self, start: Start, concurrencies: Sequence[int]) -> Iterator[int]:
        """Yield concurrencies, each reported right before it is measured."""
        for place, concurrency in enumerate(concurrencies):
            self._tell(f"  {start.label}: {concurrency} at once", place / len(concurrencies))
            yield concurrency

    def _tell(self, what: str, share: float) -> None:
        """Report what begins, at a share of the present start."""
        self._progress(what, (self._started - 1 + share) / self._request.most_starts)

    def _copied(self) -> float:
        plain = self.ran.bundle.of(self.ran.single(PLAIN, 0))
        return max(math.inf if trial.copied is None else trial.copied for trial in plain)

    def _failed(self) -> set[Start]:
        return {failure.start for failure in self.ran.bundle.failures}

    def _is_hopeless(self, start: Start) -> bool:
        """Return whether a load shows that almost none of a start's drafts are accepted."""
        drafting = (trial for trial in self.ran.bundle.of(start) if start.at(trial.concurrency))
        return any(ran_of(trial).tokens_per_round < HOPELESS for trial in drafting)

    def _keep(self, bundle: Bundle) -> None:
        self.ran = Compared(self._request, self._serving, bundle)
        self._save(bundle)
