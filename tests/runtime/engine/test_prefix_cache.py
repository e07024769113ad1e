"""Which texts lie in slots: what is kept of them, where most of a prompt lies, and which make room."""

from __future__ import annotations

from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.runtime.engine.prefix_cache import LEAST, Prefix, PrefixCache

TEXT = list(range(100, 100 + 2 * LEAST))


def kept(*slots: int) -> PrefixCache:
    """Return a cache of texts in some slots, each of which begins with its slot's number."""
    texts = PrefixCache(is_on=True)
    for slot in slots:
        texts.keep(slot, [slot, *TEXT])
    return texts


def test_a_text_is_kept_up_to_its_first_image_and_only_where_it_is_long_enough() -> None:
    texts = PrefixCache(is_on=True)
    texts.keep(0, TEXT[: LEAST - 1])
    texts.keep(1, [*TEXT[:LEAST], IMAGE_IDS, *TEXT])
    texts.keep(2, [*TEXT[: LEAST - 1], IMAGE_IDS, *TEXT])
    assert [texts.length(slot) for slot in range(3)] == [0, LEAST, 0]


def test_nothing_is_kept_where_it_is_off() -> None:
    texts = PrefixCache(is_on=False)
    texts.keep(0, TEXT)
    assert texts.length(0) == 0 and texts.longest(TEXT, 0) is None and texts.refuge(0, [1]) is None


def test_a_text_that_has_grown_is_kept_whole() -> None:
    texts = kept(3)
    texts.keep(3, [3, *TEXT, 7, 8])
    assert texts.length(3) == len(TEXT) + 3
    assert texts.longest([3, *TEXT, 7, 9, 9], 0) == Prefix(slot=3, tokens=len(TEXT) + 2, is_all=False)


def test_the_longest_beginning_counts_and_of_equal_ones_the_slot_at_hand() -> None:
    texts = PrefixCache(is_on=True)
    for slot, length in ((0, LEAST), (1, LEAST + 2), (2, LEAST + 2)):
        texts.keep(slot, TEXT[:length])
    assert texts.longest(TEXT, 0) == Prefix(slot=1, tokens=LEAST + 2, is_all=True)
    assert texts.longest(TEXT, 2) == Prefix(slot=2, tokens=LEAST + 2, is_all=True)
    assert texts.longest(TEXT[: LEAST + 2], 2) == Prefix(slot=2, tokens=LEAST + 1, is_all=False)  # the last is read
    assert texts.longest(TEXT[:LEAST], 0) is None


def test_a_text_moves_to_an_empty_slot_the_last_of_them_else_to_that_of_the_oldest() -> None:
    texts = kept(0, 1, 2)
    assert texts.refuge(2, [1, 3, 4]) == 4
    assert texts.refuge(2, [0, 1]) == 0
    assert texts.refuge(0, [1, 2]) is None  # it is the oldest
    assert texts.refuge(0, []) is None and texts.refuge(5, [6]) is None


def test_a_text_that_has_moved_is_as_old_as_it_was() -> None:
    texts = kept(0, 1, 2)
    texts.moved(0, 2)
    assert [texts.length(slot) > 0 for slot in range(3)] == [False, True, True]
    assert texts.longest([0, *TEXT, 1], 5) == Prefix(slot=2, tokens=len(TEXT) + 1, is_all=True)
    assert texts.refuge(1, [2]) == 2
    texts.drop(2)
    assert texts.longest([0, *TEXT, 1], 5) is None
