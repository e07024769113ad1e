"""Made-up traces: chains whose confidence and success follow chosen laws, and bare roots with chosen ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace


def chain_prompt(
    truth_of: Callable[[np.ndarray], np.ndarray], *, seed: int, positions: int = 200, depth: int = 3
) -> PromptTrace:
    """Record chains whose steps claim a confidence c, even in [0.5, 1), and succeed with probability truth_of(c)."""
    source = np.random.default_rng(seed)
    said = source.uniform(0.5, 1.0, (positions, depth))
    is_right = source.random((positions, depth)) < truth_of(said)
    on_path = np.logical_and.accumulate(is_right, axis=1)
    hits = np.where(on_path, 0, MISS).astype(np.uint8)
    return PromptTrace(
        prompt=(1, 2, 3),
        continuation=tuple(range(positions + 1)),
        next_rank=hits[:, 0],
        offsets=np.arange(positions + 1, dtype=np.int32) * depth,
        parent=np.tile(np.arange(-1, depth - 1), positions).astype(np.int16),
        rank=np.zeros(positions * depth, dtype=np.uint8),
        log_probs=np.log(said).astype(np.float32).reshape(-1, 1),
        hit_rank=hits.ravel(),
    )


def rooted(ranks: list[int], *, prompt: int = 1) -> PromptTrace:
    """Record only the roots behind a prompt of so many tokens, three children each, with these ranks of the truth."""
    count = len(ranks)
    return PromptTrace(
        prompt=(0,) * prompt,
        continuation=tuple(range(count + 1)),
        next_rank=np.array(ranks, dtype=np.uint8),
        offsets=np.arange(count + 1, dtype=np.int32),
        parent=np.full(count, -1, dtype=np.int16),
        rank=np.zeros(count, dtype=np.uint8),
        log_probs=np.tile(np.array([-0.5, -1.5, -3.0], dtype=np.float32), (count, 1)),
        hit_rank=np.array(ranks, dtype=np.uint8),
    )


def trace_of(*prompts: PromptTrace, prefix_exact: bool = False) -> AcceptanceTrace:
    """Return prompts as a trace."""
    return AcceptanceTrace(
        target="target", drafter="drafter", drafter_name="chain", workload="made up", temperature=0.0, seed=0,
        children=prompts[0].children, prefix_exact=prefix_exact, prompts=prompts,
    )  # fmt: skip


def chain_trace(truth_of: Callable[[np.ndarray], np.ndarray], *, prompts: int = 20, depth: int = 3) -> AcceptanceTrace:
    """Return that many prompts of such chains."""
    return trace_of(*(chain_prompt(truth_of, seed=seed, depth=depth) for seed in range(prompts)))
