"""The target of a server: many texts in its cache, any of which are verified together."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from ..backends.choice import choose
from ..batch.faults import Fault
from ..batch.sequence import Request, Sequence
from ..batch.step_config import PLAIN
from ..batch.stopwatch import DONE, Stopwatch
from ..drafters.lookup import chains
from ..engine.cache_slots import commit
from ..engine.exit_states import ExitStates
from ..engine.lossy_rule import LossyRules
from ..engine.prefill import Prefill, read_on
from ..engine.step import TargetVerifier
from ..models.forward import CausalModel
from ..models.layout import PREFILL_TOKENS, Masks, seen_by
from ..sampling.sampler import draw

Asked = tuple[Sequence, Many[int]]  # a text, and what was drafted behind it


class EdgeVerifier:
    """Holds texts and extends them by what the target accepts of drafts from elsewhere.

    Invariant: `_slots[i]` is the text whose tokens, but the last, are in slot i of the cache; of a prompt being read,
    those read so far. Texts to verify together move to the first slots. The last slot stays free, for swaps.
    """

    def __init__(self, target: CausalModel, *, slots: int, capacity: int, most_drafted: int) -> None:
        """Allocate the cache of `slots` texts with `capacity` tokens each, prompt and answer, and a draft."""
        self.faults: list[Fault] = []
        self.most_drafted, self.capacity = most_drafted, capacity
        self._target, self._slots = target, list[Sequence | None]([None] * slots)
        room = capacity + most_drafted + 1
        self._cache = target.new_cache(slots + 1, room)
        masks = Masks(target.dtype, target.device, slots=slots, capacity=room)
        watch = Stopwatch(DONE + 1)
        backend = choose(target)(target, self._cache, watch)
        backend.prepare()
        self._verification = TargetVerifier(
            backend,
            self._cache,
            masks,
            seen_by(target, room),
            exits=ExitStates(target, {}, self.faults),
            rules=LossyRules({}, self._cache, self.faults, is_allowed=False),
            faults=self.faults,
            watch=watch,
        )

    @property
    def has_room(self) -> bool:
        """Whether another text fits."""
        return None in self._slots

    @property
    def vocabulary(self) -> int:
        """The target's vocabulary, padding included."""
        return self._target.vocabulary

    def open(self, request: Request) -> Prefill:
        """Reserve a slot for a text; return its unread prompt; RequestError if it is too long."""
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens + self.most_drafted + 1)
        slot = self._slots.index(None)
        text = self._slots[slot] = Sequence(request, slot)
        return Prefill(text, slot=slot)

    def read(self, reading: Prefill) -> None:
        """Read a piece of a prompt; behind the last one draw the first token, and drop the text if it is finished.

        Raises MemoryError or RuntimeError if the forward failed; the text is then of no more use.
        """
        text = reading.sequence
        reading.slot = self._slot_of(text)
        logits = read_on(self._target, self._cache, reading, PREFILL_TOKENS)
        if reading.left:
            return
        assert logits is not None, "a prompt has tokens"
        text.commit(draw(logits, [text], np.zeros((1, 1), dtype=np.int64))[0])
        if text.is_finished:
            self.close(text)

    def verify(self, asked: Many[Asked]) -> None:
        """Extend different texts by what the target accepts of their drafts and one token; drop finished texts."""
        self._to_the_front([text for text, _ in asked])
        rows = sorted(asked, key=lambda one: self._slot_of(one[0]))
        texts = [text for text, _ in rows]
        result = self._verification.verify(texts, chains([tokens for _, tokens in rows]), PLAIN)
        commit(texts, result.accepted)
        for text in texts:
            if text.is_finished:
                self.close(text)

    def is_known(self, tokens: Many[int]) -> bool:
        """Whether all tokens are in the target's vocabulary."""
        return all(0 <= token < self.vocabulary for token in tokens)

    def close(self, text: Sequence) -> None:
        """Drop a text, if it is held."""
        for slot, held in enumerate(self._slots):
            if held is text:
                self._slots[slot] = None

    def _slot_of(self, text: Sequence) -> int:
        return next(slot for slot, held in enumerate(self._slots) if held is text)

    def _to_the_front(self, texts: Many[Sequence]) -> None:
        slots = [self._slot_of(text) for text in texts]
        behind = [slot for slot in slots if slot >= len(texts)]
        others = set(range(len(texts))).difference(slots)
        for place, slot in zip(sorted(others, key=lambda at: self._slots[at] is not None), behind, strict=True):
            self._change_places(place, slot)

    def _change_places(self, first: int, second: int) -> None:
        """Swap the texts of two slots, of which the first may be empty."""
        spare, pushed, moved = len(self._slots), self._slots[first], self._slots[second]
        assert moved is not None
        if pushed is not None:
            self._cache.move_slot(first, spare, pushed.context)
        self._cache.move_slot(second, first, moved.context)
        if pushed is not None:
            self._cache.move_slot(spare, second, pushed.context)
        self._slots[first], self._slots[second] = moved, pushed
