"""The texts of a batch draft by one call what each drafts by itself, whoever joins, moves and leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.strategies import texts as texts_module
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.text import TextPolicy, batch_of
from spectune.planner.strategies.texts import Texts, TextState
from spectune.runtime.batch.faults import require_sound

POLICIES: tuple[TextPolicy, ...] = (
    LookupPolicy(length=3, max_ngram=3),
    LookupPolicy(length=5, max_ngram=2, min_ngram=2, occurrence="first"),
    SuffixPolicy(length=4, min_match=2),
    SuffixPolicy(length=6, min_match=1, factor=2, offset=1, occurrence="last"),
    SuffixTreePolicy(nodes=6),
    SuffixTreePolicy(nodes=4, factor=1, offset=1, least_chance=0.3),
    SuffixTreePolicy(nodes=7, factor=4, min_match=2, least_score=1.2),
    CachebackPolicy(nodes=7),
)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def assert_same(found: DraftBatch, expected: DraftBatch) -> None:
    for name in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        assert getattr(found, name).flags.c_contiguous
    assert found.widths == ()


@pytest.mark.parametrize("room", [4, 256])
@settings(max_examples=60)
@given(data=st.data())
def test_they_draft_what_each_drafts_by_itself(room: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "FIRST_ROOM", room)
        together = Texts()
    states, committed = list[TextState](), list[list[int]]()
    for _ in range(data.draw(st.integers(1, 12))):
        if not states or (len(states) < 4 and data.draw(st.booleans())):
            together.admit(len(states))
            states.append(TextState())
            committed.append(data.draw(TOKENS))
        elif len(states) > 1 and data.draw(st.integers(0, 3)) == 0:  # one leaves, the last takes its slot
            slot, last = data.draw(st.integers(0, len(states) - 1)), len(states) - 1
            if slot != last:
                together.move(last, slot)
                states[slot], committed[slot] = states[last], committed[last]
            states.pop()
            committed.pop()
        policy = data.draw(st.sampled_from(POLICIES))
        expected = [state.draft(text, policy) for state, text in zip(states, committed, strict=True)]
        found = together.draft(committed, policy)
        assert_same(found, batch_of(expected))
        require_sound(replace(found, is_sound=False), len(committed), vocabulary=4, most=policy.max_verify_tokens)
        committed = [[*text, *data.draw(st.lists(st.integers(0, 3), max_size=5))] for text in committed]


def test_a_slot_that_is_taken_again_knows_nothing_of_its_former_text() -> None:
    for policy in POLICIES:
        together = Texts()
        together.admit(0)
        together.draft([[1, 2, 3, 1, 2, 3, 1, 2]], policy)
        together.admit(0)
        (expected,) = [TextState().draft([1, 2], policy)]
        assert_same(together.draft([[1, 2]], policy), batch_of([expected]))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_move_that_is_asked_for_again_moves_nothing_back(policy: TextPolicy) -> None:
    together, stays, moves = Texts(), [7, 8, 7, 8, 7], [1, 2, 3, 1, 2, 3, 1]
    for slot in range(3):
        together.admit(slot)
    together.draft([stays, [4, 5, 4, 5, 4], moves], policy)
    for _ in range(2):
        together.move(2, 1)
    expected = [TextState().draft(text, policy) for text in (stays, [*moves, 2])]
    assert_same(together.draft([stays, [*moves, 2]], policy), batch_of(expected))
    together.admit(2)
    expected.append(TextState().draft([9, 9], policy))
    assert_same(together.draft([stays, [*moves, 2], [9, 9]], policy), batch_of(expected))


def test_parts_of_images_are_passed_over() -> None:
    text = [1, 2, IMAGE_IDS, IMAGE_IDS + 7, 3, 1, 2]
    for policy in POLICIES:
        together = Texts()
        together.admit(0)
        together.draft([text[:4]], policy)
        expected = TextState().draft([1, 2, 3, 1, 2], policy)
        assert_same(together.draft([text], policy), batch_of([expected]))


def test_what_is_drafted_is_not_written_to_later() -> None:
    together, policy = Texts(), SuffixPolicy(length=4, min_match=1)
    for slot in range(2):
        together.admit(slot)
    first = together.draft([[1, 2, 1], [5, 6, 5]], policy)
    kept = first.tokens.copy()
    together.draft([[1, 2, 1, 2], [5, 6, 5, 6]], policy)
    assert np.array_equal(first.tokens, kept) and kept[:, 1].tolist() == [2, 6]


def test_a_search_in_an_engines_memory_is_refused_and_changes_nothing() -> None:
    together, mine = Texts(), LookupPolicy(length=3)
    together.admit(0)
    with pytest.raises(PlanError):
        together.draft([[1, 2, 1]], replace(mine, occurrence="mapped"))
    assert_same(together.draft([[1, 2, 1]], mine), batch_of([TextState().draft([1, 2, 1], mine)]))


@pytest.mark.parametrize("policy", POLICIES[:6], ids=str)
def test_texts_that_are_long_are_searched_one_by_one(policy: TextPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "TOGETHER", 12)
    together, states = Texts(), [TextState(), TextState()]
    for slot in range(2):
        together.admit(slot)
    committed = [[1, 2, 3] * 2, [5, 6] * 2]
    for new in ([1, 2], [3, 1, 2], [3, 1, 2], [3]):
        expected = [state.draft(text, policy) for state, text in zip(states, committed, strict=True)]
        assert_same(together.draft(committed, policy), batch_of(expected))
        committed = [[*committed[0], *new], [*committed[1], 5]]
    assert len(committed[0]) > 12
    together.admit(0)  # another, short text
    committed[0], states[0] = [4, 4, 4], TextState()
    expected = [state.draft(text, policy) for state, text in zip(states, committed, strict=True)]
    assert_same(together.draft(committed, policy), batch_of(expected))


@pytest.mark.parametrize("policy", POLICIES[:6], ids=str)
@pytest.mark.parametrize("where", ["empty", "tile"])
def test_memory_that_is_short_once_costs_one_draft(
    policy: TextPolicy, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "FIRST_ROOM", 8)
    together, text = Texts(), [1, 2, 3, 1, 2]
    together.admit(0)
    together.draft([text], policy)
    longer = [*text, 3, 1, 2, 3, 1, 2]
    with monkeypatch.context() as patch:

        def short(*told: object, **more: object) -> None:
            raise MemoryError("no room")

        patch.setattr(np, where, short)
        with pytest.raises(MemoryError):
            together.draft([longer], policy)
    assert_same(together.draft([longer], policy), batch_of([TextState().draft(longer, policy)]))
