"""Prompts cut to the length that an engine is to read, and whether its target has room for them and their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...runtime.batch.sequence import Request, require_positions
from ...runtime.engines.measured import EngineFacts

PROBES = ("a", "7")  # texts with no character in common: what both begin with, every text does

Encode = Callable[[Sequence[str]], list[tuple[int, ...]]]


def cut_prompts(encode: Encode, texts: Sequence[str], most: int) -> list[tuple[int, ...]]:
    """Return the last `most` tokens of each prompt, behind the start token where the engine's encoder writes one."""
    *encoded, first, second = encode([*texts, *PROBES])
    begin = first[:1] if first[:1] == second[:1] else ()
    return [_cut(tokens, most, begin) for tokens in encoded]


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
