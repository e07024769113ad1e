"""What is recorded is what the drafter would have drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spectune.planner.growth import grow
from spectune.planner.policy import ChainPolicy, Eagle2Policy, TreePolicy
from spectune.planner.recorded import RecordedScorer, recording_of
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.requests import Request, Sequence
from spectune.tuning.continuations import continuations
from spectune.tuning.recording import ROOTS_ONLY, Beams, Recorder

from .tiny_models import tiny_lean

BEAMS = Beams(children=5, layers=((1, 6), (2, 5), (4, 4), (5, 3)))
TARGET, DRAFTER = tiny_lean(layers=3, seed=0), tiny_lean(layers=1, seed=1)


def requests(temperature: float = 0.0) -> list[Request]:
    rng = np.random.default_rng(3)
    prompts = [tuple(rng.integers(0, 24, size).tolist()) for size in (1, 7, 30)]
    return [Request(prompt=p, max_new_tokens=25, seed=i, temperature=temperature) for i, p in enumerate(prompts)]


def recorded(request: Request, beams: Beams = BEAMS, rows: int = 7) -> PromptTrace:
    truth = continuations(TARGET, [request])[0]
    return Recorder(DRAFTER, beams, longest=80, rows=rows).record(request, truth)


def trace_of(prompt: PromptTrace, temperature: float = 0.0) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="t", drafter="d", drafter_name="d", workload="w", temperature=temperature, seed=0,
        children=prompt.children, prefix_exact=True, prompts=(prompt,),
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "policy",
    [
        ChainPolicy(length=5),
        Eagle2Policy(verify_tokens=12, depth=3, top_k=4),
        Eagle2Policy(verify_tokens=9, depth=4, top_k=2),
    ],
    ids=lambda policy: policy.label,
)
def test_a_recorded_policy_draws_the_tree_the_drafter_draws(policy: TreePolicy, temperature: float) -> None:
    for request in requests(temperature):
        prompt = recorded(request)
        for t in range(prompt.positions):
            sequence = Sequence(request, 0)
            sequence.tokens = [*request.prompt, *prompt.continuation[: t + 1]]
            drafter = ModelDrafter(DRAFTER, slots=1, capacity=120)
            drafter.admit(0, sequence)
            live = drafter.draft([sequence], policy)
            replayed = grow(policy, RecordedScorer(recording_of(trace_of(prompt, temperature)), np.array([t])), 1)
            truth = [*prompt.continuation[t + 1 :], *([-2] * 10)]
            assert replayed.parents.tolist() == live.parents.tolist()
            assert replayed.tokens[0, 1:].sum() == accepted(live.tokens[0], live.parents[0], truth)


def accepted(tokens: np.ndarray, parents: np.ndarray, truth: list[int]) -> int:
    """Walk the tree token by token along the truth."""
    node, count = 0, 0
    while True:
        below = [c for c in range(1, len(tokens)) if parents[c] == node and tokens[c] == truth[count]]
        if not below:
            return count
        node, count = below[0], count + 1


def test_pieces_of_any_size_record_the_same() -> None:
    request = requests()[1]
    small, large = recorded(request, rows=3), recorded(request, rows=40)
    assert np.array_equal(small.offsets, large.offsets)
    assert np.array_equal(small.hit_rank, large.hit_rank)
    np.testing.assert_allclose(small.log_probs, large.log_probs, atol=1e-5)


def test_the_next_rank_is_the_rank_of_the_targets_token() -> None:
    request = requests()[2]
    prompt = recorded(request, ROOTS_ONLY)
    text = [*request.prompt, *prompt.continuation]
    model = ModelDrafter(DRAFTER, slots=1, capacity=120)
    sequence = Sequence(request, 0)
    sequence.tokens = text[: len(request.prompt) + 4]
    model.admit(0, sequence)
    order = torch.argsort(model.catch_up([sequence])[0, 0], descending=True).tolist()
    rank = order.index(prompt.continuation[4])
    assert prompt.next_rank[3] == (rank if rank < 10 else MISS)


def test_no_node_is_recorded_twice_and_the_union_is_no_larger_than_its_beams() -> None:
    prompt = recorded(requests()[1])
    sizes = np.diff(prompt.offsets)
    assert sizes.max() <= BEAMS.most_nodes
