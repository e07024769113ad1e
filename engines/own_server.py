"""A server of ours with models of ours, as an engine that is profiled: it decodes token ids over HTTP.

Prompts are read by a load of one token each, and found in the server's cache by the load that counts. So a text's time
holds no prompt but the end that the cache leaves out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..planner.records.recording import Text
from ..planner.strategies.chain import ChainPolicy
from ..planner.strategies.lookup import LookupPolicy
from .answers import RequestResult
from .counters import Counts
from .load import SamplingParams, TokenPrompt
from .measured import EngineCounters, EngineFacts, EngineLoad, EngineText
from .one_sequence import measurable
from .server import Server, ServerTimeouts, started
from .server_engine import ServerEngine
from .setting import EngineDrafter, Setting
from .table import ENGINES

ANSWER_S = 3600.0  # without a byte: a text that is not streamed comes as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenForm:
    """How a server takes and returns token ids: a path, more fields of the body, and the field of a prompt's slot."""

    path: str
    more: Mapping[str, Any] = field(default_factory=dict)
    slot: str = ""


class OwnServer(ABC):
    """An engine's server with a target and its drafters; a `MeasuredEngine`."""

    server: ClassVar[ServerEngine]
    form: ClassVar[TokenForm]
    searches: ClassVar[Sequence[LookupPolicy]]  # for n-grams, the simplest first

    def __init__(self, target: Path, drafters: Sequence[EngineDrafter], *, dtype: str, threads: int) -> None:
        """Take models in the engine's own form; `dtype` is also that of keys and values."""
        self.target, self.drafters = target, tuple(drafters)
        self._dtype, self._threads = dtype, threads

    @property
    @abstractmethod
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[object]:
        """Hold open what tokenizes; see `MeasuredEngine.reading`."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids."""

    @abstractmethod
    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, by a server with it as target; see `MeasuredEngine.next_tokens`."""

    @abstractmethod
    def command(self, model: Path, setting: Setting | None, load: EngineLoad) -> list[str]:
        """Return the command of a server for a load; MeasurementError or RequestError where it cannot run."""

    def ngrams(self) -> Sequence[Setting]:
        """Return the searches that the engine's version knows."""
        found = (ENGINES[self.server.name].setting(way, None, self.facts.recorded) for way in self.searches)
        return [setting for setting in found if isinstance(setting, Setting)]

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of a draft model's chains without early end."""
        return measurable(ENGINES[self.server.name], self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: EngineLoad) -> Iterator[OwnDecoding]:
        """Start a server with a setting; it stops when the context is left."""
        with self.serving(self.target, setting, load) as server:
            yield OwnDecoding(server, self.form, drafts=setting is not None)

    @contextmanager
    def serving(self, model: Path, setting: Setting | None, load: EngineLoad) -> Iterator[Server]:
        """Start a server with any model; it stops when the context is left."""
        with started(self.server, self.command(model, setting, load), ServerTimeouts(stall_s=ANSWER_S)) as server:
            yield server


class OwnDecoding:
    """A running server; a `RunningEngine`."""

    def __init__(self, server: Server, form: TokenForm, *, drafts: bool) -> None:
        self.server = server
        self._form, self._drafts = form, drafts
        self._counted = EngineCounters(drafts=0 if drafts else None, drafted=0, accepted=0)

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue prompts greedily, all at once."""
        slots = [{self._form.slot: number} if self._form.slot else {} for number in range(len(prompts))]
        given = [
            TokenPrompt(path=self._form.path, tokens=tuple(prompt), more=slot)
            for prompt, slot in zip(prompts, slots, strict=True)
        ]
        self.server.measure(given, self._sampling(1), concurrency=len(given))
        found = self.server.measure(given, self._sampling(new_tokens), concurrency=len(given))
        texts = texts_of(found.load.answers, found.counts, drafts=self._drafts)
        self._counted = self._counted.plus(_counters(found.counts, texts))
        return texts

    def counters(self) -> EngineCounters:
        """Return the counts of all texts so far."""
        return self._counted

    def _sampling(self, new_tokens: int) -> SamplingParams:
        return SamplingParams(ignore_eos=True, more={**self._form.more, "max_tokens": new_tokens})


def _counters(counts: Counts, texts: Sequence[EngineText]) -> EngineCounters:
    """Return a server's counts; sums over texts where they drafted and it counted no drafts."""
    drafted = sum(text.drafted for text in texts)
    if drafted and not counts.drafts:
        return EngineCounters(drafts=None, drafted=drafted, accepted=sum(text.accepted for text in texts))
    return EngineCounters(
        drafts=round(counts.drafts),
        drafted=round(counts.drafted),
        accepted=round(counts.accepted),
        by_position=tuple(map(round, counts.by_position)),
    )


def texts_of(answers: Sequence[RequestResult], counts: Counts, *, drafts: bool) -> tuple[EngineText, ...]:
    """Return answers as texts, by a server's own timings where it sends them.

    Else an event is a round, and what was accepted is what it holds beside the target's own token. A busy client may
    get two rounds in one event, so that all texts together accept no more than rounds that the server counted leave.
    It counts drafted tokens of all texts together: each has an equal share, the first one the rest.
    """
    if all("predicted_ms" in one.timings for one in answers):
        return tuple(_timed(one) for one in answers)
    accepted = [sum(map(len, one.events)) - len(one.events) if drafts else 0 for one in answers]
    tokens = sum(sum(map(len, one.events)) for one in answers)
    most = tokens - len(answers) - counts.rounds(tokens, len(answers))
    while sum(accepted) > max(most, 0):
        accepted[accepted.index(max(accepted))] -= 1
    share, rest = divmod(max(0, round(counts.drafted) - sum(accepted)) if drafts else 0, len(answers))
    return tuple(
        EngineText(
            tokens=_tokens(one),
            ms=one.e2e_ms - one.ttft_ms,
            drafted=own + share + (0 if number else rest),
            accepted=own,
        )
        for number, (one, own) in enumerate(zip(answers, accepted, strict=True))
    )


def _timed(one: RequestResult) -> EngineText:
    return EngineText(
        tokens=_tokens(one),
        ms=one.timings["predicted_ms"],
        drafted=int(one.timings.get("draft_n", 0)),
        accepted=int(one.timings.get("draft_n_accepted", 0)),
    )


def _tokens(one: RequestResult) -> tuple[int, ...]:
    return tuple(token for event in one.events for token in event)
