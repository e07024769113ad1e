"""Prompts on their way into a running batch: read into the target's cache, then let in with their first token."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..planner.replay.slots import Slots
from .cache import KeyValueCache
from .drafting import Drafting
from .draws import draw
from .models.forward import CausalModel
from .prefill import Reading, read_on
from .requests import Request, Sequence

BEHIND = 2  # rounds that may wait for a prompt that a device still reads: the next one, and that launched behind it


class Admission:
    """Lets sequences into the batch of one decoder, at once or piece by piece, and out of it."""

    def __init__(self, target: CausalModel, cache: KeyValueCache, drafting: Drafting, *, slots: int) -> None:
        """Take what belongs to one decoder.

        Args:
            target: that reads.
            cache: of the target.
            drafting: its drafters, told of who joins.
            slots: sequences at once.
        """
        self._target, self._cache, self._drafting, self._slots = target, cache, drafting, slots
        self._batch = Slots[Sequence]()
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

    def admit(self, request: Request, index: int) -> Sequence:
        """Do as `Decoder.admit` does."""
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        reading = Reading(Sequence(request, index), slot=self._batch.next)
        self._read_on(reading, reading.left)
        return reading.sequence

    def begin(self, request: Request, index: int) -> Reading:
        """Do as `Decoder.begin` does."""
        assert self.has_room and self._reading is None
        self.settle()  # nobody else lies in the last slot
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        self._reading = Reading(Sequence(request, index), slot=self._slots - 1)
        return self._reading

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

    def leave(self, sequence: Sequence) -> None:
        """Let a sequence out of the batch."""
        self._batch.leave(sequence)
        if self._drafting.has_resting:  # who may begin anew, in the slots of the batch
            self.settle()
        self._drafting.note_left(len(self.running))

    def settle(self) -> None:
        """Let every sequence lie in its own slot of every cache."""
        for source, target, mover in self._batch.settle():
            self._cache.move_slot(source, target, mover.context)
            self._drafting.move(source, target)

    def note_round(self) -> bool:
        """Take note that a round has ended; return whether its time may hold the reading of a prompt."""
        is_behind, self._behind = self._behind > 0, max(0, self._behind - 1)
        return is_behind

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
        sequence.commit(draw(logits, [sequence], np.zeros((1, 1), dtype=np.int64))[0])
        if sequence.is_finished:
            return
        if slot != reading.slot:
            self._cache.move_slot(reading.slot, slot, sequence.context)
        self._batch.join(sequence)
        try:
            self._drafting.join(reading, slot)
        except BaseException:  # somebody stops it; what drafters raise is a fault
            self._batch.leave(sequence)
            raise
