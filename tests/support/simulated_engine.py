"""An engine that decodes by a rule and takes the time of a known curve: its drafters are right where a table says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from spectune.engines.llama_cpp.export import LlamaCpp
from spectune.engines.measured import Chats, EngineCounters, EngineFacts, EngineLoad, EngineText
from spectune.engines.one_sequence import RoundCounts, measurable
from spectune.engines.setting import EngineDrafter, Setting
from spectune.planner.records.recording import Text
from spectune.planner.strategies.lookup import LookupPolicy

Curve = Callable[[int, str, float, float], float]  # concurrency, who drafts, share of rounds that draft, drafted tokens
VOCABULARY = 50


def affine(concurrency: int, who: str, share: float, drafted: float) -> float:
    """Return milliseconds of a round: plain 10, speculating 1, a verified token 0.5 a sequence, drafters 1 and 3."""
    forward = {"small": 1.0, "large": 3.0}.get(who, 0.0)
    return 10.0 + 1.0 * share + (0.5 * concurrency + forward) * drafted


@dataclass(slots=True)
class SimulatedEngine:
    """An engine of llama.cpp's words; a `MeasuredEngine`.

    Attributes:
        right: how often each drafter is right, by name; where is a function of the place in the text.
        curve: milliseconds of a round.
        is_deaf: whether it ignores how it is set, and decodes plainly.
        runs: what length it drafts where one is set.
        dtype: number format it says it computes in.
        version: it says it is of; not recorded unless given.
        positions: most tokens of a text, as it says.
        takes_fewer: whether it decodes fewer sequences than it was started for.
        most_open: settings that may be started at a time.
        chats: how its target reads conversations.
    """

    right: Mapping[str, float]
    curve: Curve = affine
    is_deaf: bool = False
    runs: Callable[[int], int] = lambda length: length
    dtype: str = "float32"
    version: str = "b1"
    positions: int | None = None
    takes_fewer: bool = False
    most_open: int | None = None
    chats: Chats | None = None
    starts: list[Setting | None] = field(default_factory=list)
    running: list[int] = field(default_factory=list)  # concurrencies of what is started now
    together: set[frozenset[int]] = field(default_factory=set)  # of what ever ran at once
    most_running: int = 0

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            name="llama.cpp",
            version=self.version,
            recorded="b11549",
            regime=f"engine:llama.cpp-{self.version}",
            dtype=self.dtype,
            threads=1,
            most_concurrency=None,
            sets_acceptance=False,
            positions=self.positions,
            takes_fewer=self.takes_fewer,
            most_open=self.most_open,
        )

    @property
    def drafters(self) -> tuple[EngineDrafter, ...]:
        return tuple(EngineDrafter(name=name, path=f"{name}.gguf", form="model") for name in self.right)

    def reading(self) -> AbstractContextManager[object]:
        return nullcontext()

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [tuple(ord(letter) % VOCABULARY for letter in text) for text in texts]

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        return [self._drafts(drafter.name, text.prompt, text.continuation) for text in texts]

    def _drafts(self, name: str, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[int, ...]:
        right = [is_right(name, self.right[name], prompt, at) for at in range(1, len(tokens))]
        return tuple(token if known else -1 for token, known in zip(tokens[1:], right, strict=True))

    def ngrams(self) -> Sequence[Setting]:
        ways = [LookupPolicy(length=length, max_ngram=2, min_ngram=2) for length in (4, 8)]
        return [measurable(LlamaCpp(), self.facts.recorded, way) for way in ways]

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        return Setting(method="draft-simple", drafter=drafter, knobs=(("p_min", 0.0),), length=length)

    @contextmanager
    def started(self, setting: Setting | None, load: EngineLoad) -> Iterator[RunningSimulation]:
        self.starts.append(setting)
        obeyed = None if setting is None or self.is_deaf else replace(setting, length=self.runs(setting.length))
        self.running.append(load.concurrency)
        self.together.add(frozenset(self.running))
        self.most_running = max(self.most_running, len(self.running))
        yield RunningSimulation(engine=self, setting=obeyed, load=load)
        self.running.remove(load.concurrency)


@dataclass(slots=True)
class RunningSimulation:
    """One setting at work."""

    engine: SimulatedEngine
    setting: Setting | None
    load: EngineLoad
    counts: RoundCounts = field(default_factory=RoundCounts)

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        least = 1 if self.engine.takes_fewer else self.load.concurrency
        assert least <= len(prompts) <= self.load.concurrency
        return tuple(self._text(tuple(prompt), new_tokens, len(prompts)) for prompt in prompts)

    def counters(self) -> EngineCounters:
        return self.counts.counters

    def _text(self, prompt: tuple[int, ...], new_tokens: int, concurrency: int) -> EngineText:
        tokens = continuation(prompt, new_tokens)
        kept: list[int] = []
        drafted: list[int] = []
        at = 1
        while at < new_tokens:
            proposed, hits = self._draft(prompt, tokens, at, new_tokens - at - 1)
            kept.append(hits)
            drafted.append(proposed)
            self.counts.add(proposed, hits)
            at += 1 + hits
        share = float(np.mean([one > 0 for one in drafted]))
        drafter = None if self.setting is None else self.setting.drafter
        who = "" if drafter is None else drafter.name
        ms = self.engine.curve(concurrency, who, share, float(np.mean(drafted)))
        return EngineText(
            tokens=tokens,
            ms=ms * len(kept),
            drafted=sum(drafted),
            accepted=sum(kept),
            kept=tuple(kept),
        )

    def _draft(self, prompt: tuple[int, ...], tokens: tuple[int, ...], at: int, most: int) -> tuple[int, int]:
        """Return how many tokens are drafted at a place, and how many of them are right."""
        if self.setting is None:
            return 0, 0
        length = min(self.setting.length, most)
        if self.setting.drafter is None:
            size = int(self.setting.knob("size_n"))
            found = whole_ngram_draft([*prompt, *tokens[:at]], size, self.setting.length)[:most]
            return len(found), _agreeing([one == two for one, two in zip(found, tokens[at:], strict=False)])
        name = self.setting.drafter.name
        right = [is_right(name, self.engine.right[name], prompt, at + place) for place in range(length)]
        return length, _agreeing(right)


def whole_ngram_draft(text: Sequence[int], ngram: int, length: int) -> list[int]:
    """Return what llama.cpp's ngram-simple copies, the newest token being not in its history yet."""
    history, pattern = list(text[:-1]), list(text[len(text) - ngram :])
    if len(history) <= ngram + length + 1:
        return []
    for begin in range(len(history) - ngram - 1, 0, -1):
        if history[begin : begin + ngram] == pattern:
            copied = history[begin + ngram : begin + ngram + length]
            return copied if len(copied) >= ngram else []
    return []


@cache
def continuation(prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    """Return a text that is a function of its prompt: it repeats itself now and then."""
    draw = np.random.default_rng(list(prompt))
    fresh = draw.integers(0, VOCABULARY, size=new_tokens).tolist()
    period = int(draw.integers(9, 20))
    return tuple(fresh[at] if at % 40 < period else fresh[at % period] for at in range(new_tokens))


@cache
def is_right(name: str, share: float, prompt: tuple[int, ...], at: int) -> bool:
    """Return whether a drafter knows the token at a place, given all before it."""
    return float(np.random.default_rng([len(name), at, *prompt]).random()) < share


def _agreeing(right: Sequence[bool]) -> int:
    return next((place for place, one in enumerate(right) if not one), len(right))
