"""What a surface is asked to answer, and where measuring begins."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spectune.errors import MeasurementError
from spectune.profiler.domain import Domain, doublings

DOMAIN = Domain(batches=(1, 8), contexts=(16, 100, 400), most_tokens=20)


def test_doublings_end_with_the_most() -> None:
    assert (doublings(1, 20), doublings(1, 16), doublings(3, 3)) == ([1, 2, 4, 8, 16, 20], [1, 2, 4, 8, 16], [3])


def test_the_first_points_reach_every_corner_of_the_domain() -> None:
    corners = {(b, c, n) for b in (1, 8) for c in (16, 400) for n in (1, 20)}
    assert corners <= set(DOMAIN.coarse())


def test_the_reference_context_has_the_most_first_points() -> None:
    counts = {c: sum(shape[:2] == (1, c) for shape in DOMAIN.coarse()) for c in DOMAIN.contexts}
    assert max(counts, key=lambda c: counts[c]) == DOMAIN.reference_context == 100


@pytest.mark.parametrize(
    ("batch", "edges"),
    [
        (1, [16, 17, 32, 33, 48, 49]),
        (3, [5, 6, 10, 11, 16, 17]),
        (4, [4, 5, 8, 9, 12, 13]),
        (8, [2, 3, 4, 5, 6, 7]),
        (32, [1, 2]),
    ],
)
def test_both_sides_of_the_first_edges_of_tiles_are_among_the_first_points(batch: int, edges: list[int]) -> None:
    domain = Domain(batches=(batch,), contexts=(0, 50), most_tokens=64, tile_rows=16)
    assert domain.edges(batch) == edges
    assert {(batch, domain.reference_context, tokens) for tokens in edges} <= set(domain.coarse())
    assert not replace(domain, tile_rows=0).edges(batch)


@pytest.mark.parametrize(("least", "most", "edges"), [(1, 16, []), (1, 17, [16, 17]), (17, 40, [32, 33])])
def test_edges_outside_a_domain_are_none_of_its_points(least: int, most: int, edges: list[int]) -> None:
    domain = Domain(batches=(1,), contexts=(0,), least_tokens=least, most_tokens=most, tile_rows=16)
    assert domain.edges(1) == edges


def test_drawn_shapes_lie_inside_and_are_not_among_the_first_points() -> None:
    drawn = DOMAIN.draw(40, random.Random(0))
    assert len(set(drawn)) == 40 and all(DOMAIN.holds(shape) for shape in drawn)
    assert not set(drawn) & set(DOMAIN.coarse())


def test_drawn_shapes_are_shared_out_among_the_batches() -> None:
    assert [shape[0] for shape in DOMAIN.draw(6, random.Random(1))] == [1, 8] * 3


def test_a_domain_of_first_points_alone_draws_what_there_is() -> None:
    assert Domain(batches=(1,), contexts=(0,), most_tokens=2).draw(5, random.Random(0)) == []


@pytest.mark.parametrize(
    "fault", [{"batches": ()}, {"batches": (8, 1)}, {"contexts": (5, 5)}, {"most_tokens": 0}, {"contexts": (-1,)}]
)
def test_a_domain_out_of_order_or_empty_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        Domain(**({"batches": (1,), "contexts": (0,), "most_tokens": 4} | fault))  # type: ignore[arg-type]
