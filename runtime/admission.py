"""Prompts on their way into a running batch: read into the target's cache, then let in with their first token."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..planner.records.slots import Slots
from .cache import KeyValueCache
from .drafting import Drafting
from .draws import draw, require_numbers
from .models.forward import CausalModel
from .prefill import Reading, read_on
from .prefix_cache import PrefixCache
from .requests import Request, Sequence

BEHIND = 2  # rounds that may wait for a prompt that a device still reads: the next one, and that launched behind it


class Admission:
    """Lets sequences into the batch of one decoder, at once or piece by piece, and out of it."""

    def __init__(
        self,
        target: CausalModel,
        cache: KeyValueCache,
        drafting: Drafting,
        *,
        slots: int,
        prefix_caching: bool = False,
    ) -> None:
        """Take what belongs to one decoder.

        Args:
            target: that reads.
            cache: of the target; its slots beyond those of sequences keep texts alone.
            drafting: its drafters, told of who joins.
            slots: sequences at once.
            prefix_caching: whether the beginning of a prompt that lies in any slot is not read again.
        """
        self._target, self._cache, self._drafting, self._slots = target, cache, drafting, slots
        self._batch = Slots[Sequence]()
        self._prefixes = PrefixCache(is_on=prefix_caching)
        self._reading: Reading | None = None  # a prompt on its way into the last slot
        self._reads_behind = target.device.type != "cpu"  # such a device still reads when its call has come back
        self._behind = 0  # rounds to come whose time may hold the reading of a prompt

    @property
    def running(self) -> list[Sequence]:
        """The batch."""
        return self._batch.running

    @property
    def has_room(self) -> bool:
        """Whether another sequence fits into the batch."""
        return len(self._batch.running) + (self._reading is not None) < self._slots

    def unread(self, request: Request) -> int:
        """Do as `Decoder.unread` does."""
        prefix = self._prefixes.longest(request.prompt, self._batch.next)
        return len(request.prompt) - (0 if prefix is None else prefix.tokens)

    def admit(self, request: Request, index: int) -> Sequence:
        """Do as `Decoder.admit` does."""
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        reading = Reading(Sequence(request, index), slot=self._batch.next)
        self._resume(reading)
        self._read_on(reading, reading.left)
        return reading.sequence

    def begin(self, request: Request, index: int) -> Reading:
        """Do as `Decoder.begin` does."""
        assert self.has_room and self._reading is None
        self.settle()  # nobody else lies in the last slot
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        reading = Reading(Sequence(request, index), slot=self._slots - 1)
        self._resume(reading)
        self._reading = reading
        return reading

    def read_on(self, reading: Reading, most: int) -> None:
        """Do as `Decoder.read_on` does."""
        assert reading is self._reading
        self._read_on(reading, most)
        if not reading.left:
            self._reading = None

    def abandon(self, reading: Reading) -> None:
        """Do as `Decoder.abandon` does."""
        if reading is self._reading:
            self._reading = None
            self._prefixes.keep(reading.slot, reading.sequence.request.prompt, reading.read)

    def leave(self, sequence: Sequence) -> None:
        """Let a sequence out of the batch."""
        slot = self._batch.leave(sequence)
        self._prefixes.keep(slot, sequence.tokens, sequence.context)
        self._drafting.note_left(self._cache.slots)

    def settle(self) -> None:
        """Let every sequence lie in its own slot of every cache."""
        for source, target, mover in self._batch.settle():
            self._vacate(target)
            self._prefixes.drop(target)
            self._cache.move_slot(source, target, mover.context)
            self._drafting.move(source, target)
            self._prefixes.moved(source, target)

    def note_round(self) -> bool:
        """Take note that a round has ended; return whether its time may hold the reading of a prompt."""
        is_behind, self._behind = self._behind > 0, max(0, self._behind - 1)
        return is_behind

    @property
    def _taken(self) -> set[int]:
        """The slots in which something runs or is being read."""
        return {*self._batch.homes, *(() if self._reading is None else (self._reading.slot,))}

    def _resume(self, reading: Reading) -> None:
        """Let a prompt's slot begin as another does that holds most of it, so that reading goes on behind that."""
        if not self._prefixes.is_on:
            return
        prompt, slot = reading.sequence.request.prompt, reading.slot
        prefix = self._prefixes.longest(prompt, slot)
        source, tokens = (slot, 0) if prefix is None else (prefix.slot, prefix.tokens)
        if prefix is not None and prefix.is_all and source not in self._taken:  # the prompt is all that needs it
            self._swap_prefixes(source, slot)
            source = slot
        else:
            self._vacate(slot, besides=source, shared=tokens if source == slot else 0)
        reading.along = self._copy_prefix(source, slot, tokens)
        self._prefixes.keep(slot, prompt, tokens)
        reading.read = reading.sequence.cached = tokens

    def _swap_prefixes(self, one: int, other: int) -> None:
        """Let two slots in which nobody runs exchange what they hold, in every cache."""
        if one == other:
            return
        tokens = max(self._prefixes.length(slot) for slot in (one, other))
        before = self._prefixes.take_out(one, other)  # until both are there
        self._cache.swap_slots(one, other, tokens)
        self._drafting.swap_prefixes(one, other)
        self._prefixes.put_back(before, one, other)

    def _vacate(self, slot: int, besides: int | None = None, shared: int = 0) -> None:
        """Let the text of a slot that is needed move to a free one, see `PrefixCache.refuge`; but to one not."""
        free = set(range(len(self.running), self._cache.slots)).difference(self._taken, (slot, besides))
        refuge = self._prefixes.refuge(slot, free, shared)
        if refuge is not None:
            self._copy_prefix(slot, refuge, self._prefixes.length(slot))
            self._prefixes.moved(slot, refuge)

    def _copy_prefix(self, source: int, slot: int, tokens: int) -> dict[str, int]:
        """Let a slot of every cache begin as another does; return how many tokens each drafter holds of so many."""
        self._prefixes.drop(slot)  # until all of it is there
        if source != slot:
            self._cache.move_slot(source, slot, tokens)
        return self._drafting.copy_prefix(source, slot, tokens)

    def _read_on(self, reading: Reading, most: int) -> None:
        self._behind = BEHIND if self._reads_behind else 0
        logits = read_on(self._target, self._cache, reading, most)
        if reading.left:
            self._drafting.read_along(reading)
        if logits is None or reading.left:
            return
        try:
            self._join(reading, logits)
        except BaseException:
            reading.begin_anew()
            raise

    def _join(self, reading: Reading, logits: Tensor) -> None:
        """Draw a sequence's first token and let it into the batch; where anything is raised, it is not in it."""
        sequence, slot = reading.sequence, self._batch.next
        require_numbers(logits)
        sequence.commit(draw(logits, [sequence], np.zeros((1, 1), dtype=np.int64))[0])
        if sequence.is_finished:
            self._prefixes.keep(reading.slot, sequence.request.prompt)
            return
        if slot != reading.slot:
            self._vacate(slot)
            self._prefixes.drop(slot)
            self._cache.move_slot(reading.slot, slot, sequence.context)
        self._batch.join(sequence)
        try:
            self._drafting.join(reading, slot)
            self._prefixes.drop(reading.slot)
            self._prefixes.keep(slot, sequence.request.prompt)
        except BaseException:  # somebody stops it; what drafters raise is a fault
            self._batch.leave(sequence)
            raise
