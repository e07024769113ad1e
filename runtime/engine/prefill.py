"""Read a prompt into a target's cache, before its sequence joins a batch: the only way of prefilling."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from torch import Tensor

from ..batch.sequence import Sequence
from ..models.forward import CausalModel
from ..models.kv_cache import KeyValueCache
from ..models.layout import PREFILL_TOKENS, lay_out_text

ALL = 2**62  # tokens: of any prompt


@dataclass(slots=True)
class Prefill:
    """A prompt on its way into a slot of the target's cache: `read` of its tokens are there."""

    sequence: Sequence
    slot: int
    read: int = 0
    along: dict[str, int] = field(default_factory=dict)  # tokens of it that drafters hold, too, by name

    @property
    def left(self) -> int:
        """Tokens that are still to be read."""
        return len(self.sequence.request.prompt) - self.read

    def begin_anew(self) -> None:
        """Drop the tokens read, and what was drawn behind them."""
        self.read = 0
        self.along.clear()
        self.sequence = Sequence(self.sequence.request, self.sequence.index)


def read_on(target: CausalModel, cache: KeyValueCache, reading: Prefill, most: int) -> Tensor | None:
    """Read at most `most` more tokens; return the last one's logits (1, 1, vocabulary), None if none was left."""
    logits, end = None, reading.read + min(most, reading.left)
    while reading.read < end:
        stop = min(end, reading.read + PREFILL_TOKENS)
        piece = reading.sequence.request.prompt[reading.read : stop]
        logits = _read_piece(target, cache, piece, reading.read, reading.slot)
        reading.read = stop
    return logits


def _read_piece(target: CausalModel, cache: KeyValueCache, piece: Many[int], start: int, slot: int) -> Tensor:
    return target.forward(lay_out_text(target, piece, start, takes_last=True, slot=slot), cache)
