"""The parts that trees on a device are grown of: order, layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from spectune.errors import RequestError
from spectune.planner.records.ops import NumpyOps
from spectune.runtime.growth.grow import TorchOps
from spectune.runtime.growth.layout import LayerLayout
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import lay_out

CPU = torch.device("cpu")


@pytest.mark.parametrize("candidates", [1, 7, 511, 2000])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_candidates_of_one_score_stand_in_recorded_order(candidates: int, levels: int) -> None:
    draws = np.random.default_rng(candidates).integers(0, levels, (3, candidates))
    scores = np.where(draws == 0, -np.inf, -draws / 7).astype(np.float32)
    for count in (1, 5, 60):
        expected = NumpyOps(3).best(scores, count)
        assert np.array_equal(TorchOps(3, CPU).best(torch.from_numpy(scores), count).numpy(), expected)


def layout(
    contexts: list[int], *, compact: int | None = None, capacity: int = 64, step: int | None = None
) -> LayerLayout:
    """Return a layout with masks, or with trees and multiples of `step` positions in sight."""
    cache = KeyValueCache(layers=1, slots=len(contexts), capacity=capacity, width=1, dtype=torch.float32, device=CPU)
    return LayerLayout(
        contexts,
        cache,
        dtype=torch.float32,
        device=CPU,
        compact=compact,
        seen_in=multiples_of(step),
    )


def multiples_of(step: int | None) -> Callable[[int], int] | None:
    return None if step is None else lambda positions: -(-positions // step) * step


def drawn_layers(seed: int, batch: int, widths: list[int]) -> list[np.ndarray]:
    """Return the parents of every layer, (batch, width) each."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, above, (batch, width)) for above, width in zip([1, *widths], widths, strict=False)]


def ancestors_in(layers: list[np.ndarray], row: int, depth: int, slot: int) -> list[tuple[int, int]]:
    """Return (layer, slot) of a node and of all above it."""
    own = [(depth, slot)]
    while depth:
        depth, slot = depth - 1, int(layers[depth][row, slot])
        own.append((depth, slot))
    return own


@pytest.mark.parametrize("contexts", [[5], [4, 4, 4], [3, 9, 1]])
@pytest.mark.parametrize("widths", [[1, 1, 1], [3, 1, 2], [2, 5, 5, 4]])
@pytest.mark.parametrize("step", [None, 1, 16])
def test_layers_are_laid_out_as_the_host_lays_them_out(
    contexts: list[int], widths: list[int], step: int | None
) -> None:
    mine, batch = layout(contexts, step=step), len(contexts)
    layers = drawn_layers(3, batch, widths)
    starts = np.cumsum([0, *widths])
    for depth, parents in enumerate(layers):
        visible = np.zeros((batch, widths[depth], starts[depth + 1]), dtype=np.bool_)
        for row, slot in np.ndindex(batch, widths[depth]):
            for layer, place in ancestors_in(layers, row, depth, slot):
                visible[row, slot, starts[layer] + place] = True
        tokens = np.random.default_rng(depth).integers(0, 9, parents.shape)
        theirs = lay_out(
            tokens,
            np.full(widths[depth], depth),
            contexts,
            visible,
            written=int(starts[depth]),
            dtype=torch.float32,
            device=CPU,
            seen_in=multiples_of(step),
        )
        assert_same_input(mine.layer(torch.from_numpy(tokens), torch.from_numpy(parents)), theirs)


def assert_same_input(mine: ForwardInput, theirs: ForwardInput) -> None:
    assert mine.seen == theirs.seen and mine.signature == theirs.signature
    for field in ("tokens", "positions", "columns"):
        assert torch.equal(getattr(mine, field), getattr(theirs, field)), field
    assert (mine.bias is None, mine.tree is None) == (theirs.bias is None, theirs.tree is None)
    assert mine.bias is None or (theirs.bias is not None and torch.equal(mine.bias, theirs.bias))
    if mine.tree is not None and theirs.tree is not None:
        assert torch.equal(mine.tree.starts, theirs.tree.starts) and torch.equal(mine.tree.bits, theirs.tree.bits)


def test_in_a_compact_layout_the_nodes_of_a_row_lie_side_by_side() -> None:
    mine = layout([4, 6], compact=5)
    parents = [[[0, 0, -1], [0, -1, -1]], [[0, 1, 1], [0, -1, -1]]]
    steps = [mine.layer(torch.zeros(2, 3, dtype=torch.int64), torch.tensor(rows)) for rows in parents]
    assert steps[0].columns.tolist() == [[4, 5, 7], [6, 9, 9]]  # the last of them hold no node
    assert steps[1].columns.tolist() == [[6, 7, 8], [7, 11, 11]]
    assert steps[1].seen == 6 + 5


@pytest.mark.parametrize("step", [None, 16])
def test_in_a_compact_layout_a_node_sees_its_context_its_ancestors_and_itself(step: int | None) -> None:
    mine = layout([4, 6], compact=5, step=step)
    for rows in ([[0, 0, -1], [0, -1, -1]], [[0, 1, 1], [0, -1, -1]]):
        last = mine.layer(torch.zeros(2, 3, dtype=torch.int64), torch.tensor(rows))
    bias = last.bias if last.tree is None else last.tree.bias(last.seen, torch.float32)
    assert bias is not None
    seen = [[torch.nonzero(node == 0).flatten().tolist() for node in row] for row in bias]
    assert [nodes[4:] for nodes in seen[0]] == [[4, 6], [5, 7], [5, 8]]
    assert seen[1][0][6:] == [6, 7]
    assert {nodes[0] for row in seen for nodes in row} == {0}  # a slot without a node sees something, too


def test_layers_that_do_not_fit_into_the_cache_are_refused() -> None:
    mine = layout([6], capacity=8)
    with pytest.raises(RequestError, match="room for 9 tokens and the cache holds 8"):
        mine.layer(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))
