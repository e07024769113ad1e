"""The target of a server: many texts in its cache, and whichever of them have a draft verified together."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from ...planner.growth.draft import chains_of
from ...planner.policies import ChainPolicy
from ..draws import draw
from ..faults import Fault
from ..fed_trees import prepare
from ..layout import Masks, seen_by
from ..models.forward import CausalModel
from ..prefill import Reading, read_on
from ..requests import Request, Sequence
from ..setup import RoundSetup
from ..stopwatch import DONE, Stopwatch
from ..verifying import Verifying

Asked = tuple[Sequence, Many[int]]  # a text, and what was drafted behind it


class EdgeVerifier:
    """Holds texts and lets them grow by what the target says of drafts that come from elsewhere.

    Invariant: `_slots[i]` is the text whose tokens, but the last, are in slot i of the cache. Those that are verified
    together are moved to the first slots; the last slot is always free, for two to change places.
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
    def texts(self) -> list[Sequence]:
        """All that are held."""
        return [text for text in self._slots if text is not None]

    def open(self, request: Request) -> Sequence:
        """Read a prompt and draw its first token; the text is held unless that finished it.

        Raises:
            RequestError: it is too long.
            MemoryError, RuntimeError: the forward failed; nothing is held.
        """
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens + self.most_drafted + 1)
        slot = self._slots.index(None)
        reading = Reading(Sequence(request, slot), slot=slot)
        logits = read_on(self._target, self._cache, reading, reading.left)
        assert logits is not None, "a prompt has tokens"
        text = reading.sequence
        text.commit(draw(logits, [text], np.zeros((1, 1), dtype=np.int64))[0])
        if not text.is_finished:
            self._slots[slot] = text
        return text

    def verify(self, asked: Many[Asked]) -> None:
        """Let every text grow by what the target accepts of its draft, and by one token of its own.

        Texts that are finished by it are not held any longer.

        Args:
            asked: different texts that are held, with at most `most_drafted` tokens of the vocabulary each.
        """
        self._to_the_front([text for text, _ in asked])
        lengths = np.array([len(tokens) for _, tokens in asked], dtype=np.int64)
        drafted = np.full((len(asked), int(lengths.max()) + 1), -1, dtype=np.int64)
        for row, (_, tokens) in enumerate(asked):
            drafted[row, 1 : 1 + len(tokens)] = tokens
        setup = RoundSetup(policy=ChainPolicy(length=max(int(lengths.max()), 1)))
        self._verifying.verify([text for text, _ in asked], chains_of(drafted, lengths, ()), setup)
        for text, _ in asked:
            if text.is_finished:
                self.close(text)

    def is_known(self, tokens: Many[int]) -> bool:
        """Whether all are tokens of the target's vocabulary."""
        return all(0 <= token < self._target.vocabulary for token in tokens)

    def close(self, text: Sequence) -> None:
        """Forget a text; one that is not held is forgotten already."""
        for slot, held in enumerate(self._slots):
            if held is text:
                self._slots[slot] = None

    def _to_the_front(self, texts: Many[Sequence]) -> None:
        """Let texts lie in the first slots, in their order."""
        for place, text in enumerate(texts):
            slot = next(slot for slot, held in enumerate(self._slots) if held is text)
            if slot != place:
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
