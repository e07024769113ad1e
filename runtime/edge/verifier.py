"""The target of a server: many texts in its cache, and whichever of them have a draft verified together."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from ...planner.strategies.plain import PlainPolicy
from ..drafters.lookup import chains
from ..draws import draw
from ..faults import Fault
from ..fed_trees import prepare
from ..layout import PREFILL_TOKENS, Masks, seen_by
from ..models.forward import CausalModel
from ..prefill import Reading, read_on
from ..requests import Request, Sequence
from ..setup import RoundSetup
from ..stopwatch import DONE, Stopwatch
from ..verifying import Verifying

Asked = tuple[Sequence, Many[int]]  # a text, and what was drafted behind it
UNPADDED = RoundSetup(policy=PlainPolicy())


class EdgeVerifier:
    """Holds texts and lets them grow by what the target says of drafts that come from elsewhere.

    Invariant: `_slots[i]` is the text whose tokens, but the last, are in slot i of the cache; of a prompt that is still
    read, those that were. Those that are verified together are moved to the first slots; the last slot is always free,
    for two to change places.
    """

    def __init__(self, target: CausalModel, *, slots: int, capacity: int, most_drafted: int) -> None:
        """Allocate.

        Args:
            target: that verifies.
            slots: texts at once.
            capacity: tokens of each, prompt and answer.
            most_drafted: tokens of one draft.
        """
        self.faults: list[Fault] = []
        self.most_drafted, self.capacity = most_drafted, capacity
        self._target, self._slots = target, list[Sequence | None]([None] * slots)
        room = capacity + most_drafted + 1
        self._cache = target.new_cache(slots + 1, room)
        masks = Masks(target.dtype, target.device, slots=slots, capacity=room)
        prepare(target.dtype, target.device)
        self._verifying = Verifying(
            target,
            self._cache,
            masks,
            seen_by(target, room),
            {},
            judges={},
            allow_lossy=False,
            faults=self.faults,
            watch=Stopwatch(DONE + 1),
        )

    @property
    def has_room(self) -> bool:
        """Whether another text fits."""
        return None in self._slots

    @property
    def vocabulary(self) -> int:
        """Tokens of the target, padding included."""
        return self._target.vocabulary

    def open(self, request: Request) -> Reading:
        """Return a text that is held, and of whose prompt nothing is read yet.

        Raises:
            RequestError: it is too long.
        """
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens + self.most_drafted + 1)
        slot = self._slots.index(None)
        text = self._slots[slot] = Sequence(request, slot)
        return Reading(text, slot=slot)

    def read(self, reading: Reading) -> None:
        """Read a piece of a prompt; behind the last one draw the first token.

        A text that is finished by it is not held any longer.

        Raises:
            MemoryError, RuntimeError: the forward failed; the text is of no more use.
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
        """Let every text grow by what the target accepts of its draft, and by one token of its own.

        Texts that are finished by it are not held any longer.

        Args:
            asked: different texts that are held, with at most `most_drafted` tokens of the vocabulary each.
        """
        self._to_the_front([text for text, _ in asked])
        rows = sorted(asked, key=lambda one: self._slot_of(one[0]))
        texts = [text for text, _ in rows]
        self._verifying.verify(texts, chains([tokens for _, tokens in rows]), UNPADDED)
        for text in texts:
            if text.is_finished:
                self.close(text)

    def is_known(self, tokens: Many[int]) -> bool:
        """Whether all are tokens of the target's vocabulary."""
        return all(0 <= token < self.vocabulary for token in tokens)

    def close(self, text: Sequence) -> None:
        """Forget a text; one that is not held is forgotten already."""
        for slot, held in enumerate(self._slots):
            if held is text:
                self._slots[slot] = None

    def _slot_of(self, text: Sequence) -> int:
        return next(slot for slot, held in enumerate(self._slots) if held is text)

    def _to_the_front(self, texts: Many[Sequence]) -> None:
        """Let texts lie in the first slots, in any order."""
        slots = [self._slot_of(text) for text in texts]
        behind = [slot for slot in slots if slot >= len(texts)]
        others = set(range(len(texts))).difference(slots)
        for place, slot in zip(sorted(others, key=lambda at: self._slots[at] is not None), behind, strict=True):
            self._change_places(place, slot)

    def _change_places(self, first: int, second: int) -> None:
        """Let the text of the second slot lie in the first, and what lies there, if anything, in the second."""
        spare, pushed, moved = len(self._slots), self._slots[first], self._slots[second]
        assert moved is not None
        if pushed is not None:
            self._cache.move_slot(first, spare, pushed.context)
        self._cache.move_slot(second, first, moved.context)
        if pushed is not None:
            self._cache.move_slot(spare, second, pushed.context)
        self._slots[first], self._slots[second] = moved, pushed
