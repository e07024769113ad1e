"""Prompts cut to the length that an engine is to read."""

from __future__ import annotations

from collections.abc import Sequence


def cut_prompts(texts: Sequence[str], encoded: Sequence[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """Return the last tokens of prompts, behind the one that begins every text where the engine writes one.

    An engine does not say which that is. It is the first of all prompts where these begin with different characters.

    Args:
        texts: the prompts.
        encoded: their tokens as the engine reads them.
        most: tokens to be kept of each.
    """
    firsts = {tokens[0] for tokens in encoded if tokens}
    begins = most > 1 and len(firsts) == 1 and len({text[:1] for text in texts}) > 1
    return [
        (tokens[0], *tokens[len(tokens) - most + 1 :]) if begins and len(tokens) > most else tokens[-most:]
        for tokens in encoded
    ]
