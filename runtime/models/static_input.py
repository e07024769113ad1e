"""The input of a captured forward: it lies where the capture saw it, and other inputs are copied into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from .arena import Arena
from .forward import ForwardInput


class StaticInput:
    """A forward's input in memory that never moves.

    The mask, by far its largest part, shares its memory with the masks of other static inputs, so
    `load` comes before every use.
    """

    def __init__(self, step: ForwardInput, masks: Arena) -> None:
        """Take a copy of a forward's input; `masks` is the memory that all masks share."""
        self.step = replace(
            step,
            tokens=step.tokens.clone(),
            positions=step.positions.clone(),
            columns=step.columns.clone(),
            bias=None if step.bias is None else masks.view(step.bias.shape),
            take=None if step.take is None else step.take.clone(),
        )
        self.load(step)

    def load(self, step: ForwardInput) -> None:
        """Copy in another input of the same signature."""
        assert step.signature == self.step.signature
        for mine, other in zip(_tensors(self.step), _tensors(step), strict=True):
            mine.copy_(other)


def _tensors(step: ForwardInput) -> Iterator[Tensor]:
    yield from (step.tokens, step.positions, step.columns)
    if step.bias is not None:
        yield step.bias
    if step.take is not None:
        yield step.take
