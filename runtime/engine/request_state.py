"""What a session knows of one request that has not ended."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from ..batch.sequence import Request, Sequence
from .detokenizer import Detokenizer
from .prefill import Prefill
from .settings import Completion, FinishReason


@dataclass(slots=True)
class RequestState:
    """One request that has not ended."""

    handle: int
    request: Request  # its images are shown once it has a sequence
    transcript: Detokenizer
    is_read: bool  # after every round, and not only at the end
    reading: Prefill | None = None  # of a prompt that is read while others are decoded
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
