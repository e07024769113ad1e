"""Read a prompt into a target's cache, before its sequence joins a batch."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from torch import Tensor

from ..batch.sequence import Request, Sequence
from ..models.forward import CausalModel
from ..models.kv_cache import KeyValueCache
from ..models.layout import PREFILL_TOKENS, lay_out_text
from .detokenizer import Transcript
from .settings import Completion, FinishReason


@dataclass(slots=True)
class Reading:
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


def read_on(target: CausalModel, cache: KeyValueCache, reading: Reading, most: int) -> Tensor | None:
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


@dataclass(slots=True)
class Job:
    """One request that has not ended."""

    handle: int
    request: Request  # its images are shown once it has a sequence
    transcript: Transcript
    is_read: bool  # after every round, and not only at the end
    reading: Reading | None = None  # of a prompt that is read while others are decoded
    sequence: Sequence | None = None  # None while it waits
    rounds: int = 0
    told: int = 0  # characters of the transcript that are in events

    @property
    def tokens(self) -> Many[int]:
        """The prompt and the emitted tokens."""
        return self.request.prompt if self.sequence is None else self.sequence.tokens

    def completed(self, reason: FinishReason, error: str) -> Completion:
        """Return the completion, with the reason "stop" where the rest of its text completes a stop string."""
        self.transcript.finish(self.tokens)
        end = self.transcript.end
        emitted = tuple(self.tokens[len(self.request.prompt) : end])
        places = () if self.sequence is None else self.sequence.lossy
        return Completion(
            text=self.transcript.text,
            tokens=emitted,
            rounds=self.rounds,
            finish_reason=reason if end is None else "stop",
            lossy=tuple(place for place in places if place < len(emitted)),
            cached_tokens=0 if self.sequence is None else self.sequence.cached,
            error=error,
        )
