"""A model and the text as one drafter: for hybrids, and for whatever the model alone drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np

from ...planner.growth.draft import DraftBatch
from ...planner.kernels.arrays import Ints
from ...planner.policies import HybridPolicy, TreePolicy
from ...planner.text.texts import Texts
from ...planner.text.tree import PADDING
from ..cache import KeyValueCache
from ..growth.captured import CapturedGrowth
from ..models.forward import LeftStates
from ..requests import Sequence
from .model import ModelDrafter
from .protocol import Begun, LeavesStates, ReadsTarget, asked_of

LATELY = 4  # rounds, about, of which it is told how many asked the model
LIKELY = 0.6  # share of them from which on it drafts unasked at all


class _Odds:
    """Whether a draft is worth beginning before anybody has asked for it.

    Of one that is taken the device's time is saved as far as the host works meanwhile: min(d, h). One that nobody
    takes holds the next verification up by the rest, max(d - h, 0). So it pays where the chance that it is asked for is
    above 1 - h/d.
    """

    def __init__(self) -> None:
        self._asked = 0.5  # share of the last rounds that asked the model; nobody knows before the first
        self._covered: dict[int, float] = {}  # by sequences, share of a draft's time in which the host worked, too

    def are_good(self, batch: int) -> bool:
        return self._asked >= max(LIKELY, 1.0 - self._covered.get(batch, 1.0))

    def note_asked(self, is_asked: bool) -> None:
        self._asked += (is_asked - self._asked) / LATELY

    def note_taken(self, batch: int, draft_ms: float, host_ms: float) -> None:
        covered, before = min(host_ms / draft_ms, 1.0) if draft_ms > 0.0 else 1.0, self._covered.get(batch, 1.0)
        self._covered[batch] = before + (covered - before) / LATELY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A draft of the model under way, and behind which texts: each with its length."""

    begun: Begun
    policy: HybridPolicy
    texts: list[tuple[Sequence, int]]
    fresh: int  # most tokens that the model has to read before it

    def rows(self, sequences: Many[Sequence], policy: HybridPolicy, wanted: Many[int]) -> list[int] | None:
        """Return where in the draft some of the sequences' trees are; None where it has not all of them."""
        places = {id(text): row for row, (text, length) in enumerate(self.texts) if length == len(text.tokens)}
        found = [places.get(id(sequences[slot]), -1) for slot in wanted]
        return None if policy != self.policy or min(found) < 0 else found


def _merged(copies: DraftBatch, drafted: DraftBatch, slots: Many[int], rows: Many[int]) -> DraftBatch:
    """Return copies out of texts as one batch with a draft's trees, told by row, in place of those of some slots."""
    sizes = copies.sizes.copy()
    sizes[slots] = drafted.sizes[rows]
    nodes = max(sizes.tolist())
    copied, grown = min(copies.tokens.shape[1], nodes), min(drafted.tokens.shape[1], nodes)
    padded = np.empty((3, len(sizes), nodes), dtype=np.int64)
    padded[:] = PADDING
    for part, text, model in zip(padded, _parts_of(copies), _parts_of(drafted), strict=True):
        part[:, :copied] = text[:, :copied]
        part[slots, :grown] = model[rows, :grown]
    tokens, parents, depths = padded
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=drafted.widths)


def _parts_of(draft: DraftBatch) -> tuple[Ints, Ints, Ints]:
    return draft.tokens, draft.parents, draft.depths


class HybridDrafter:
    """Copies from each sequence's own text where its end occurred before at length, else lets the model draft.

    The model drafts for the whole batch where any sequence needs it, and not at all else; it then reads more the next
    time. Policies without a text part are the model's own.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666.
    """

    def __init__(self, model: ModelDrafter) -> None:
        """Stand before a model's drafter."""
        self.forwards = model.forwards  # of the model so far
        self._model = model
        self._texts = Texts()
        self._held: _Held | None = None
        self._odds = _Odds()

    def attach(self, cache: KeyValueCache) -> None:
        """Hand the target's cache on to a model that reads it."""
        if isinstance(self._model, ReadsTarget):
            self._model.attach(cache)

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Let the model read a fresh sequence, and forget the slot's former text."""
        self.read_along(slot, sequence.tokens[:-1], 0)

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Let the model read on in a text; forget the slot's former one where it begins."""
        if held == 0:
            self._texts.admit(slot)
        self._model.read_along(slot, tokens, held)
        self.forwards = self._model.forwards

    def rewind(self, lengths: Many[int]) -> None:
        """Let the model hold only the first lengths[i] tokens of slot i, and forget what it has drafted."""
        self._held = None
        self._model.rewind(lengths)

    def move(self, source: int, target: int) -> None:
        """Let `target` become the slot of the sequence in `source`."""
        self._texts.move(source, target)
        self._model.move(source, target)

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the model has to read when it next drafts, or had to before."""
        return max(self._model.fresh(sequences), 0 if self._held is None else self._held.fresh)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return one tree per sequence: the text's where it has one, else the model's."""
        held, self._held = self._held, None
        if not isinstance(policy, HybridPolicy):
            self._odds.note_asked(True)
            return self._drafted(sequences, policy)
        copies = self._texts.draft([s.tokens for s in sequences], policy.text)
        lacking = [slot for slot, nodes in enumerate(copies.sizes.tolist()) if nodes == 1]
        self._odds.note_asked(bool(lacking))
        if not lacking:
            return copies if held is None else replace(copies, unused=held.begun.widths)
        rows = None if held is None else held.rows(sequences, policy, lacking)
        if held is None or rows is None:
            drafted, rows = self._drafted(sequences, policy.model), lacking
        else:
            drafted = self._read(held)
        if len(lacking) == len(sequences) and rows == list(range(len(drafted.sizes))):
            return drafted
        return _merged(copies, drafted, lacking, rows)

    def growth_behind(self, sequences: Many[Sequence], policy: HybridPolicy) -> CapturedGrowth | None:
        """Return what captures the model's drafts where these may begin before they are asked for; None else."""
        is_worth_it = self._odds.are_good(len(sequences)) and self._model.has_read(sequences)
        return self._model.growth_for(sequences, policy.model) if is_worth_it else None

    def take(self, sequences: Many[Sequence], policy: HybridPolicy, begun: Begun) -> None:
        """Take what was begun behind sequences of which the model had read all but what they emitted last."""
        fresh = self._model.fresh(sequences)
        self.note_drafted(sequences, len(begun.widths))
        texts = [(sequence, len(sequence.tokens)) for sequence in sequences]
        self._held = _Held(begun=begun, policy=policy, texts=texts, fresh=fresh)

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return what captures the model's drafts of a policy, or of a hybrid's own model; None where nothing does."""
        return self._model.growth_for(sequences, policy.model if isinstance(policy, HybridPolicy) else policy)

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of every sequence that the model's next draft has to read first."""
        return self._model.unread(sequences)

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Take note of captured work of the model."""
        self._model.note_drafted(sequences, forwards)
        self.forwards = self._model.forwards

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Return the states of a draft's nodes where the model is an exit, None else."""
        return self._model.left(sequences, draft, fed) if isinstance(self._model, LeavesStates) else None

    def _read(self, held: _Held) -> DraftBatch:
        """Wait for a draft under way."""
        begun = held.begun
        host_ms = (time.perf_counter_ns() - begun.known_ns) / 1e6
        drafted = begun.read()
        if begun.took_ms is not None:
            self._odds.note_taken(len(held.texts), begun.took_ms(), host_ms)
        return drafted

    def _drafted(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = self._model.draft(sequences, asked_of(self._model, policy))
        self.forwards = self._model.forwards
        return draft
