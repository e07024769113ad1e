"""A caller's request, and one sequence of the running batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from ...errors import ModelError, RequestError
from .images import Image

NO_NUMBERS = (
    "the target's logits are not numbers: its weights are broken, or too large for the number format; copy the model "
    "again, or try --dtype float32"
)
LEAST_TEMPERATURE = 1e-4  # of sampling: scores over less of it may leave float32
LEAST_PENALTY = 0.01  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn from logits; the defaults are greedy decoding.

    The settings have transformers' meaning and apply in the order of `sampling.py`. At temperature 0 only the
    repetition penalty matters.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # only the k largest scores stay; 0: all
    top_p: float = 1.0  # only the fewest tokens that together hold this probability stay; 1: all
    min_p: float = 0.0  # only tokens with this share of the best one's probability stay; 0: all
    repetition_penalty: float = 1.0  # takes from tokens of the text where above 1, favours them below; 1: off

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise RequestError(f"{name} must be a number, got {getattr(self, name)!r}")
        if self.temperature != 0.0 and not LEAST_TEMPERATURE <= self.temperature < 100.0:
            raise RequestError(
                f"temperature must be 0, or in [{LEAST_TEMPERATURE}, 100), got {self.temperature}; 0 is greedy"
            )
        require_whole("top_k", self.top_k, least=0, advice="; 0 keeps all tokens")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}; 1 keeps all tokens")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError(f"min_p must be in [0, 1], got {self.min_p}; 0 keeps all tokens")
        if not LEAST_PENALTY <= self.repetition_penalty < 100.0:
            raise RequestError(
                f"repetition_penalty must be in [{LEAST_PENALTY}, 100), got {self.repetition_penalty}; 1 is none"
            )

    @property
    def penalises(self) -> bool:
        """Whether a token's score depends on whether it is in the text."""
        return self.repetition_penalty != 1.0

    @property
    def masks(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def sole_temperature(self) -> float | None:
        """The temperature, where nothing else matters for a draw; else None."""
        return None if self.penalises or self.masks else self.temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Sampling):
    """One prompt to continue, and how its tokens are drawn."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    seed: int = 0  # keys the noise of every draw together with the position
    stop: frozenset[int] = frozenset()  # token ids that end the sequence
    images: tuple[Image, ...] = ()  # that the prompt's ids beyond every vocabulary stand for; none once they are shown

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if not self.prompt:
            raise RequestError("the prompt holds no token; give at least one")
        require_whole("max_new_tokens", self.max_new_tokens, least=1)
        require_seed(self.seed)


def require_whole(name: str, value: object, *, least: int, advice: str = "") -> None:
    """Raise RequestError unless a value is whole and large enough: others fail in mid-round, for the whole batch."""
    if type(value) is not int or value < least:
        raise RequestError(f"{name} must be a whole number of at least {least}, got {value!r}{advice}")


def require_text(name: str, text: str) -> None:
    """Raise RequestError where a text contains half a character, or bytes that were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise RequestError(f"{name} holds half a character, {half} alone; write the whole one") from None


def require_positions(requests: Iterable[Request], longest: int, remedy: str, why: str = "") -> None:
    """Raise RequestError unless all prompts and answers fit into a model's positions; `why` is in brackets."""
    needed = max(len(asked.prompt) + asked.max_new_tokens for asked in requests)
    if needed > longest:
        raise RequestError(f"prompt and new tokens need {needed} positions and the model has {longest}{why}; {remedy}")


def seed_behind(first: int, place: int) -> int:
    """Return the seed `place` requests after the first one's, wrapped to 64 bits."""
    return (first + place + 2**63) % 2**64 - 2**63


def require_seed(seed: object) -> None:
    """Raise RequestError unless a seed is a whole number of 64 bits."""
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        raise RequestError(f"the seed must be a whole number that fits into 64 bits, got {seed!r}; take another one")


def are_greedy(samplings: Iterable[Sampling]) -> bool:
    """Whether all of them take the best token of the model's own scores."""
    return all(s.temperature == 0.0 and not s.penalises for s in samplings)


@dataclass(slots=True)
class Sequence:
    """A request being decoded: its committed tokens, of which the last is not in the target's cache yet."""

    request: Request
    index: int  # place in the caller's list
    tokens: list[int] = field(default_factory=list)  # prompt, then what was emitted
    temperature: float | None = field(init=False, repr=False, compare=False)  # the request's `sole_temperature`
    cached: int = field(default=0, init=False)  # tokens of the prompt that lay in the engine's slots already
    lossy: list[int] = field(default_factory=list, init=False)  # places among the emitted that only a lossy rule let be
    _known: dict[int, None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _counted: int = field(default=0, init=False, repr=False, compare=False)  # tokens that _known holds

    def __post_init__(self) -> None:
        if self.request.images:
            raise RequestError("the request's images were not shown to its target; pass it through ImageCache.shown")
        self.tokens = list(self.request.prompt)
        self.temperature = self.request.sole_temperature

    @property
    def context(self) -> int:
        """Tokens in the target's cache: all but the pending last one."""
        return len(self.tokens) - 1

    @property
    def emitted(self) -> list[int]:
        """Tokens decoded so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def left(self) -> int:
        """Tokens that it may still emit."""
        return self.request.max_new_tokens - (len(self.tokens) - len(self.request.prompt))

    @property
    def is_stopped(self) -> bool:
        """Whether the newest token is an emitted stop token."""
        return len(self.tokens) > len(self.request.prompt) and self.tokens[-1] in self.request.stop

    @property
    def is_finished(self) -> bool:
        """Whether a stop token was emitted or the limit is reached."""
        return self.left <= 0 or self.is_stopped

    def commit(self, drawn: list[int], lossy: Collection[int] = ()) -> int:
        """Append drawn tokens up to the limit or a stop token; return how many; ModelError for ids below 0."""
        if drawn and min(drawn) < 0:
            raise ModelError(NO_NUMBERS)
        request = self.request
        stop, first = request.stop, len(self.tokens) - len(request.prompt)
        kept = 0 if self.is_stopped else max(min(len(drawn), request.max_new_tokens - first), 0)
        if not stop.isdisjoint(drawn):
            kept = next((place + 1 for place in range(kept) if drawn[place] in stop), kept)
        self.tokens += drawn[:kept]
        if lossy:
            self.lossy += [first + place for place in lossy if place < kept]
        return kept

    def distinct(self) -> Collection[int]:
        """Return every token of the text once, in order of appearance, reading only tokens since the last call."""
        self._known.update(dict.fromkeys(self.tokens[self._counted :]))
        self._counted = len(self.tokens)
        return self._known


def shared_temperature(batch: Many[Sequence]) -> float | None:
    """Return the only temperature of a non-empty batch; None where they differ or other settings matter."""
    first = batch[0].temperature
    for each in batch:
        if each.temperature != first:
            return None
    return first
