"""Settings of an engine measured in turns, so that whatever slows the machine slows all of them.

In a turn every setting decodes the same prompts, in random order; the next turn takes the next prompts. The turns
around a moment, of whatever settings, tell how slow the machine was (`profiler/drift.py`).

Where only one setting may run at a time, each is started for its turn, and every second turn runs backwards: A B, B A,
A B. So the setting at the seam needs no new start, and two that are compared run back to back.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from ...engines.measured import EngineCounters, EngineLoad, MeasuredEngine, RunningEngine, Sample
from ...engines.setting import Setting
from ...errors import RequestError
from ...profiler.drift import fit_drift

SETTLE_S = 0.03  # threads of an engine that has just answered stop polling
WARM_UP_TOKENS = 8  # of a text that is thrown away: first rounds allocate, and an engine meets their shapes first
BUSY = 256  # rows and columns of what cores multiply meanwhile
Key = tuple[int, Setting | None]  # concurrency and setting
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one setting did in one turn, how slow its moment was (1.0 is typical), and the seconds it took in all."""

    key: Key
    sample: Sample
    slowness: float
    seconds: float

    @property
    def round_ms(self) -> float:
        """Milliseconds of a round at a typical moment."""
        return self.sample.round_ms / self.slowness

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences, at a typical moment."""
        return self.sample.tokens_per_s * self.slowness


@dataclass(slots=True)
class Stable:
    """Engines started with different settings, and every turn they took.

    `capacity` is a sequence's tokens with drafts. Up to `most` sequences, an engine that takes fewer is started once
    for all.
    """

    engine: MeasuredEngine
    capacity: int
    new_tokens: int
    most: int = 1
    _running: dict[Key, RunningEngine] = field(default_factory=dict)
    _counted: dict[Key, EngineCounters] = field(default_factory=dict)
    _taken: list[tuple[Key, int, Sample, float]] = field(default_factory=list)  # with the tokens asked of each prompt
    _stack: ExitStack = field(default_factory=ExitStack)
    _turns: int = 0

    def ready(self, keys: Sequence[Key], prompts: Prompts) -> None:
        """Start settings and let them decode a little, uncounted; those that run already go on.

        Running engines of other concurrencies stop first, unless the engine takes fewer sequences than it was started
        for: each holds models and a KV cache. All stop also where more would run than may.
        """
        fresh = [key for key in dict.fromkeys(keys) if key not in self._running]
        settings = {setting for _, setting in (*self._running, *keys)}
        is_full = len(settings) > (self.engine.facts.most_open or len(settings))
        others = {concurrency for concurrency, _ in self._running} - {concurrency for concurrency, _ in keys}
        if fresh and (is_full or (others and not self.engine.facts.takes_fewer)):
            fresh = list(dict.fromkeys(keys))
            self._running.clear()
            self._stack.close()
        for key in fresh:
            self._running[key] = self._started(key)
        for key in fresh:  # all are started: what starting leaves behind slows none more than another
            self._running[key].decode(prompts[-key[0] :], min(self.new_tokens, WARM_UP_TOKENS))
            settle()

    def _started(self, key: Key) -> RunningEngine:
        concurrency, setting = key
        if self.engine.facts.takes_fewer:
            same = next((running for (_, other), running in self._running.items() if other == setting), None)
            if same is not None:
                return same
            concurrency = max(concurrency, self.most)
        load = EngineLoad(concurrency=concurrency, capacity=self.capacity)
        return self._stack.enter_context(self.engine.started(setting, load))

    def counted(self, key: Key) -> EngineCounters:
        """Return what a setting counted in its turns, over all of its starts."""
        return self._counted[key]

    def take(self, keys: Sequence[Key], prompts: Prompts, *, turns: int, seed: int = 0) -> None:
        """Let every setting decode in turns, started if need be; RequestError for fewer prompts than a concurrency.

        Turn t of concurrency c takes c prompts from place t x c on, around; `seed` orders the settings within turns.
        """
        most = max(concurrency for concurrency, _ in keys)
        if len(prompts) < most:
            raise RequestError(f"{len(prompts)} prompts do not fill {most} sequences; give more, or fewer sequences")
        order, is_alone = random.Random(seed), self.engine.facts.most_open == 1
        for field_ in self._fields(keys):
            order.shuffle(field_)
            if not is_alone:
                self.ready(field_, prompts)
            for _ in range(turns):
                if is_alone:
                    field_.reverse()
                else:
                    order.shuffle(field_)
                for key in field_:
                    self.ready([key], prompts)
                    given = [prompts[(self._turns * key[0] + place) % len(prompts)] for place in range(key[0])]
                    self._taken.append((key, self.new_tokens, *self._decoded(key, given)))
                    settle()
                self._turns += 1

    def _fields(self, keys: Sequence[Key]) -> list[list[Key]]:
        """Return who takes turns together: all, or as many as may run at once, with the first setting in every field.

        The first one links the fields: it shows how the machine changed between them. One at a time is one field, too.
        """
        most = self.engine.facts.most_open
        if most is None or most == 1 or len(keys) <= most:
            return [list(keys)]
        return [[keys[0], *keys[at : at + most - 1]] for at in range(1, len(keys), most - 1)]

    def _decoded(self, key: Key, prompts: Prompts) -> tuple[Sample, float]:
        running = self._running[key]
        before = running.counters()
        begun = time.monotonic()
        texts = running.decode(prompts, self.new_tokens)
        seconds = time.monotonic() - begun
        counted = running.counters().since(before)
        self._counted[key] = counted if key not in self._counted else self._counted[key].plus(counted)
        return Sample(texts=texts, drafts=counted.drafts), seconds

    @property
    def turns(self) -> list[Turn]:
        """The turns of every setting's longest texts, in the order taken, with the drift of their moments.

        Rounds of short texts are dearer: sequences begin one after the other, while others' prompts are read.
        """
        kinds = list(dict.fromkeys((key, tokens) for key, tokens, _, _ in self._taken))
        ms = np.array([sample.round_ms for _, _, sample, _ in self._taken])
        cells = np.array([kinds.index((key, tokens)) for key, tokens, _, _ in self._taken])
        slowness = fit_drift(ms, cells).slowness
        longest: dict[Key, int] = {}
        for key, tokens in kinds:
            longest[key] = max(tokens, longest.get(key, 0))
        return [
            Turn(key=key, sample=sample, slowness=float(slow), seconds=seconds)
            for (key, tokens, sample, seconds), slow in zip(self._taken, slowness, strict=True)
            if tokens == longest[key]
        ]


def settle() -> None:
    """Let an engine's threads come to rest but not the cores: idle ones decode slower for a tenth of a second."""
    some, end = np.ones((BUSY, BUSY), dtype=np.float32), time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        np.matmul(some, some)


@contextmanager
def stable(engine: MeasuredEngine, *, capacity: int, new_tokens: int, most: int = 1) -> Iterator[Stable]:
    """Yield a `Stable` where settings are started and measured; all of them stop when it is left."""
    held = Stable(engine=engine, capacity=capacity, new_tokens=new_tokens, most=most)
    with held._stack:
        yield held


def by_key(turns: Sequence[Turn]) -> Mapping[Key, list[Turn]]:
    """Return turns by setting."""
    found: dict[Key, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.key, []).append(turn)
    return found


def speed(turns: Sequence[Turn]) -> float:
    """Return a setting's tokens/s over its turns: all its tokens over all its time, without drift.

    A turn with a round time far above the median is the machine's stall, and counts as 1.5 times the median.
    """
    middle = statistics.median(turn.round_ms for turn in turns)
    texts = [(turn, text) for turn in turns for text in turn.sample.texts]
    tokens = sum(len(text.tokens) - 1 for _, text in texts)
    ms = sum(text.rounds * min(turn.round_ms, 1.5 * middle) for turn, text in texts)
    return 1000.0 * turns[0].key[0] * tokens / ms
