"""Laying tokens out for one forward: positions, cache columns and what each token sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spectune.planner.kernels.arrays import Bools
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.layout import Masks, ancestors, chain_sight, lay_out

from ..pretended.cuda import pretended_gpu
from ..pretended.device import PLACE

PARENTS = np.array([[-1, 0, 0, 1], [-1, 0, 1, 2]])
DEPTHS = np.array([[0, 1, 1, 2], [0, 1, 2, 3]])
TOKENS = np.array([[4, 5, 6, 7], [8, 9, 10, 11]])
CPU = torch.device("cpu")


def laid_out(contexts: list[int], visible: Bools, *, written: int = 0) -> ForwardInput:
    return lay_out(TOKENS, DEPTHS, contexts, visible, dtype=torch.float32, device=CPU, written=written)


def test_a_position_is_context_plus_depth() -> None:
    assert laid_out([3, 5], ancestors(PARENTS)).positions.tolist() == [[3, 4, 4, 5], [5, 6, 7, 8]]


def test_columns_lie_side_by_side_behind_the_context() -> None:
    assert laid_out([3, 5], ancestors(PARENTS)).columns.tolist() == [[3, 4, 5, 6], [5, 6, 7, 8]]


def test_nodes_written_before_push_columns_but_not_positions() -> None:
    visible = np.concatenate((np.ones((2, 4, 2), dtype=np.bool_), ancestors(PARENTS)), axis=2)
    step = laid_out([3, 5], visible, written=2)
    assert step.columns.tolist() == [[5, 6, 7, 8], [7, 8, 9, 10]]
    assert step.positions.tolist() == [[3, 4, 4, 5], [5, 6, 7, 8]]


def test_the_longest_context_and_its_nodes_are_in_sight() -> None:
    assert laid_out([3, 5], ancestors(PARENTS)).seen == 9


def test_a_node_sees_its_context_its_ancestors_and_itself() -> None:
    bias = laid_out([3, 5], ancestors(PARENTS)).bias
    assert bias is not None
    open_columns = [[torch.nonzero(node == 0).flatten().tolist() for node in row] for row in bias]
    assert open_columns[0] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 6]]
    assert open_columns[1][3] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_what_a_node_does_not_see_is_minus_infinity() -> None:
    bias = laid_out([3, 5], ancestors(PARENTS)).bias
    assert bias is not None and set(bias.flatten().tolist()) == {0.0, -math.inf}


def test_one_sight_may_be_shared_by_all_rows() -> None:
    causal = np.tri(4, dtype=np.bool_)
    shared, each = laid_out([3, 5], causal[None]).bias, laid_out([3, 5], np.stack([causal] * 2)).bias
    assert shared is not None and each is not None and torch.equal(shared, each)


@pytest.mark.parametrize(("contexts", "is_open"), [([3, 3], True), ([3, 4], False)])
def test_tokens_that_all_see_everything_need_no_bias(contexts: list[int], is_open: bool) -> None:
    step = lay_out(
        TOKENS[:, :1],
        DEPTHS[:, :1],
        contexts,
        np.ones((1, 1, 1), dtype=np.bool_),
        dtype=torch.float32,
        device=CPU,
    )
    assert (step.bias is None) == is_open


def test_ancestors_of_a_node_are_found_by_walking_up() -> None:
    sees = ancestors(PARENTS)
    for row, parents in enumerate(PARENTS.tolist()):
        for node in range(4):
            walk = [node]
            while parents[walk[-1]] >= 0:
                walk.append(parents[walk[-1]])
            assert np.flatnonzero(sees[row, node]).tolist() == sorted(walk)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_chains_share_one_sight_which_is_that_of_each_among_other_trees(rows: int, count: int) -> None:
    chains = np.arange(-1, count - 1)[None].repeat(rows, axis=0)
    star = np.minimum(np.arange(-1, count + 1), 0)[None]
    wide = np.concatenate((np.arange(-1, count + 1)[None].repeat(rows, axis=0), star))
    sees, among_others = ancestors(chains), ancestors(wide)
    assert sees.shape == (1, count, count) and among_others.shape == (rows + 1, count + 2, count + 2)
    for row in range(rows):
        assert np.array_equal(sees[0], among_others[row, :count, :count])


def test_what_chains_share_cannot_be_written() -> None:
    sees = ancestors(np.arange(-1, 4)[None].repeat(2, axis=0))
    with pytest.raises(ValueError, match="read-only"):
        sees[0, 0, 4] = True


def test_masks_of_as_many_tokens_lie_in_one_place_however_long_the_text_grows() -> None:
    masks = Masks(torch.float32, torch.device("cpu"), slots=4, capacity=100)
    sight = np.tri(3, dtype=np.bool_)[None]
    places = {masks.mask([context] * rows, sight, context + 3).data_ptr() for rows in (4, 2) for context in (5, 60, 97)}
    assert len(places) == 1


def test_masks_of_a_token_more_lie_where_those_before_did() -> None:
    masks = Masks(torch.float32, torch.device("cpu"), slots=4, capacity=100)
    places = {
        masks.mask([5] * 4, np.tri(count, dtype=np.bool_)[None], 100).data_ptr() for count in range(33, 49)
    }  # what a drafter reads together, and a few tokens more by chance
    assert len(places) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_mask_of_any_format_opens_each_rows_context_and_what_its_nodes_see(dtype: torch.dtype) -> None:
    sight = np.stack([np.tri(3, dtype=np.bool_), np.eye(3, dtype=np.bool_)])
    masks = Masks(dtype, torch.device("cpu"), slots=2, capacity=8)
    masks.mask([5, 5], np.ones((2, 3, 3), dtype=np.bool_), 8)  # what lay there before must not show
    found = masks.mask([2, 4], sight, 7)
    expected = torch.full((2, 3, 7), -torch.inf, dtype=dtype)
    for row, context in enumerate((2, 4)):
        expected[row, :, :context] = 0.0
        expected[row, :, context : context + 3][torch.from_numpy(sight[row])] = 0.0
    assert found.dtype == dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("contexts", [[300], [300, 7]])
def test_a_gpu_makes_the_mask_of_a_text_itself_and_it_is_the_hosts(contexts: list[int], dtype: torch.dtype) -> None:
    tokens, sight = np.zeros((len(contexts), 40), dtype=np.int64), chain_sight(40)
    expected = lay_out(tokens, np.arange(40), contexts, sight, dtype=dtype, device=CPU).bias
    with pretended_gpu() as gpu:
        found = lay_out(tokens, np.arange(40), contexts, sight, dtype=dtype, device=PLACE).bias
        assert gpu.traffic.departing_bytes == 3 * tokens.nbytes  # tokens, positions, columns
        assert found is not None and expected is not None and torch.equal(found.cpu(), expected)
