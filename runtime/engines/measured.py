"""What an engine that runs here offers, so that it can be profiled, planned for and checked: one protocol for all.

    facts -> settings worth a look -> a context per setting -> texts in turns -> counters

An engine is bound to its models when it is made (`running.py` is the table of how). It is started with one setting, as
`Engine.setting` in its exporting file made it, so that what is measured is what is exported. A context starts it, with
its models loaded and warmed up, and leaving the context stops it and gives its memory back. Up to `most_open` may be
open at a time, to be measured in turns; only one decodes at a moment.

Counts, here and everywhere: a round is one forward of the target behind a text's first token; it emits one token of its
own and those that were accepted. A text of n tokens with a accepted ones took n - 1 - a rounds. Acceptance by position
is unconditional: of the rounds that drafted, the share in which the first k drafted tokens were kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Protocol

from ...errors import MeasurementError
from ...planner.records.recording import Text
from .setting import EngineDrafter, Setting

FREE_SOME = "end other programs, raise the container's limit, lower --batch, or give smaller models"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What runs here: one engine with one target.

    Attributes:
        name: of the engine, as in `table.ENGINES`.
        version: of the software that runs.
        recorded: the recorded version whose options are taken for its own (`nearest_recorded`).
        regime: of its measurements, "engine:NAME-VERSION", with more behind it where it matters for speed.
        dtype: number format of the weights as they are run.
        threads: that compute.
        most_concurrency: sequences at once; None for any.
        sets_acceptance: whether `Load.synthetic` is honoured.
        takes_fewer: whether what is started for many sequences decodes fewer of them as fast as if started for those.
        most_open: settings that may be started at a time; None for any.
        positions: most tokens of a text that the target was made for; None where its files do not tell.
        notes: what a reader must know of its speed, e.g. which instructions it was built for.
    """

    name: str
    version: str
    recorded: str
    regime: str
    dtype: str
    threads: int
    most_concurrency: int | None
    sets_acceptance: bool
    takes_fewer: bool = False
    most_open: int | None = None
    positions: int | None = None
    notes: tuple[str, ...] = ()


def notes_on_version(name: str, version: str, recorded: str) -> tuple[str, ...]:
    """Return what a reader must know where a version runs whose own options were not recorded; else nothing."""
    if version == recorded or version.startswith(f"{recorded}."):
        return ()
    return (f"the options of {name} {version} were not recorded; those of {recorded} are taken for its own",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a started engine has to hold.

    Attributes:
        concurrency: sequences decoded at once.
        capacity: most tokens of a sequence, prompt and drafts included.
        synthetic: acceptance by position set by hand, unconditional, falling; empty for the models' own. The texts are
            then nonsense, the cost of a round is not.
    """

    concurrency: int
    capacity: int
    synthetic: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.capacity < 2:
            raise MeasurementError(f"a load needs a sequence and room for 2 tokens or more, got {self}")
        if any(not 0.0 <= later <= earlier for earlier, later in pairwise((1.0, *self.synthetic))):
            raise MeasurementError(f"acceptance by position falls within [0, 1], got {self.synthetic}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineText:
    """What one request became.

    Attributes:
        tokens: emitted, the first one included; prompts are not among them.
        ms: from the first token to the last one, by the engine's own clock where it has one. Prompt reading is not in
            it.
        drafted, accepted: over all rounds.
        kept: accepted tokens of each round in order, `rounds` of them; empty where the engine does not tell.
    """

    tokens: tuple[int, ...]
    ms: float
    drafted: int
    accepted: int
    kept: tuple[int, ...] = ()

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
    """What an engine counted since it was started.

    Attributes:
        drafts: rounds that drafted; None where the engine does not tell.
        drafted, accepted: tokens.
        by_position: tokens accepted at the first, second, ... drafted place; empty where the engine does not tell.
    """

    drafts: int | None
    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.drafted or (self.drafts or 0) < 0:
            raise MeasurementError(f"{self}: counters need 0 <= accepted <= drafted")

    def plus(self, other: EngineCounters) -> EngineCounters:
        """Return what both counted."""
        return EngineCounters(
            drafts=None if self.drafts is None or other.drafts is None else self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            by_position=tuple(map(sum, zip_longest(self.by_position, other.by_position, fillvalue=0))),
        )

    def since(self, before: EngineCounters) -> EngineCounters:
        """Return what was counted behind an earlier reading of the same engine."""
        earlier = (*before.by_position, *[0] * (len(self.by_position) - len(before.by_position)))
        return EngineCounters(
            drafts=None if self.drafts is None or before.drafts is None else self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            by_position=tuple(now - then for now, then in zip(self.by_position, earlier, strict=True)),
        )


class RunningEngine(Protocol):
    """An engine at work with one setting."""

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue prompts greedily, all at once, and return their texts in order.

        The end-of-text token does not end a text, so that every text has `new_tokens` tokens and all sequences run
        until the end. Prompts are read before the clock starts. Nothing may be drafted from an earlier request's text
        unless the engine cannot help it, which `EngineFacts.notes` then says.

        Args:
            prompts: token ids; as many as `Load.concurrency`, or fewer where the engine takes fewer.
            new_tokens: of each, 2 or more.
        """
        ...

    def counters(self) -> EngineCounters:
        """Return what was counted since the start, prompts and warm-up included."""
        ...


class MeasuredEngine(Protocol):
    """An engine that can be run here, with a target and drafters of its own file format or converted to it."""

    @property
    def facts(self) -> EngineFacts:
        """What runs here."""
        ...

    @property
    def drafters(self) -> tuple[EngineDrafter, ...]:
        """The models that may draft, by the paths the engine reads; `settings` and `started` take these."""
        ...

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids as the target reads them, without an end-of-text token behind them."""
        ...

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return what a draft model drafts at every place of texts: its own greedy token behind all that stands before.

        Whatever a chain of its drafts begins with was accepted, so these tell every chain's fate.

        Args:
            drafter: one of `drafters`, run alone, in this engine.
            texts: prompts and their continuations, by the target's token ids.

        Returns:
            for each text a token per place behind the continuation's first; -1 where it would end the text.

        Raises:
            MeasurementError: it does not start.
            RequestError: it reads texts as other tokens than the target (`vocabulary.py`).
        """
        ...

    def ngrams(self) -> Sequence[Setting]:
        """Return settings worth a look that draft from the text itself, the simplest first; none where it has none."""
        ...

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting by which a model drafts a fixed number of tokens in every round."""
        ...

    def started(self, setting: Setting | None, load: Load) -> AbstractContextManager[RunningEngine]:
        """Start the engine with one setting; None is plain decoding.

        Raises:
            MeasurementError: it does not start, or cannot hold the load, or cannot set acceptance.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn of one setting: some prompts decoded at once.

    Attributes:
        texts: of every sequence of the turn.
        drafts: rounds of all sequences that drafted; None where nobody counted them.
        drafted, accepted, rounds: of all sequences, see `EngineText`.
    """

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
        """Tokens a sequence gains in a round, its own one included."""
        return sum(len(text.tokens) - 1 for text in self.texts) / self.rounds

    @property
    def tokens_per_s(self) -> float:
        """Throughput of all sequences together while all of them run: what each did in its own time, summed."""
        return 1000.0 * len(self.texts) * self.tokens_per_round / self.round_ms
