"""What a caller asks for, and what one sequence of the running batch has become."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0  # 0 is greedy
    seed: int = 0  # keys the noise of every draw together with the position
    stop: frozenset[int] = frozenset()  # token ids that end the sequence

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt holds no token; give at least one")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0.0 <= self.temperature < 100.0:
            raise RequestError(f"temperature must be in [0, 100), got {self.temperature}")
        if not -(2**63) <= self.seed < 2**63:
            raise RequestError(f"the seed must fit into 64 bits, got {self.seed}; take a smaller one")


@dataclass(slots=True)
class Sequence:
    """A request being decoded: its committed tokens, the last of them not in the target's cache yet."""

    request: Request
    index: int  # place in the caller's list
    tokens: list[int] = field(default_factory=list)  # prompt, then what was emitted

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def context(self) -> int:
        """Tokens in the target's cache: all but the pending last one."""
        return len(self.tokens) - 1

    @property
    def emitted(self) -> list[int]:
        """Tokens decoded so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def is_finished(self) -> bool:
        """Whether a stop token was emitted or the limit is reached."""
        emitted = len(self.tokens) - len(self.request.prompt)
        return emitted >= self.request.max_new_tokens or (emitted > 0 and self.tokens[-1] in self.request.stop)

    def commit(self, drawn: list[int]) -> int:
        """Append drawn tokens up to the limit or the first stop token; return how many were kept."""
        kept = 0
        for token in drawn:
            if self.is_finished:
                break
            self.tokens.append(token)
            kept += 1
        return kept
