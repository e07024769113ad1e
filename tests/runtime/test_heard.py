"""What a device says of a round, read by one call: what checking, walking and committing by themselves find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import ModelError
from spectune.planner.kernels.arrays import Ints
from spectune.runtime.backends.device_state import Told
from spectune.runtime.batch.faults import require_sound
from spectune.runtime.sampling.acceptance import accepted_of

VOCABULARY = 5


@st.composite
def records(draw: st.DrawFn) -> tuple[Ints, int]:
    """Return a record of trees, and the nodes of each with its padding."""
    batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    tokens, depths, parents = (np.full((batch, nodes), fill) for fill in (-1, 1, 0))
    sizes = np.array([draw(st.integers(1, nodes)) for _ in range(batch)])
    parents[:, 0], depths[:, 0] = -1, 0
    for row in range(batch):
        for node in range(1, sizes[row]):
            parents[row, node] = draw(st.integers(0, node - 1))
            depths[row, node] = depths[row, parents[row, node]] + 1
            tokens[row, node] = draw(st.integers(0, VOCABULARY - 1))
    best = np.array([[draw(st.integers(0, VOCABULARY - 1)) for _ in range(nodes + 2)] for _ in range(batch)])
    ends = np.zeros((batch, 1), dtype=np.int64)
    return np.concatenate((tokens, parents, depths, sizes[:, None], best, ends), axis=1).astype(np.int64), nodes


def told(record: Ints, nodes: int) -> Told:
    best = record[:, 3 * nodes + 1 : -1]
    ends = record[:, -1].tolist()
    return Told(record=record, nodes=nodes, widths=(), best=best, ends=ends, draft_ms=0.0, verify_ms=0.0)


@given(records())
def test_what_stands_is_the_path_that_is_accepted(given_: tuple[Ints, int]) -> None:
    one = told(*given_)
    drawn = one.standing(given_[1], VOCABULARY)
    assert drawn is not None
    paths = accepted_of(one.best, one.draft).paths
    assert [row[1 : row[0] + 1] for row in drawn.tolist()] == [path.drawn for path in paths]


@given(records(), st.integers(0, 10**6), st.integers(-2, 9), st.integers(1, 8))
def test_whatever_is_wrong_with_a_tree_it_is_found_as_checking_finds_it(
    given_: tuple[Ints, int], place: int, number: int, most: int
) -> None:
    record, nodes = given_
    wrong = record.copy()
    wrong.reshape(len(record), -1)[place % len(record), place % (3 * nodes + 1)] = number
    one = told(wrong, nodes)
    sizes = wrong[:, 3 * nodes]
    is_sound = bool((sizes >= 1).all() and (sizes <= nodes).all())  # else no draft can be cut to its size
    if is_sound:
        try:
            require_sound(one.draft, len(record), VOCABULARY, most)
        except ModelError:
            is_sound = False
    assert (one.standing(most, VOCABULARY) is not None) == is_sound


@pytest.mark.parametrize("size", [0, 4])
def test_a_size_that_no_tree_has_is_found(size: int) -> None:
    record = np.array([[-1, 2, 3, -1, 0, 0, 0, 1, 1, size, 2, 2, 2, 9]])
    assert told(record, 3).standing(3, VOCABULARY) is None
