"""What ends a round in one launch: the paths that torch finds, the places of their keys, and where the next begins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spectune.runtime.backends.device_acceptance import accepted_nodes, ancestors_of, path_of
from spectune.runtime.backends.device_state import BatchState
from spectune.runtime.models.kernels.accepted import follow
from spectune.runtime.models.kernels.jitted import has_triton

from ....support.interpreted import launch
from ...backends.test_acceptance import BATCH, CPU, NODES, drawn_trees

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")

STARTS, ROWS = [5, 0, 11, 3], 40


def ended(trees: Tensor, best: Tensor, starts: Tensor, state: Tensor, is_live: Tensor, *, reach: int) -> Tensor:
    """Return where rows end and the moves of their keys, in one tensor; the trees lie side by side in each row."""
    tokens, parents = trees.chunk(2, dim=1)
    ends, moves = follow((tokens, parents), best, starts, state=state, is_live=is_live, reach=reach, rows=ROWS)
    return torch.cat((ends, moves.flatten()))


@pytest.mark.thinned
@pytest.mark.parametrize("room", [NODES, NODES + 3])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_what_torch_does_in_many_launches(seed: int, room: int) -> None:
    tokens, parents, depths, best = (torch.from_numpy(part) for part in drawn_trees(seed))
    starts, reach, state = torch.tensor(STARTS), NODES - 1, BatchState(BATCH, room, CPU)
    is_accepted = accepted_nodes(tokens, parents, ancestors_of(parents, reach), best)
    counts, nodes = is_accepted.sum(dim=1), path_of(is_accepted, depths, reach)
    assert counts.max() > 1
    for is_live in (False, True):
        found, _, _, _, after, _ = launch(
            ended, torch.cat((tokens, parents), dim=1), best, starts, state.numbers.clone(), torch.tensor(is_live),
            reach=reach,
        )  # fmt: skip
        assert found is not None and after is not None
        moves = found[BATCH:].view(2, BATCH, reach + 1)
        first = (torch.arange(BATCH) * ROWS + starts).unsqueeze(1)
        assert torch.equal(found[:BATCH], starts + counts)
        assert torch.equal(moves[0], first + nodes) and torch.equal(moves[1], first + torch.arange(reach + 1))
        if not is_live:
            assert torch.equal(after, state.numbers)
            continue
        assert torch.equal(after[:BATCH], starts + counts) and torch.equal(after[BATCH : 2 * BATCH], counts)
        for row, fresh in enumerate(after[2 * BATCH :].view(BATCH, room)):
            kept = int(counts[row])
            assert torch.equal(fresh[:kept], best[row, nodes[row, :kept]])
            assert ((fresh >= 0) & (fresh <= best.max())).all()


def test_a_root_alone_emits_what_is_best_behind_it() -> None:
    state = BatchState(2, 1, CPU)
    trees, best, starts = torch.tensor([[-1, -1], [-1, -1]]), torch.tensor([[6], [2]]), torch.tensor([7, 3])
    found, _, _, _, after, _ = launch(ended, trees, best, starts, state.numbers, state.is_live, reach=0)
    assert found is not None and after is not None
    assert found.tolist() == [8, 4, 7, ROWS + 3, 7, ROWS + 3] and after.tolist() == [8, 4, 1, 1, 6, 2]
