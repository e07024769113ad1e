"""Lookup of whole n-grams against a search written down word for word."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.engines.mapped_ngrams import whole_ngram_results
from spectune.planner.engines.walk import walk
from spectune.planner.records.recording import Text, rows_of

from ..support.simulated_engine import whole_ngram_draft


def texts() -> list[Text]:
    """Return random texts of few tokens, and loops of 1 to 6."""
    draw = np.random.default_rng(5)
    found = [tuple(draw.integers(0, most, size=60).tolist()) for most in (2, 3, 5, 40) for _ in range(4)]
    found += [tuple((list(range(period)) * 60)[:60]) for period in range(1, 7)]
    return [Text(prompt=tokens[:cut], continuation=tokens[cut:]) for tokens in found for cut in (1, 7, 30)]


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_every_position_drafts_what_the_search_finds(ngram: int) -> None:
    lengths = [1, 2, 4, 9]
    for policy, results in whole_ngram_results(texts(), ngram, lengths):
        row = 0
        for text in texts():
            whole = [*text.prompt, *text.continuation]
            for end in range(len(text.prompt) + 1, len(whole)):
                drafted = whole_ngram_draft(whole[:end], ngram, policy.length)
                ahead = whole[end : end + len(drafted)]
                right = next((i for i, token in enumerate(ahead) if token != drafted[i]), len(ahead))
                assert (results.sizes[row] - 1, results.accepted[row]) == (len(drafted), right)
                row += 1
            assert (results.sizes[row], results.accepted[row]) == (1, 0)
            row += 1
        assert row == len(results.sizes)


@pytest.mark.parametrize(("period", "rounds"), [(1, 58), (2, 58), (3, 28)])
def test_a_loop_of_no_more_than_its_n_gram_gives_no_draft(period: int, rounds: int) -> None:
    """Bigrams: a loop of three tokens gives two that are right, from where the text is long enough."""
    tokens = tuple((list(range(period)) * 60)[:60])
    text = Text(prompt=tokens[:1], continuation=tokens[1:])
    ((_, results),) = whole_ngram_results([text], 2, [8])
    found = walk(results, rows_of([text]))
    assert int(found.rounds[0]) <= rounds and bool(found.drafted[0]) == (period > 2)


@pytest.mark.parametrize(("ngram", "length"), [(0, 4), (2, 0)])
def test_nothing_is_looked_for_or_copied_by_no_tokens(ngram: int, length: int) -> None:
    with pytest.raises(PlanError, match="1 token or more"):
        list(whole_ngram_results(texts(), ngram, [length]))
