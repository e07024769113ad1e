"""Acceptance on the device finds the paths that the host finds, and moves what the host would move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.kernels.arrays import Ints
from spectune.runtime.backends.device_acceptance import accepted_nodes, ancestors_of, path_of
from spectune.runtime.backends.device_state import BatchState
from spectune.runtime.growth.layout import tree_bits
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import _bits_of, ancestors
from spectune.runtime.sampling.acceptance import accept

from ...support.host_reads import NoHostReads

CPU = torch.device("cpu")
BATCH, NODES, VOCABULARY = 4, 9, 3


def drawn_trees(seed: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return tokens, parents and depths (batch, n) of random trees with padding, and what is best behind each node."""
    draws = np.random.default_rng(seed)
    tokens, parents, depths = (np.zeros((BATCH, NODES), dtype=np.int64) for _ in range(3))
    tokens[:], parents[:, 0] = -1, -1
    for row in range(BATCH):
        drawn: set[tuple[int, int]] = set()
        for node in range(1, int(draws.integers(1, NODES + 1))):
            parent, token = int(draws.integers(0, node)), int(draws.integers(0, VOCABULARY))
            while (parent, token) in drawn:
                parent, token = int(draws.integers(0, node)), int(draws.integers(0, VOCABULARY))
            drawn.add((parent, token))
            tokens[row, node], parents[row, node], depths[row, node] = token, parent, depths[row, parent] + 1
    return tokens, parents, depths, draws.integers(0, VOCABULARY, (BATCH, NODES))


def on_host(tokens: Ints, parents: Ints, best: Ints) -> list[list[int]]:
    sizes = (tokens >= 0).sum(axis=1) + 1
    rows = zip(tokens.tolist(), parents.tolist(), sizes.tolist(), best.tolist(), strict=True)
    return [accept(*row).nodes for row in rows]


def accepted(tokens: Ints, parents: Ints, best: Ints) -> Tensor:
    sees = torch.from_numpy(ancestors(parents))
    return accepted_nodes(torch.from_numpy(tokens), torch.from_numpy(parents), sees, torch.from_numpy(best))


@pytest.mark.parametrize("seed", range(20))
def test_what_nodes_see_is_what_the_host_lays_out(seed: int) -> None:
    _, parents, depths, _ = drawn_trees(seed)
    with NoHostReads():
        sees = ancestors_of(torch.from_numpy(parents), int(depths.max()))
        bits = tree_bits(sees)
    assert (sees.numpy() == ancestors(parents)).all()
    assert (bits.numpy() == _bits_of(ancestors(parents), BATCH)).all()


def test_what_the_nodes_of_a_chain_see_is_found_at_every_depth() -> None:
    for nodes in range(1, 20):
        parents = torch.arange(-1, nodes - 1).unsqueeze(0)
        assert (ancestors_of(parents, nodes - 1).numpy() == np.tri(nodes, dtype=np.bool_)).all()


@pytest.mark.parametrize("seed", range(40))
def test_the_path_is_the_one_that_the_host_walks(seed: int) -> None:
    tokens, parents, depths, best = drawn_trees(seed)
    deepest = NODES - 1
    with NoHostReads():
        is_accepted = accepted(tokens, parents, best)
        path = path_of(is_accepted, torch.from_numpy(depths), deepest)
    for row, nodes in enumerate(on_host(tokens, parents, best)):
        kept = int(is_accepted[row].sum())
        assert path[row, :kept].tolist() == nodes
        assert path[row, kept:].tolist() == list(range(kept, deepest + 1))


def test_some_of_these_paths_are_long_and_some_are_not() -> None:
    lengths = {
        len(nodes) for seed in range(40) for tokens, parents, _, best in [drawn_trees(seed)]
        for nodes in on_host(tokens, parents, best)
    }  # fmt: skip
    assert {1, 2, 3} <= lengths


@pytest.mark.parametrize("seed", range(10))
def test_what_is_moved_on_the_device_is_what_the_host_would_move(seed: int) -> None:
    tokens, parents, depths, best = drawn_trees(seed)
    caches = [
        KeyValueCache(layers=2, slots=BATCH + 1, capacity=20, width=3, dtype=torch.float32, device=CPU)
        for _ in range(2)
    ]
    torch.manual_seed(seed)
    caches[0].states.normal_()
    caches[1].states.copy_(caches[0].states)
    starts = [5, 0, 11, 3]
    caches[0].keep(zip(range(BATCH), starts, on_host(tokens, parents, best), strict=True))
    is_accepted = accepted(tokens, parents, best)
    path = path_of(is_accepted, torch.from_numpy(depths), NODES - 1)
    caches[1].keep_paths(torch.tensor(starts), path)
    assert torch.equal(caches[0].states, caches[1].states)


def test_a_state_goes_on_behind_what_was_emitted_and_stays_where_it_is_at_rest() -> None:
    state = BatchState(2, 3, CPU)
    state.put([7, 4], [[11], [12, 13]])
    assert state.newest.tolist() == [[11], [13]]
    counts, drawn = torch.tensor([3, 1]), torch.tensor([[1, 2, 3], [4, 0, 0]])
    with state.at_rest():
        state.advance(state.starts, counts, drawn)
    assert state.starts.tolist() == [7, 4] and state.newest.tolist() == [[11], [13]]
    state.advance(state.starts, counts, drawn)
    assert state.starts.tolist() == [10, 5] and state.counts.tolist() == [3, 1] and state.newest.tolist() == [[3], [4]]
