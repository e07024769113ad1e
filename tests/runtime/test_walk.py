"""Acceptance: follow the target's draws down the draft."""

from __future__ import annotations

import pytest

from spectune.runtime.sampling.acceptance import accept

TREE = (-1, 0, 0, 1, 1, 2)
TOKENS = (-1, 5, 6, 7, 8, 7)


@pytest.mark.parametrize(
    ("draws", "nodes", "drawn"),
    [
        ([9, 0, 0, 0, 0, 0], [0], [9]),  # no child carries the draw
        ([5, 9, 0, 0, 0, 0], [0, 1], [5, 9]),
        ([6, 0, 7, 0, 0, 3], [0, 2, 5], [6, 7, 3]),  # the second child, its own child and a token more
        ([5, 8, 0, 0, 2, 0], [0, 1, 4], [5, 8, 2]),
        ([7, 0, 0, 1, 0, 1], [0], [7]),  # a match deeper down does not help
    ],
)
def test_the_draws_choose_the_path(draws: list[int], nodes: list[int], drawn: list[int]) -> None:
    path = accept(TOKENS, TREE, 6, draws)
    assert (path.nodes, path.drawn) == (nodes, drawn)


def test_acceptance_stops_at_the_first_mismatch() -> None:
    path = accept((-1, 5, 6, 7), (-1, 0, 1, 2), 4, [5, 9, 7, 8])
    assert path.drawn == [5, 9]


def test_padding_is_never_accepted() -> None:
    assert accept((-1, 5, 0, 0), (-1, 0, 0, 0), 2, [0, 0, 0, 0]).nodes == [0]


def test_the_root_alone_yields_its_draw() -> None:
    assert accept((-1,), (-1,), 1, [4]).drawn == [4]


def test_of_siblings_alike_the_last_goes_on() -> None:
    path = accept((-1, 5, 5, 7, 8), (-1, 0, 0, 1, 2), 5, [5, 7, 8, 0, 3])
    assert (path.nodes, path.drawn) == ([0, 2, 4], [5, 8, 3])


def test_a_sibling_behind_the_end_is_padding() -> None:
    assert accept((-1, 5, 6), (-1, 0, 0), 2, [6, 0, 0]).nodes == [0]
