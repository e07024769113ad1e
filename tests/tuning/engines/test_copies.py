"""What n-gram drafts would yield, by the words of answers."""

from __future__ import annotations

import pytest

from spectune.tuning.engines.copies import LENGTH, SCREEN, mean_tokens_per_round, tokens_per_round

SENTENCE = "the quick brown fox jumps over the lazy dog and runs far away from here"


def test_a_text_that_repeats_its_prompt_is_copied() -> None:
    words = 2 * len(SENTENCE.split()) - 1  # blanks count
    copied = tokens_per_round(SENTENCE, SENTENCE)
    rounds = 3 + -(-(words - 3) // (LENGTH + 1))  # the first n-gram must be written before it is found
    assert copied == pytest.approx(words / rounds, rel=0.15)


def test_a_text_of_new_words_is_not() -> None:
    assert tokens_per_round("", " ".join(f"word{number}" for number in range(50))) == 1.0
    assert mean_tokens_per_round([("a", "one two three four five six seven")]) < SCREEN
    assert tokens_per_round(SENTENCE, "") == 1.0


def test_the_mean_is_over_answers() -> None:
    alone = tokens_per_round(SENTENCE, SENTENCE)
    assert mean_tokens_per_round([(SENTENCE, SENTENCE), ("", "other words")]) == pytest.approx((alone + 1.0) / 2.0)
    assert mean_tokens_per_round([]) == 0.0
