"""The key-value cache: keeping a path, moving a slot, refusing what does not fit."""

from __future__ import annotations

import pytest
import torch

from spectune.errors import RequestError
from spectune.runtime.models.kv_cache import KeyValueCache


def numbered() -> KeyValueCache:
    """Return 2 layers, 3 slots, 10 positions; the state at (layer, slot, position) is 100 l + 10 s + p."""
    cache = KeyValueCache(layers=2, slots=3, capacity=10, width=1, dtype=torch.float64, device=torch.device("cpu"))
    cache.states.copy_(torch.arange(60.0).view(2, 3, 10, 1) + torch.tensor([0.0, 70.0]).view(2, 1, 1, 1))
    return cache


def row(cache: KeyValueCache, layer: int, slot: int) -> list[float]:
    states: list[float] = cache.states[layer, slot, :, 0].tolist()
    return states


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([0], [12, 13, 14, 15]),  # nothing moves
        ([0, 1, 2], [12, 13, 14, 15]),  # a chain is in place
        ([0, 2], [12, 14, 14, 15]),
        ([0, 1, 3], [12, 13, 15, 15]),
        ([0, 2, 3], [12, 14, 15, 15]),  # the target of one move is the source of none
        ([0, 3, 5, 7], [12, 15, 17, 19]),
    ],
)
def test_the_kept_nodes_stand_behind_the_context_in_order(nodes: list[int], kept: list[int]) -> None:
    cache = numbered()
    cache.keep([(1, 2, nodes)])
    assert row(cache, 0, 1)[2:6] == kept
    assert row(cache, 1, 1)[2:6] == [100 + state for state in kept]


def test_keeping_leaves_context_and_neighbours_alone() -> None:
    cache, before = numbered(), numbered()
    cache.keep([(1, 2, [0, 3, 5])])
    assert torch.equal(cache.states[:, [0, 2]], before.states[:, [0, 2]])
    assert torch.equal(cache.states[:, 1, :2], before.states[:, 1, :2])


def test_moving_a_slot_copies_its_tokens_in_every_layer_and_no_more() -> None:
    cache = numbered()
    cache.move_slot(2, 0, 4)
    assert row(cache, 0, 0) == [20, 21, 22, 23, 4, 5, 6, 7, 8, 9]
    assert row(cache, 1, 0) == [120, 121, 122, 123, 104, 105, 106, 107, 108, 109]


def test_spreading_copies_the_first_slot_over_the_others() -> None:
    cache = numbered()
    cache.spread(2, 3)
    assert row(cache, 1, 1)[:4] == [100, 101, 102, 113]
    assert row(cache, 1, 2)[:3] == [120, 121, 122]


def test_a_sequence_as_long_as_the_capacity_fits() -> None:
    numbered().require(10)


def test_a_longer_sequence_is_refused_with_both_lengths() -> None:
    with pytest.raises(RequestError, match="room for 11 tokens and the cache holds 10"):
        numbered().require(11)
