"""Prompts cut to the length that an engine is to read, and whether its target has room for them and their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...engines.measured import EngineFacts
from ...runtime.batch.sequence import Request, require_positions

PROBES = ("a", "7")  # texts with no character in common: what both begin with, every text does

Encode = Callable[[Sequence[str]], list[tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Prompts as token ids; `begin` is the start token where the engine's encoder writes one, () where it does not."""

    whole: tuple[tuple[int, ...], ...]
    begin: tuple[int, ...]

    def cut(self, most: int) -> tuple[tuple[int, ...], ...]:
        """Return the last `most` tokens of each prompt, behind the start token."""
        return tuple(_cut(tokens, most, self.begin) for tokens in self.whole)


def encoded(encode: Encode, texts: Sequence[str]) -> Encoded:
    """Return texts in tokens; the engine's encoder is called once."""
    *found, first, second = encode([*texts, *PROBES])
    return Encoded(whole=tuple(found), begin=first[:1] if first[:1] == second[:1] else ())


def require_room(facts: EngineFacts, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> None:
    """Raise RequestError for texts beyond the target's known positions: engines end them early, or write nonsense."""
    if facts.positions is not None:
        asked = [Request(prompt=prompt, max_new_tokens=new_tokens) for prompt in prompts]
        require_positions(asked, facts.positions, "lower --max-new-tokens or --max-prompt-tokens")


def _cut(tokens: tuple[int, ...], most: int, begin: tuple[int, ...]) -> tuple[int, ...]:
    if len(tokens) <= most:
        return tokens
    if begin and most > 1 and tokens[:1] == begin:
        return *begin, *tokens[len(tokens) - most + 1 :]
    return tokens[-most:]
