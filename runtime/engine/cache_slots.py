"""Which sequences lie in which slots of all caches, and which prompts are read into them; a round commits here."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...planner.records.slots import Slots
from ..batch.sequence import Request, Sequence
from ..models.forward import CausalModel
from ..models.kv_cache import KeyValueCache
from ..sampling.acceptance import Accepted
from ..sampling.sampler import draw, require_numbers
from .drafting import Drafting
from .prefill import ALL, Prefill, read_on
from .prefix_cache import PrefixCache

BEHIND = 2  # rounds that may wait for a prompt that a device still reads: the next one, and that launched behind it


@dataclass(slots=True, kw_only=True)
class Committed:
    """What a round has changed in the batch; row i of each list is the i-th sequence of the batch before the round."""

    kept: list[int]  # tokens emitted
    lossy: tuple[int, ...]  # of these, by a lossy round's rule; empty without one
    finished: list[Sequence]
    joined: tuple[int, ...]  # index of each sequence that has joined since the round before
    left: int  # sequences that have left since the round before
    is_behind: bool  # whether the round's time may hold the reading of a prompt


class CacheSlots:
    """The running batch of one engine and the slots of its caches; spare slots hold old texts."""

    def __init__(
        self,
        target: CausalModel,
        cache: KeyValueCache,
        drafting: Drafting,
        *,
        slots: int,
        prefix_caching: bool = False,
    ) -> None:
        self._target, self._cache, self._drafting, self._slots = target, cache, drafting, slots
        self._batch = Slots[Sequence]()
        self._prefixes = PrefixCache(is_on=prefix_caching)
        self._reading: Prefill | None = None  # a prompt on its way into the last slot
        self._reads_behind = target.device.type != "cpu"  # such a device still reads when its call has come back
        self._behind = 0  # rounds to come whose time may hold the reading of a prompt
        self._joined: list[int] = []  # by index, since the last round was committed
        self._left = 0  # sequences, likewise

    @property
    def running(self) -> list[Sequence]:
        """The sequences of the batch."""
        return self._batch.running

    @property
    def has_room(self) -> bool:
        """Whether another sequence fits into the batch."""
        return len(self._batch.running) + (self._reading is not None) < self._slots

    def schedule(self) -> list[Sequence]:
        """Return the batch of the next round, sequence i in slot i of every cache."""
        self.settle()
        return list(self.running)

    def commit(self, batch: Many[Sequence], accepted: Accepted) -> Committed:
        """Emit the accepted tokens of a batch, and let finished sequences leave it."""
        kept, lossy = commit(batch, accepted)
        finished = self.let_finished_leave(batch)
        joined, left = tuple(self._joined), self._left
        self._joined.clear()
        self._left = 0
        is_behind, self._behind = self._behind > 0, max(0, self._behind - 1)
        return Committed(kept=kept, lossy=lossy, finished=finished, joined=joined, left=left, is_behind=is_behind)

    def let_finished_leave(self, batch: Many[Sequence]) -> list[Sequence]:
        """Remove the finished ones of some sequences from the batch; return these."""
        finished = [s for s in batch if s.is_finished]
        for sequence in finished:
            self.leave(sequence)
        return finished

    def unread(self, request: Request) -> int:
        """See `Engine.unread`."""
        prefix = self._prefixes.longest(request.prompt, self._batch.next)
        return len(request.prompt) - (0 if prefix is None else prefix.tokens)

    def begin(self, request: Request, index: int, most: int) -> Prefill:
        """See `Engine.begin`."""
        is_at_once = most == ALL or self.unread(request) <= most
        assert self.has_room and (is_at_once or self._reading is None)
        if not is_at_once:
            self.settle()  # nobody else lies in the last slot
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        reading = Prefill(Sequence(request, index), slot=self._batch.next if is_at_once else self._slots - 1)
        self._resume(reading)
        if not is_at_once:
            self._reading = reading
        return reading

    def read_on(self, reading: Prefill, most: int) -> None:
        """See `Engine.read_on`."""
        self._behind = BEHIND if self._reads_behind else 0
        logits = read_on(self._target, self._cache, reading, most)
        if reading.left:
            self._drafting.read_along(reading)
        elif logits is not None:
            try:
                self._join(reading, logits)
            except BaseException:
                reading.begin_anew()
                raise
        if reading is self._reading and not reading.left:
            self._reading = None

    def abandon(self, reading: Prefill) -> None:
        """See `Engine.abandon`."""
        if reading is self._reading:
            self._reading = None
            self._prefixes.keep(reading.slot, reading.sequence.request.prompt, reading.read)

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch."""
        slot = self._batch.leave(sequence)
        self._prefixes.keep(slot, sequence.tokens, sequence.context)
        self._drafting.note_left(self._cache.slots)
        self._left += 1

    def settle(self) -> None:
        """Move every sequence into its own slot of every cache."""
        for source, target, mover in self._batch.settle():
            self._vacate(target)
            self._prefixes.drop(target)
            self._cache.move_slot(source, target, mover.context)
            self._drafting.move(source, target)
            self._prefixes.moved(source, target)

    @property
    def _taken(self) -> set[int]:
        return {*self._batch.homes, *(() if self._reading is None else (self._reading.slot,))}

    def _resume(self, reading: Prefill) -> None:
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
        if one == other:
            return
        tokens = max(self._prefixes.length(slot) for slot in (one, other))
        before = self._prefixes.take_out(one, other)  # until both are there
        self._cache.swap_slots(one, other, tokens)
        self._drafting.swap_prefixes(one, other)
        self._prefixes.put_back(before, one, other)

    def _vacate(self, slot: int, besides: int | None = None, shared: int = 0) -> None:
        """Move the text of a slot to a free slot other than `besides`, if `PrefixCache.refuge` names one."""
        free = set(range(len(self.running), self._cache.slots)).difference(self._taken, (slot, besides))
        refuge = self._prefixes.refuge(slot, free, shared)
        if refuge is not None:
            self._copy_prefix(slot, refuge, self._prefixes.length(slot))
            self._prefixes.moved(slot, refuge)

    def _copy_prefix(self, source: int, slot: int, tokens: int) -> dict[str, int]:
        self._prefixes.drop(slot)  # until all of it is there
        if source != slot:
            self._cache.move_slot(source, slot, tokens)
        return self._drafting.copy_prefix(source, slot, tokens)

    def _join(self, reading: Prefill, logits: Tensor) -> None:
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
        self._joined.append(sequence.index)


def commit(batch: Many[Sequence], accepted: Accepted) -> tuple[list[int], tuple[int, ...]]:
    """Emit the accepted tokens of every sequence; return how many, and how many of these by a lossy rule."""
    kept = [sequence.commit(path.drawn, path.lossy) for sequence, path in zip(batch, accepted.paths, strict=True)]
    if not accepted.gates:
        return kept, ()
    pairs = zip(accepted.paths, kept, strict=True)
    return kept, tuple(sum(place < most for place in path.lossy) for path, most in pairs)
