"""Prompts cut to the length that an engine is to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PROBES = ("a", "7")  # texts with no character in common: what both begin with, every text does

Encode = Callable[[Sequence[str]], list[tuple[int, ...]]]


def cut_prompts(encode: Encode, texts: Sequence[str], most: int) -> list[tuple[int, ...]]:
    """Return the last tokens of prompts, behind the one that begins every text where the engine writes one.

    Args:
        encode: the engine's own, which does not say whether it writes one.
        texts: the prompts.
        most: tokens to be kept of each.
    """
    *encoded, first, second = encode([*texts, *PROBES])
    begin = first[:1] if first[:1] == second[:1] else ()
    return [_cut(tokens, most, begin) for tokens in encoded]


def _cut(tokens: tuple[int, ...], most: int, begin: tuple[int, ...]) -> tuple[int, ...]:
    if len(tokens) <= most:
        return tokens
    if begin and most > 1 and tokens[:1] == begin:
        return *begin, *tokens[len(tokens) - most + 1 :]
    return tokens[-most:]
