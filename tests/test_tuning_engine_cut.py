"""Long prompts for engines: their ends, behind the token that begins every text."""

from __future__ import annotations

import pytest

from spectune.tuning.engines.cut import cut_prompts

BEGIN = 1


@pytest.mark.parametrize(
    ("texts", "encoded", "most", "kept"),
    [
        (("ab", "cd"), [(BEGIN, 5, 6, 7), (BEGIN, 8, 9)], 3, [(BEGIN, 6, 7), (BEGIN, 8, 9)]),
        (("ab", "cd"), [(4, 5, 6, 7), (3, 8, 9)], 3, [(5, 6, 7), (3, 8, 9)]),  # nothing begins these
        (("ab", "ac"), [(4, 5, 6, 7), (4, 8, 9)], 2, [(6, 7), (8, 9)]),  # both may begin with the same word
        (("ab", "cd"), [(BEGIN, 5, 6), (BEGIN, 8, 9)], 1, [(6,), (9,)]),
    ],
)
def test_the_end_of_a_prompt_is_kept_and_what_begins_every_text(
    texts: tuple[str, ...], encoded: list[tuple[int, ...]], most: int, kept: list[tuple[int, ...]]
) -> None:
    assert cut_prompts(texts, encoded, most) == kept
