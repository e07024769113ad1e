"""Long prompts for engines: their ends, behind the token that begins every text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spectune.tuning.engines.cut import encoded

BEGIN = 1


def beginning(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Tokenize by character behind a token of its own."""
    return [(BEGIN, *map(ord, text)) for text in texts]


def bare(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Tokenize by character."""
    return [tuple(map(ord, text)) for text in texts]


@pytest.mark.parametrize("texts", [("abcd", "xyz"), ("abcd", "abce"), ("abcd",)])  # they may all begin alike
def test_the_end_of_a_prompt_is_kept_and_what_begins_every_text(texts: tuple[str, ...]) -> None:
    assert encoded(beginning, texts).cut(3) == tuple((BEGIN, *map(ord, text[-2:])) for text in texts)
    assert encoded(bare, texts).cut(3) == tuple(tuple(map(ord, text[-3:])) for text in texts)


def test_one_token_is_the_last_and_short_prompts_are_whole() -> None:
    assert encoded(beginning, ["ab"]).cut(1) == ((ord("b"),),)
    assert encoded(beginning, ["ab"]).cut(3) == ((BEGIN, ord("a"), ord("b")),)
