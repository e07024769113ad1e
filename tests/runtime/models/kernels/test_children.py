"""The likeliest tokens of every row of logits, with their log-probabilities."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.models.kernels import children
from spectune.runtime.models.kernels.children import GROUP, MOST_CHILDREN, PART, best_children, is_supported
from spectune.runtime.models.kernels.jitted import has_triton

from ....support.captured_toys import drafted, drawn_weights
from ....support.interpreted import launch

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")

CPU = torch.device("cpu")
CHAIN = ChainPolicy(length=3)
BUSH = StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1, 1, 2), ranks=(0, 0, 1, 0, 2, 0)))


def both_children(logits: Tensor, *, count: int) -> Tensor:
    """Return (2, rows, count): tokens and log-probabilities, where kernels run."""
    tokens, log_probs = best_children(logits, count)
    assert tokens.dtype == torch.int64 and log_probs.dtype == torch.float32
    return torch.stack((tokens.double(), log_probs.double()))


def found(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    (answer, _) = launch(both_children, logits, count=count)
    assert answer is not None
    return answer[0].long(), answer[1]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


def assert_best(logits: Tensor, count: int) -> None:
    tokens, log_probs = found(logits, count)
    expected = logits.double().sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(tokens, expected)
    assert torch.allclose(log_probs, logits.double().log_softmax(-1).gather(1, expected), rtol=1e-6, atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("count", [1, 5, MOST_CHILDREN])
@pytest.mark.parametrize("width", [1, 7, GROUP + 1, PART, PART + 1, 3 * PART - 5])
def test_the_likeliest_of_every_row_are_found_in_order(width: int, count: int) -> None:
    assert_best(drawn(3, width), count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_half_precision_are_read_as_they_are(dtype: torch.dtype) -> None:
    assert_best(drawn(3, 2 * PART + 9, dtype=dtype), 8)


@pytest.mark.parametrize("count", [1, 10])
def test_a_large_vocabulary_is_read_whole(count: int) -> None:
    logits = drawn(2, 40 * PART + 17)
    logits[0, -1] = 30.0
    assert_best(logits, count)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_equal_ones_stand_in_the_vocabularys_order(levels: int) -> None:
    draws = torch.randint(levels, (4, 2 * PART + 40), generator=torch.Generator().manual_seed(levels))
    assert_best(draws.float(), 12)


def test_all_may_lie_in_one_group_or_each_in_another_part() -> None:
    logits = drawn(2, 12 * PART)
    logits[0, 5 * PART + GROUP : 5 * PART + 2 * GROUP] += 100.0
    logits[1, 7::PART] += 100.0
    assert_best(logits, MOST_CHILDREN)


def test_zeros_of_both_signs_are_equal() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0]])
    assert found(logits, 5)[0].tolist() == [[1, 2, 3, 4, 0]]


def test_what_is_never_drawn_stands_last_in_the_vocabularys_order() -> None:
    logits = torch.full((1, 2 * PART), -math.inf)
    logits[0, PART + 3] = 2.0
    tokens, log_probs = found(logits, 3)
    assert tokens.tolist() == [[PART + 3, 0, 1]] and log_probs.tolist() == [[0.0, -math.inf, -math.inf]]


@pytest.mark.parametrize("place", [0, PART + 9, 2 * PART + 4])
@pytest.mark.parametrize("kind", [math.nan, math.inf])
def test_a_row_with_what_is_no_number_has_no_log_probability_and_tokens_that_exist(place: int, kind: float) -> None:
    logits = drawn(3, 2 * PART + 5)
    logits[1, place] = kind
    tokens, log_probs = found(logits, 4)
    assert log_probs.isnan().tolist() == [[False] * 4, [True] * 4, [False] * 4]
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < logits.shape[1]


@pytest.mark.parametrize("fill", [math.nan, -math.inf])
@pytest.mark.parametrize("width", [3, PART + 2])
def test_a_row_of_nothing_else_has_none_either(fill: float, width: int) -> None:
    tokens, log_probs = found(torch.full((2, width), fill), 3)
    assert log_probs.isnan().all()
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < width


def test_rows_may_be_parts_of_longer_ones() -> None:
    (answer, _) = launch(best_of_narrowed, drawn(3, 90), count=4)
    expected = drawn(3, 90)[:, :70].sort(dim=-1, descending=True, stable=True).indices[:, :4]
    assert answer is not None and torch.equal(answer[0].long(), expected)


def best_of_narrowed(logits: Tensor, *, count: int) -> Tensor:
    return both_children(logits[:, :70], count=count)


@pytest.mark.parametrize(
    ("dtype", "count", "is_one"),
    [
        (torch.bfloat16, MOST_CHILDREN, True),
        (torch.float16, 1, True),
        (torch.float32, MOST_CHILDREN + 1, False),
        (torch.float64, 1, False),
    ],
)
def test_few_children_of_logits_of_three_kinds_are_supported(dtype: torch.dtype, count: int, is_one: bool) -> None:
    assert not is_supported(CPU, dtype, count)
    with mock.patch.object(children, "runs_triton", return_value=True):
        assert is_supported(CPU, dtype, count) == is_one


@pytest.mark.parametrize("policy", [CHAIN, BUSH], ids=["chain", "static"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_drafts_of_rigid_trees_are_those_without_kernels(policy: TreePolicy, dtype: torch.dtype) -> None:
    weights = drawn_weights(40, seed=2, dtype=dtype)
    (numbers, _) = launch(drafted, weights, policy=policy, batch=3, way="children")
    assert numbers is not None and torch.equal(numbers, drafted(weights, policy=policy, batch=3, way="no kernels"))


def test_a_captured_chain_behind_a_broken_model_has_tokens_that_do_not_exist() -> None:
    weights = drawn_weights(40, seed=2)
    weights[:, 5] = 200.0  # the token that breaks it is always the best
    (numbers, _) = launch(drafted, weights, policy=CHAIN, batch=2, way="children", is_broken=True)
    assert numbers is not None and numbers[: 2 * 13].view(2, 13)[:, 1:3].tolist() == [[5, -1]] * 2
