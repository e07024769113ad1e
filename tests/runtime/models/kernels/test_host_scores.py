"""What compiled calls read of scores: the tokens, paths and log-probabilities that torch and Python find."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

from spectune.planner.records.draft import DraftBatch
from spectune.runtime.backends import cpu as cpu_backend
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters import host_pass
from spectune.runtime.growth import draft as growth_draft
from spectune.runtime.growth.draft import children_here, children_of, drawn_children_here
from spectune.runtime.models.bits import bits
from spectune.runtime.models.kernels.host_scores import BLOCK, FEW, best_of
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.acceptance import accepted, accepted_by
from spectune.runtime.sampling.filters import draft_scores
from spectune.runtime.sampling.sampler import best_tokens, draws_of, greedy_draws

from ....support.decoded_runs import POLICIES, drafter_for, drafting, random_requests, run
from ....support.tiny_models import perturbed, tiny_llama
from ....support.torch_threads import threads_of

LLAMA = tiny_llama(layers=2, seed=0)
KINDS = [torch.bfloat16, torch.float32]
ODD = [0.0, -0.0, 1.0, -1.0, 2.0**-140, math.inf, -math.inf, math.nan, -math.nan]
odd_lines = some.lists(some.sampled_from(ODD), min_size=1, max_size=6)


@pytest.mark.parametrize("dtype", KINDS)
@given(line=odd_lines)
def test_the_best_of_odd_numbers_is_numpys(dtype: torch.dtype, line: list[float]) -> None:
    numbers = torch.tensor(line).to(dtype)
    assert best_of(bits(numbers)) == numbers.float().numpy().argmax()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_the_best_of_long_lines_is_numpys_wherever_it_stands(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    for scale in (0.01, 1.0, 100.0):  # of few numbers in bfloat16, many of which are equal
        numbers = (scale * torch.randn(20, size)).round(decimals=1).to(dtype)
        assert [best_of(bits(line)) for line in numbers] == numbers.float().numpy().argmax(-1).tolist()


def trees(rows: int, nodes: int, vocabulary: int) -> DraftBatch:
    """Return random trees of different sizes whose siblings may be alike."""
    draws = np.random.default_rng(0)
    parents = np.array([[-1, *(draws.integers(0, node) for node in range(1, nodes))] for _ in range(rows)])
    tokens, depths = draws.integers(0, vocabulary, (rows, nodes)), np.zeros((rows, nodes), dtype=np.int64)
    for node in range(1, nodes):
        depths[:, node] = depths[np.arange(rows), parents[:, node]] + 1
    sizes = draws.integers(1, nodes + 1, rows)
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=())


@pytest.mark.parametrize("dtype", KINDS)
def test_the_path_of_the_best_tokens_is_that_of_all_draws(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    draft, scores = trees(80, 12, 3), torch.randn(80, 15, 3).to(dtype)  # three behind the trees are padding
    batch = [Sequence(Request(prompt=(0,), max_new_tokens=1), 0)] * 80
    expected = accepted(batch, draft, best_tokens(scores))
    assert accepted_by(bits(scores.contiguous()), greedy_draws(len(scores)), draft) == expected
    assert {len(path.nodes) for path in expected.paths} >= {1, 2, 3, 4}


def exact_children(scores: Tensor, count: int) -> tuple[list[list[int]], Tensor]:
    """Return the likeliest tokens of every line (lines, vocabulary), of equals the first, and their log-probability."""
    order = scores.double().sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return order.tolist(), scores.double().log_softmax(-1).gather(1, order)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("vocabulary", [3, BLOCK, 1000, 3001])
@pytest.mark.parametrize("count", [1, 2, FEW, FEW + 1, 60])
def test_children_are_the_likeliest_tokens_and_of_equals_the_first(
    dtype: torch.dtype, vocabulary: int, count: int
) -> None:
    torch.manual_seed(0)
    scores = (4.0 * torch.randn(2, 3, vocabulary)).to(dtype)
    scores[0, 0, 1:] = -math.inf
    scores[0, 1] = 0.0
    scores[0, 2] = -math.inf
    scores[0, 2, vocabulary - 1] = 0.0
    with threads_of(2):
        found = children_of(scores, count)
    tokens, log_probs = exact_children(scores.flatten(0, 1), count)
    assert found.tokens.flatten(0, 1).tolist() == tokens
    assert torch.allclose(found.log_probs.flatten(0, 1).double(), log_probs, rtol=0, atol=2e-6)
    assert (found.log_probs <= 0).all()


@pytest.mark.parametrize("dtype", KINDS)
def test_no_log_probability_behind_what_is_no_number_is_one(dtype: torch.dtype) -> None:
    scores = torch.tensor([[[0.0, math.nan, 1.0]]], dtype=dtype)
    assert children_of(scores, 2).log_probs.isnan().all()


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", POLICIES)
def test_rounds_are_those_of_torchs_own_calls(kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = LeanModel(deepcopy(LLAMA).float()), LeanModel(perturbed(LLAMA, 0.05).float())
    requests = random_requests(7, tokens=20, temperature=temperature)
    plain = run(target, requests)
    found = run(target, requests, *drafting(kind, drafter_for(kind, drafter, 3)))
    for module in (cpu_backend, host_pass, growth_draft):
        monkeypatch.setattr(module, "bits_for_kernels", lambda scores: None)
    expected = run(target, requests, *drafting(kind, drafter_for(kind, drafter, 3)))
    assert found.outputs == expected.outputs == plain.outputs
    assert [done.kept for done in found.rounds] == [done.kept for done in expected.rounds]
    assert len(found.rounds) < len(plain.rounds)


SAMPLED: dict[str, list[dict[str, Any]]] = {
    "greedy among sampled": [{}, {"temperature": 0.8}],
    "warm": [{"temperature": 0.7}, {"temperature": 1.3}],
    "masked": [
        {"temperature": 0.9, "top_k": 5},
        {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
    ],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("dtype", KINDS)
def test_what_a_drafter_would_draw_is_found_by_one_call(
    dtype: torch.dtype, kind: str, width: int, depth: int, threads: int
) -> None:
    torch.manual_seed(depth)
    requests = [
        Request(prompt=(1,) * (2 + place), max_new_tokens=9, seed=place, **each)
        for place, each in enumerate(SAMPLED[kind])
    ]
    batch = [Sequence(request, slot) for slot, request in enumerate(requests)]
    logits = (3.0 * torch.randn(len(batch), width, 96)).to(dtype)
    with threads_of(threads):
        tokens, log_probs, are_numbers = drawn_children_here(bits(logits), draws_of(batch), depth, 6)
    scores = draft_scores(logits, batch, np.zeros((len(batch), width, depth), dtype=np.int64))
    expected, expected_log_probs, _ = children_here(bits(scores.contiguous()), 6)
    assert are_numbers and np.array_equal(tokens, expected)
    assert log_probs == pytest.approx(expected_log_probs, abs=2e-5)


def test_sampled_scores_that_are_no_numbers_are_said_to_be_none() -> None:
    batch = [Sequence(Request(prompt=(1,), max_new_tokens=9, temperature=1.0), 0)]
    scores = torch.full((1, 1, 32), math.nan)
    assert not drawn_children_here(bits(scores), draws_of(batch), 0, 2)[2]
