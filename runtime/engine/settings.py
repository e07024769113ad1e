"""Settings and results of the generation from one prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from ...errors import RequestError
from ..batch.sequence import Sampling, require_seed, require_text, require_whole

FinishReason = Literal["stop", "length", "cancelled", "failed"]
EMPTY_STOP = "a stop string is empty, which would stop everything; leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings(Sampling):
    """How one prompt is continued."""

    max_new_tokens: int = 128
    seed: int = 0  # keys every draw together with the place in the text
    stop: Sequence[str] = ()  # the text ends before the first of these, a special token too; kept as a tuple

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        require_whole("max_new_tokens", self.max_new_tokens, least=1)
        require_seed(self.seed)
        if self.stop == "":
            raise RequestError(EMPTY_STOP)
        if isinstance(self.stop, str):
            raise RequestError(f"stop takes several strings, got {self.stop!r}; write [{self.stop!r}]")
        object.__setattr__(self, "stop", _strings(self.stop))
        if not all(self.stop):
            raise RequestError(EMPTY_STOP)
        for text in self.stop:
            require_text("a stop string", text)


def _strings(given: object) -> tuple[str, ...]:
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, str) for one in found):
        raise RequestError(f"stop takes strings, got {given!r}; write [] for none")
    return found


class GenerationOptions(TypedDict, total=False):
    """The fields of `GenerationSettings`, as keywords."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    max_new_tokens: int
    seed: int
    stop: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated for one prompt."""

    text: str  # without special tokens, and without a stop string and what follows it
    tokens: tuple[int, ...]  # up to the one that ended the text, that one included
    rounds: int  # target forwards this sequence took part in, its prompt apart
    finish_reason: FinishReason
    lossy: tuple[int, ...] = ()  # places among the tokens that only a lossy rule let be; see `load(allow_lossy=...)`
    error: str = ""  # why it failed: its prompt could not be read
    cached_tokens: int = 0  # of the prompt, which lay in the engine's slots and were not read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """News of one request: some text, or its end."""

    handle: int  # of the request, as `Scheduler.submit` returned it
    piece: str  # of the text, behind all pieces before; empty only where the request ends
    completion: Completion | None = None  # the whole, where the request ends

    @property
    def finished(self) -> FinishReason | None:
        """Why the request ended; None while it runs."""
        return None if self.completion is None else self.completion.finish_reason
