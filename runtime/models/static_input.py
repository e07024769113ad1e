"""The input of a captured forward: memory at a fixed place, into which other inputs are copied."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..batch.transfer import host_memory
from .forward import ForwardInput, packed_input, packed_size


class StaticInput:
    """A forward's input in one piece of memory that never moves; between two loads, wait for a result of the first."""

    def __init__(self, step: ForwardInput, device: torch.device) -> None:
        assert step.tree is not None
        batch, count = step.tokens.shape
        words, takes = step.tree.bits.shape[2], step.take is not None
        packed = torch.empty(packed_size(batch, count, words, takes=takes), dtype=torch.int64, device=device)
        self._packed = packed
        self._host = None if step.packed is None else host_memory(packed)
        self.step = packed_input(packed, batch, count, words, seen=step.seen, first_slot=step.first_slot, takes=takes)
        self.load(step)
        self.arrive()

    def load(self, step: ForwardInput) -> None:
        """Take another input of the same signature, packed or not as the first; the host waits for nothing."""
        assert step.signature == self.step.signature
        if self._host is not None:
            assert step.packed is not None
            self._host.copy_(step.packed)
            return
        for mine, other in zip(_tensors(self.step), _tensors(step), strict=True):
            mine.copy_(other, non_blocking=True)

    def arrive(self) -> None:
        """Copy a packed input to the device; part of the captured work."""
        if self._host is not None:
            self._packed.copy_(self._host, non_blocking=True)


def _tensors(step: ForwardInput) -> Iterator[Tensor]:
    assert step.tree is not None
    yield from (step.tokens, step.positions, step.columns, step.tree.starts, step.tree.bits)
    if step.take is not None:
        yield step.take
