"""Drafters beside a target: decoding that their recordings must foretell, and what takes it apart."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from spectune.runtime.batch.sequence import Request
from spectune.runtime.drafters.features import GivenFeatures
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.kv_cache import FeatureCache, KeyValueCache

from .decoded_runs import BUSHY

REPLAYED: tuple[TreePolicy, ...] = (
    ChainPolicy(length=5),
    ConfidentChainPolicy(length=5, confidence=0.2),
    StaticPolicy(tree=BUSHY),
    Eagle2Policy(verify_tokens=7, depth=3, top_k=3),
)


def ending_requests(outputs: Many[tuple[int, ...]]) -> list[Request]:
    """Return requests of one token each that stop at one of a plain run's, or after few, where drafts go on."""
    stop = frozenset({outputs[2][5]})
    return [Request(prompt=(index % 24,), max_new_tokens=1 + 3 * index, stop=stop, seed=index) for index in range(5)]


def features_of_others(cache: KeyValueCache) -> GivenFeatures:
    """Return features as large as a target's, of no text: what a drafter reads that is lied to."""
    assert isinstance(cache, FeatureCache)
    torch.manual_seed(0)
    return GivenFeatures(features=torch.randn_like(cache.features), wanted=None)


def decoded_alone(decoder: Engine, request: Request) -> tuple[int, ...]:
    sequence = decoder.admit(request)
    while decoder.running:
        assert not decoder.step().faults
    return tuple(sequence.emitted)


def trace_of(
    name: str, prompts: tuple[PromptTrace, ...], temperature: float, *, prefix_exact: bool = False
) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="t", drafter=name, drafter_name=name, workload="w", temperature=temperature, seed=0,
        children=prompts[0].children, prefix_exact=prefix_exact, prompts=prompts,
    )  # fmt: skip


def accepted(draft: DraftBatch, truth: list[int]) -> int:
    """Walk the tree token by token along the truth."""
    node, count = 0, 0
    while True:
        nodes = range(1, draft.tokens.shape[1])
        below = [c for c in nodes if draft.parents[0, c] == node and draft.tokens[0, c] == truth[count]]
        if not below:
            return count
        node, count = below[0], count + 1


def told_otherwise_later(prompt: PromptTrace) -> int:
    """Return at how many places a recorded tree says something else below the right token than the next place's root.

    Of a model it is none: a tree's node and the committed text there are the same text to it.
    """
    differ, starts = 0, prompt.offsets[:-1]
    for t in np.flatnonzero(prompt.next_rank[:-1] != MISS):
        own = slice(prompt.offsets[t], prompt.offsets[t + 1])
        child = np.flatnonzero((prompt.parent[own] == 0) & (prompt.rank[own] == prompt.next_rank[t]))
        differ += any(not np.allclose(prompt.log_probs[own][c], prompt.log_probs[starts[t + 1]]) for c in child)
    return differ
