"""What a scheduler knows of one request."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from ..batch.sequence import Request, Sequence
from .detokenizer import Detokenizer
from .prefill import Prefill
from .settings import Completion, FinishReason


@dataclass(slots=True)
class RequestState:
    """One request and how far it is."""

    handle: int
    request: Request  # its images are shown once it has a sequence
    detokenizer: Detokenizer | None  # None: it has no events
    is_read: bool  # its text, after every round and not only at the end
    prefill: Prefill | None = None  # of a prompt that is read while others are decoded
    sequence: Sequence | None = None  # None while it waits
    rounds: int = 0
    streamed: int = 0  # characters of its text that are in events

    @property
    def tokens(self) -> Many[int]:
        """The prompt and the emitted tokens."""
        return self.request.prompt if self.sequence is None else self.sequence.tokens

    def completed(self, reason: FinishReason, error: str) -> Completion:
        """Return the completion, with the reason "stop" where the rest of its text completes a stop string."""
        assert self.detokenizer is not None, "a request without events has no completion"
        self.detokenizer.finish(self.tokens)
        end = self.detokenizer.end
        emitted = tuple(self.tokens[len(self.request.prompt) : end])
        places = () if self.sequence is None else self.sequence.lossy
        return Completion(
            text=self.detokenizer.text,
            tokens=emitted,
            rounds=self.rounds,
            finish_reason=reason if end is None else "stop",
            lossy=tuple(place for place in places if place < len(emitted)),
            cached_tokens=0 if self.sequence is None else self.sequence.cached,
            error=error,
        )


def sequences_of(states: Iterable[RequestState]) -> list[Sequence]:
    """Return the sequences of those requests that have joined, in order."""
    return [state.sequence for state in states if state.sequence is not None]
