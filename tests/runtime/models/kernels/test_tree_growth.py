"""EAGLE-2's trees grown by kernels are, node for node, those that are grown as tensors."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.growth.captured import is_supported
from spectune.runtime.models.kernels import children
from spectune.runtime.models.kernels.children import MOST_CHILDREN
from spectune.runtime.models.kernels.jitted import has_triton

from ....support.captured_toys import BROKEN, drafted, drawn_weights
from ....support.interpreted import launch
from ....support.slow_here import SLOW_HERE

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")

CPU = torch.device("cpu")


def policy_of(verify_tokens: int, depth: int, top_k: int) -> Eagle2Policy:
    return Eagle2Policy(verify_tokens=verify_tokens, depth=depth, top_k=top_k)


def assert_same(weights: Tensor, policy: Eagle2Policy, *, batch: int, is_broken: bool = False) -> Tensor:
    """Return the numbers, which are those of trees that are grown as tensors."""
    (numbers, _) = launch(drafted, weights, policy=policy, batch=batch, way="all", is_broken=is_broken)
    expected = drafted(weights, policy=policy, batch=batch, way="no kernels", is_broken=is_broken)
    assert numbers is not None and torch.equal(numbers, expected)
    return numbers


@pytest.mark.parametrize(
    ("seed", "dtype"), [(1, torch.float32), pytest.param(2, torch.float16, marks=SLOW_HERE), (3, torch.bfloat16)]
)
def test_trees_by_kernels_are_those_without(seed: int, dtype: torch.dtype) -> None:
    assert_same(drawn_weights(50, seed=seed, dtype=dtype), policy_of(8, 3, 3), batch=3)


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("shape", [(2, 0, 5), (40, 0, 5), (6, 4, 1), (200, 2, 4)])
def test_trees_of_every_shape_are_those_without(shape: tuple[int, int, int], batch: int) -> None:
    assert_same(drawn_weights(50, seed=batch), policy_of(*shape), batch=batch)


def test_trees_of_the_most_children_are_those_without() -> None:
    assert_same(drawn_weights(60, seed=4), policy_of(30, 1, MOST_CHILDREN), batch=1)


@pytest.mark.parametrize(
    "verify_tokens", [60, pytest.param(800, marks=SLOW_HERE)]
)  # 800: what every node saw shows in the tree
def test_trees_of_the_published_shape_are_those_without(verify_tokens: int) -> None:
    """70 nodes are drafted: their bits are two words."""
    assert_same(drawn_weights(90, seed=1), Eagle2Policy(verify_tokens=verify_tokens), batch=1)


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize(
    "shape", [(10, 3, 4), *(pytest.param(shape, marks=SLOW_HERE) for shape in ((31, 2, 5), (500, 3, 5)))]
)
def test_candidates_of_one_score_stand_in_recorded_order(shape: tuple[int, int, int], most: int) -> None:
    """Scores that round alike are those of the same children, so these are found by kernels both times."""
    weights, policy = drawn_weights(12, seed=3, most=most), policy_of(*shape)
    numbers, expected = (launch(drafted, weights, policy=policy, batch=2, way=way)[0] for way in ("all", "children"))
    assert numbers is not None and expected is not None and torch.equal(numbers, expected)


@pytest.mark.parametrize(
    ("vocabulary", "verify_tokens"),
    [(1, 500), (2, 4), (3, 500), *(pytest.param(7, tokens, marks=SLOW_HERE) for tokens in (4, 500))],
)
def test_a_vocabulary_smaller_than_what_is_asked_for_has_fewer_children(vocabulary: int, verify_tokens: int) -> None:
    assert_same(drawn_weights(vocabulary, seed=5), policy_of(verify_tokens, 3, 8), batch=2)


def test_behind_a_text_without_numbers_no_token_exists() -> None:
    numbers = assert_same(drawn_weights(20, seed=6), policy_of(5, 0, 4), batch=5, is_broken=True)
    tokens = numbers[: 5 * 16].view(5, 16)[:, :5]
    assert (tokens < 0).all(dim=1).tolist() == [False] * 4 + [True]  # the last one's text ends with what breaks it


def test_behind_a_node_without_numbers_no_token_exists() -> None:
    weights = drawn_weights(20, seed=6, most=3)
    weights[:, BROKEN] = 40.0  # it is always drafted
    numbers = assert_same(weights, policy_of(100, 1, 4), batch=4, is_broken=True)
    tokens = numbers[: 4 * 64].view(4, 64)[:, :21]  # all candidates are in the tree
    assert (tokens < 0).sum(dim=1).tolist() == [1 + 4] * 4


def test_nodes_below_what_is_no_number_are_chosen_last() -> None:
    weights = drawn_weights(20, seed=7, most=3)
    weights[:, BROKEN] = 40.0
    assert_same(weights, policy_of(12, 3, 4), batch=3, is_broken=True)


def test_tokens_that_are_never_drawn_are_chosen_last() -> None:
    weights = drawn_weights(9, seed=8)
    weights[:, 2:] = -torch.inf
    assert_same(weights, policy_of(30, 2, 5), batch=2)


@pytest.mark.parametrize(
    ("policy", "dtype", "is_one"),
    [
        (Eagle2Policy(), torch.bfloat16, True),
        (policy_of(60, 15, MOST_CHILDREN), torch.float32, True),
        (policy_of(60, 16, MOST_CHILDREN), torch.float32, False),
        (policy_of(60, 1, MOST_CHILDREN + 1), torch.float32, False),
        (Eagle2Policy(), torch.float64, False),
    ],
)
def test_trees_of_few_candidates_are_supported(policy: Eagle2Policy, dtype: torch.dtype, is_one: bool) -> None:
    assert not is_supported(policy, CPU, dtype)
    with mock.patch.object(children, "runs_triton", return_value=True):
        assert is_supported(policy, CPU, dtype) == is_one
