"""The interface of an engine that runs here, by which it can be profiled, planned for and checked.

  facts -> settings worth a look -> a context per setting -> texts in turns -> counters

An engine is bound to its models when it is made (see `running.py`). A context starts it with one setting, made
by its export's `ExportEngine.setting`, so that the measured setting is the exported one. Entering it loads and warms
up the models, leaving it frees their memory. Up to `most_open` are measured in turns; only one decodes at a time.

A round is one forward of the target behind a text's first token; it emits one token of its own and the accepted ones.
So a text of n tokens with a accepted ones took n - 1 - a rounds. Acceptance by position is unconditional: of the rounds
that drafted, the share that accepted the first k drafted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Protocol

from ..errors import MeasurementError
from ..planner.records.recording import Text
from ..profiler.prompt import Prompt
from .setting import EngineDrafter, Setting

FREE_SOME = "end other programs, raise the container's limit, lower --batch, or give smaller models"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine with one target, as it runs here.

    Attributes:
        version, recorded: of the software; the recorded version whose options it is assumed to have.
    """

    name: str  # as in `table.py`
    version: str
    recorded: str
    regime: str  # of its measurements, "engine:NAME-VERSION", with more behind it where it matters for speed
    dtype: str  # number format that the weights run in
    threads: int
    most_concurrency: int | None  # sequences at once; None for any
    sets_acceptance: bool  # whether it supports `EngineLoad.synthetic`
    takes_fewer: bool = False  # whether fewer sequences decode as fast as if it had been started for them
    most_open: int | None = None  # settings that may be started at a time; None for any
    positions: int | None = None  # longest text of the target in tokens; None where unknown
    notes: tuple[str, ...] = ()  # what a reader must know of its speed, e.g. the instruction set of its build


def notes_on_version(name: str, version: str, recorded: str) -> tuple[str, ...]:
    """Return the note on a version whose own options were not recorded; else nothing."""
    if version == recorded or version.startswith(f"{recorded}."):
        return ()
    return (f"the options of {name} {version} were not recorded; those of {recorded} are taken for its own",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What a started engine must support.

    Attributes:
        synthetic: acceptance by position to enforce, unconditional, falling; empty for the models' own. The texts are
            then nonsense, but a round costs the same.
    """

    concurrency: int  # sequences decoded at once
    capacity: int  # most tokens of a sequence, prompt and drafts included
    synthetic: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.capacity < 2:
            raise MeasurementError(f"a load needs a sequence and room for 2 tokens or more, got {self}")
        if any(not 0.0 <= later <= earlier for earlier, later in pairwise((1.0, *self.synthetic))):
            raise MeasurementError(f"acceptance by position falls within [0, 1], got {self.synthetic}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineText:
    """The result of one request.

    Attributes:
        drafted, accepted: over all rounds.
    """

    tokens: tuple[int, ...]  # emitted, the first one included, without the prompt
    ms: float  # from the first token to the last, without reading the prompt; by the engine's own clock if it has one
    drafted: int
    accepted: int
    kept: tuple[int, ...] = ()  # accepted tokens of each of the `rounds`, in order; empty where unknown

    def __post_init__(self) -> None:
        if not self.tokens or not 0.0 <= self.ms < math.inf:
            raise MeasurementError(f"a text has a token and a time, got {len(self.tokens)} tokens in {self.ms} ms")
        if not 0 <= self.accepted <= min(self.drafted, len(self.tokens) - 1):
            raise MeasurementError(
                f"of {self.drafted} drafted tokens {self.accepted} were accepted in a text of {len(self.tokens)}; "
                "these are not counts of one text"
            )
        if self.kept and (sum(self.kept) != self.accepted or len(self.kept) != self.rounds):
            raise MeasurementError(
                f"{len(self.kept)} rounds accepted {sum(self.kept)} tokens, the counters say {self.rounds} and "
                f"{self.accepted}; these are not rounds of one text"
            )

    @property
    def rounds(self) -> int:
        """Forwards of the target behind the first token."""
        return len(self.tokens) - 1 - self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """An engine's counts since its start.

    `drafts` is the rounds that drafted, None where unknown; `by_position` the accepted tokens at the first, second, ...
    drafted place, empty where unknown.
    """

    drafts: int | None
    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.drafted or (self.drafts or 0) < 0:
            raise MeasurementError(f"{self}: counters need 0 <= accepted <= drafted")

    def plus(self, other: EngineCounters) -> EngineCounters:
        """Return the sum of both."""
        return EngineCounters(
            drafts=None if self.drafts is None or other.drafts is None else self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            by_position=tuple(map(sum, zip_longest(self.by_position, other.by_position, fillvalue=0))),
        )

    def since(self, before: EngineCounters) -> EngineCounters:
        """Return the counts since an earlier reading of the same engine."""
        earlier = (*before.by_position, *[0] * (len(self.by_position) - len(before.by_position)))
        return EngineCounters(
            drafts=None if self.drafts is None or before.drafts is None else self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            by_position=tuple(now - then for now, then in zip(self.by_position, earlier, strict=True)),
        )


class RunningEngine(Protocol):
    """A started engine with one setting."""

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue prompts greedily, all at once, by `new_tokens` >= 2 each, and return their texts in order.

        End-of-text does not end a text, so all sequences run until the end. Prompts are read before the clock starts.
        Drafts must not come from an earlier request's text; if the engine cannot help it, `EngineFacts.notes` says so.
        There are as many prompts as `EngineLoad.concurrency`, or fewer where the engine takes fewer.
        """
        ...

    def counters(self) -> EngineCounters:
        """Return the counts since the start, prompts and warm-up included."""
        ...


class Chats(Protocol):
    """How a target reads conversations: by its chat template."""

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Return conversations' token ids, up to the model's own turn; RequestError where the template refuses one."""
        ...

    def decode(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """Return texts up to their ends, without special tokens."""
        ...


class MeasuredEngine(Protocol):
    """An engine that can run here, with models in its own file format or converted to it."""

    @property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        ...

    @property
    def drafters(self) -> tuple[EngineDrafter, ...]:
        """The models that may draft, by the paths that the engine reads."""
        ...

    @property
    def chats(self) -> Chats | None:
        """How the target reads conversations; None where no chat template of it is known."""
        ...

    def reading(self) -> AbstractContextManager[object]:
        """Hold open what tokenizes: `encode` and `chats` start nothing of their own meanwhile."""
        ...

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids as the target reads them, without an end-of-text token behind them."""
        ...

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's greedy token at every place of texts behind the continuation's first; -1: end.

        The model runs alone, in this engine. What a chain begins with was accepted, so these tokens decide every chain.

        Raises:
            MeasurementError: it does not start.
            RequestError: it tokenizes texts differently from the target (`vocabulary.py`).
        """
        ...

    def ngrams(self) -> Sequence[Setting]:
        """Return settings worth a try that draft from the text itself, the simplest first; empty without any."""
        ...

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting by which a model drafts a fixed number of tokens in every round."""
        ...

    def started(self, setting: Setting | None, load: EngineLoad) -> AbstractContextManager[RunningEngine]:
        """Start the engine with a setting, None: plain decoding; MeasurementError if it or its load is impossible."""
        ...


class EngineStart(Protocol):
    """The part `running.py` of an engine's folder."""

    def __call__(
        self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path
    ) -> MeasuredEngine:
        """Return the engine bound to its models; those that it does not read are converted to `folder`.

        Raises:
            RequestError: it cannot run here.
            ModelError: a model cannot be loaded or converted.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn of one setting: some prompts decoded at once; `drafts`, rounds that drafted, is None if not counted."""

    texts: tuple[EngineText, ...] = field(repr=False)
    drafts: int | None = None

    @property
    def rounds(self) -> int:
        """Rounds of all sequences."""
        return sum(text.rounds for text in self.texts)

    @property
    def drafted(self) -> int:
        """Drafted tokens of all sequences."""
        return sum(text.drafted for text in self.texts)

    @property
    def accepted(self) -> int:
        """Accepted tokens of all sequences."""
        return sum(text.accepted for text in self.texts)

    @property
    def round_ms(self) -> float:
        """Milliseconds of a round, in which every sequence takes one step: the mean over sequences."""
        return sum(text.ms for text in self.texts) / self.rounds

    @property
    def tokens_per_round(self) -> float:
        """Tokens of a sequence per round, the target's own included."""
        return sum(len(text.tokens) - 1 for text in self.texts) / self.rounds

    @property
    def tokens_per_s(self) -> float:
        """Throughput of all sequences while all of them run: the sum of each one's own speed."""
        return 1000.0 * len(self.texts) * self.tokens_per_round / self.round_ms
