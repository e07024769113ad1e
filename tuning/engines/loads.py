"""The loads of a running server, one after the other, with the sentinel's readings around each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Protocol

from ...engines.bundle import Trial
from ...engines.sentinel import NO_WORDS, Reading
from ...engines.server import Measured
from ...engines.server_engine import Start


class Loaded(Protocol):
    """A server that runs."""

    def measure(self, concurrency: int) -> Measured:
        """Run the load of a concurrency: the same requests for every start."""
        ...

    def pace(self, place: int, words: int) -> Reading:
        """Return a reading of the sentinel at a place of this start, as `read_pace`."""
        ...


def paced_loads(loaded: Loaded, start: Start, concurrencies: Iterable[int], words: int) -> Iterator[Trial]:
    """Yield the loads of a start, each measured when it is requested; `words` are of the readings' long prompts."""
    before = None
    for place, concurrency in enumerate(concurrencies):
        before = before or loaded.pace(0, words)
        measured = loaded.measure(concurrency)
        after = loaded.pace(place + 1, before.words)
        yield replace(trial_of(start, concurrency, measured), pace=(before, after))
        before = after


def trial_of(start: Start, concurrency: int, measured: Measured) -> Trial:
    """Return a load as a bundle keeps it."""
    return Trial(
        start=start, concurrency=concurrency, load=measured.load, counts=measured.counts, copied=measured.copied
    )


def words_of(trials: Sequence[Trial]) -> int:
    """Return the words of the readings around loads; `NO_WORDS` where there are none."""
    return next((trial.pace[0].words for trial in trials if trial.pace), NO_WORDS)


def most_drafted(trials: Sequence[Trial]) -> int:
    """Return the most tokens that a round of some loads drafted, as far as the server counts it."""
    drafting = [trial.counts for trial in trials if trial.counts.drafts]
    return max((max(len(one.by_position), ceil(one.drafted / one.drafts)) for one in drafting), default=0)
