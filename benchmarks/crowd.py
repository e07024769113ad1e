"""What the soak decodes: sequences that come and go at random, by ways that change, with flawed drafters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.sequence import Sequence as Decoded
from spectune.runtime.batch.step_config import PLAIN, StepConfig
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.lookup import chains
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache

NAN = "NaN"
FLAWS = ("raises", "no memory", "another batch", "unknown tokens", NAN)
MADE_UP = "made up by the soak"
LEVEL_ROUNDS = 25  # rounds between changes of how many sequences there are
CANCELLED, SAMPLED = 0.02, 0.3  # chance per round of a cancelled request; share of requests that are sampled
GOES_ON, REMEMBERED = 0.3, 16  # share of requests whose prompt goes on with one of so many texts that ended last
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What became of one request; its tokens are packed, so that a long soak keeps many."""

    request: Request
    tokens: NDArray[np.int32]


class Wrapped:
    """A model that does something else when it is armed."""

    def __init__(self, model: CausalModel) -> None:
        """Wrap a model."""
        self.dtype, self.device, self.vocabulary = model.dtype, model.device, model.vocabulary
        self.gallery = model.gallery
        self.longest_context, self.regime, self.attention = model.longest_context, model.regime, model.attention
        self.is_armed, self.model = False, model

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return the model's."""
        return self.model.new_cache(slots, capacity)


class ScoresNaN(Wrapped):
    """A drafter's model whose logits are NaN while it is armed; `spoilt` counts its forwards then."""

    spoilt = 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return the model's logits, or as many that are no numbers."""
        logits = self.model.forward(step, cache)
        self.spoilt += self.is_armed
        return torch.full_like(logits, torch.nan) if self.is_armed else logits


class ShortOfMemory(Wrapped):
    """A target that has, once it is armed, no memory for the next tree of three tokens or more."""

    failed = 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return the model's logits, or fail."""
        if self.is_armed and step.take is None and step.tokens.shape[1] > 2:
            self.is_armed, self.failed = False, self.failed + 1
            raise torch.OutOfMemoryError(MADE_UP)
        return self.model.forward(step, cache)


@dataclass(slots=True)
class Flawed(Drafter):
    """A drafter that fails now and then, never twice in a row, and counts how."""

    drafter: Drafter
    models: Sequence[ScoresNaN]  # that it drafts with
    chance: float
    rng: np.random.Generator
    vocabulary: int
    made: Counter[str] = field(default_factory=Counter)
    has_just_failed: bool = False

    def admit(self, slot: int, sequence: Decoded, held: int = 0) -> None:
        """Pass it on."""
        self.drafter.admit(slot, sequence, held)

    def read_along(self, slot: int, tokens: Sequence[int], held: int) -> int:
        """Pass it on."""
        return self.drafter.read_along(slot, tokens, held)

    def forget(self, slot: int) -> bool:
        """Pass it on."""
        return self.drafter.forget(slot)

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Pass it on."""
        return self.drafter.copy_prefix(source, slot, most)

    def swap_prefixes(self, one: int, other: int) -> None:
        """Pass it on."""
        self.drafter.swap_prefixes(one, other)

    def move(self, source: int, target: int) -> None:
        """Pass it on."""
        self.drafter.move(source, target)

    def uncached(self, sequences: Sequence[Decoded]) -> int:
        """Pass it on."""
        return self.drafter.uncached(sequences)

    def draft(self, sequences: Sequence[Decoded], policy: TreePolicy) -> DraftBatch:
        """Return the drafter's trees, or something wrong."""
        self.has_just_failed = not self.has_just_failed and self.rng.random() < self.chance
        if not self.has_just_failed:
            return self.drafter.draft(sequences, policy)
        flaws = FLAWS if self.models else FLAWS[:-1]
        flaw = flaws[int(self.rng.integers(len(flaws)))]
        if flaw == NAN:
            return self._by_nan(sequences, policy)
        self.made[flaw] += 1
        return _flawed_draft(flaw, len(sequences), self.vocabulary)

    def _by_nan(self, sequences: Sequence[Decoded], policy: TreePolicy) -> DraftBatch:
        """Return what is drafted with NaN; a hybrid whose text drafts for all asks no model, and nothing goes wrong."""
        before = sum(model.spoilt for model in self.models)
        for model in self.models:
            model.is_armed = True
        try:
            return self.drafter.draft(sequences, policy)
        finally:
            for model in self.models:
                model.is_armed = False
            self.has_just_failed = sum(model.spoilt for model in self.models) > before
            self.made[NAN] += self.has_just_failed


def _flawed_draft(flaw: str, batch: int, vocabulary: int) -> DraftBatch:
    match flaw:
        case "raises":
            raise ValueError(MADE_UP)
        case "no memory":
            raise MemoryError(MADE_UP)
        case "another batch":
            return chains([[1]] * (batch + 1))
        case _:
            return chains([[vocabulary + 1]] * batch)


class NeverWorks(Drafter):
    """A drafter that only raises."""

    def draft(self, sequences: Sequence[Decoded], policy: TreePolicy) -> DraftBatch:
        """Raise."""
        raise RuntimeError(MADE_UP)


class Crowd:
    """A decoder whose sequences come and go at random, and whose way of decoding changes every few rounds.

    Attributes:
        flawed: its drafters by name.
        level: how many sequences there are to be; None: at random.
        sampled: share of new requests that are.
        faults: what the decoder reported, by drafter; "target" for its own.
        emitted: what became of every `keep_every`-th request.
        cached: tokens of prompts that were not read, since another text began with them.
    """

    def __init__(
        self,
        target: CausalModel,
        flawed: Mapping[str, Flawed],
        others: Mapping[str, Drafter],
        setups: Sequence[StepConfig],
        prompts: Prompts,
        *,
        slots: int,
        capacity: int,
        new_tokens: int,
        turn: int,
        keep_every: int,
        seed: int,
    ) -> None:
        """Start with nobody."""
        drafters: dict[str, Drafter] = dict(others)
        drafters.update(flawed)
        self.decoder = Engine(target, drafters, self._scheduled, slots=slots, capacity=capacity, prefix_caching=True)
        self.flawed = flawed
        self.level: int | None = None
        self.sampled = SAMPLED
        self.faults: Counter[str] = Counter()
        self.emitted: list[Emitted] = []
        self.rounds = self.tokens = self.joined = self.cancelled = self.cached = 0
        self._longest = max(map(len, prompts))
        self._ended = deque[list[int]](maxlen=REMEMBERED)
        self._setups, self._prompts, self._slots, self._new_tokens = setups, prompts, slots, new_tokens
        self._turn, self._keep_every, self._rng = turn, keep_every, np.random.default_rng(seed)
        self._wanted = slots
        self._forced: StepConfig | None = None  # whatever is scheduled

    @property
    def cycle(self) -> int:
        """Rounds in which every way has its turn."""
        return self._turn * len(self._setups)

    @property
    def setup(self) -> StepConfig:
        """How the next round runs."""
        return self._setups[self.rounds // self._turn % len(self._setups)]

    def run(self, rounds: int) -> None:
        """Decode so many rounds."""
        for _ in range(rounds):
            self._refill()
            done = self.decoder.step()
            self.rounds += 1
            self.tokens += sum(done.kept)
            self.faults.update(fault.drafter or "target" for fault in done.faults)
            for sequence in done.finished:
                self._keep(sequence)
            if self.decoder.running and self._rng.random() < CANCELLED:
                self._cancel()

    def read_together(self, tokens: int) -> None:
        """Let each model in turn read so many tokens for every slot at once; what its masks take then is theirs."""
        for setup in self._setups:
            drafter = self.flawed.get(setup.drafter or "")
            if drafter is None or not drafter.models:
                continue
            while self.decoder.running:
                self.decoder.cancel(self.decoder.running[0])
            for _ in range(self._slots):
                self.decoder.admit(replace(self._request(), max_new_tokens=self._new_tokens), self.joined)
                self.joined += 1
            self._forced = PLAIN
            while drafter.uncached(self.decoder.running) < tokens:
                self.decoder.step()
            chance, drafter.chance, self._forced = drafter.chance, 0.0, setup
            self.decoder.step()
            drafter.chance, self._forced = chance, None

    def _scheduled(self, batch: int, context: int) -> StepConfig:
        return self._forced or self.setup

    def _refill(self) -> None:
        if self.rounds % LEVEL_ROUNDS == 0:
            self._wanted = int(self._rng.integers(1, self._slots, endpoint=True))
        while len(self.decoder.running) < (self.level or self._wanted):
            sequence = self.decoder.admit(self._request(), self.joined)
            self.joined += 1
            self.cached += sequence.cached
            if sequence.is_finished:
                self._keep(sequence)

    def _request(self) -> Request:
        rng = self._rng
        prompt = self._prompts[int(rng.integers(len(self._prompts)))]
        if self._ended and rng.random() < GOES_ON:
            text = self._ended[int(rng.integers(len(self._ended)))]
            prompt = (*text[: self._longest - 1], *prompt)[: self._longest]
        return Request(
            prompt=prompt,
            max_new_tokens=int(rng.integers(1, self._new_tokens, endpoint=True)),
            temperature=0.8 if rng.random() < self.sampled else 0.0,
            seed=int(rng.integers(2**31)),
        )

    def _cancel(self) -> None:
        sequence = self.decoder.running[int(self._rng.integers(len(self.decoder.running)))]
        self.decoder.cancel(sequence)
        self.cancelled += 1
        self._keep(sequence)

    def _keep(self, sequence: Decoded) -> None:
        self._ended.append(sequence.tokens)
        if sequence.index % self._keep_every == 0:
            tokens = np.array(sequence.emitted, dtype=np.int32)
            self.emitted.append(Emitted(request=sequence.request, tokens=tokens))
