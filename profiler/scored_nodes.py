"""Every recorded tree node of a trace with what the drafter said about it and what the target did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .records.acceptance import AcceptanceTrace, PromptTrace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
UNKNOWN = -1  # behind a node that was not recorded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredNodes:
    """Recorded nodes, (nodes,) each; those beyond the end of the target's text are left out.

    Depths begin with 1. `log_probs` are given the parent, `path_log_probs` float32 sums from the root down, as growth
    takes them. A hit lies on the target's own path; below one, its parent does.
    """

    depths: Ints
    log_probs: Floats
    path_log_probs: Floats
    is_hit: Bools
    is_below_hit: Bools


def scored_nodes(trace: AcceptanceTrace, prompts: Sequence[int] | None = None) -> ScoredNodes:
    """Return the recorded nodes of a trace, or of some of its prompts, given by their places."""
    chosen = trace.prompts if prompts is None else [trace.prompts[place] for place in prompts]
    each = [_of_prompt(prompt) for prompt in chosen]
    return ScoredNodes(
        **{one.name: np.concatenate([getattr(n, one.name) for n in each]) for one in fields(ScoredNodes)}
    )


def _of_prompt(prompt: PromptTrace) -> ScoredNodes:
    owners = owners_of(prompt)
    depths, paths, on_path = _down_the_trees(prompt, owners)
    left = prompt.positions - np.repeat(np.arange(prompt.positions), np.diff(prompt.offsets))
    is_known = np.broadcast_to((depths + 1 <= left)[:, None], prompt.log_probs.shape)
    scores = paths[:, None] + prompt.log_probs
    shape = scores.shape
    return ScoredNodes(
        depths=np.broadcast_to(depths[:, None] + 1, shape)[is_known],
        log_probs=prompt.log_probs[is_known].astype(np.float64),
        path_log_probs=scores[is_known].astype(np.float64),
        is_hit=(prompt.hit_rank[:, None] == np.arange(prompt.children))[is_known],
        is_below_hit=np.broadcast_to(on_path[:, None], shape)[is_known],
    )


def path_steps(prompt: PromptTrace) -> Iterator[tuple[Ints, Ints]]:
    """Yield, for depth 1, 2, ..., the positions whose tree holds the target's path so far, and its next child.

    It ends where no tree does, so all steps are no larger than the recording. MISS is a child that was not recorded.
    """
    child = np.full((len(prompt.parent), prompt.children + 1), UNKNOWN, dtype=np.int64)  # the last of each: none
    inner = np.flatnonzero(prompt.parent >= 0)
    child[owners_of(prompt)[inner], prompt.rank[inner]] = inner
    hits, nodes = prompt.hit_rank.astype(np.int64), prompt.offsets[:-1].astype(np.int64)
    positions, depth = np.arange(prompt.positions), 0
    while len(positions):
        ranks = hits[nodes]
        yield positions, ranks
        depth += 1
        below = child[nodes, np.minimum(ranks, prompt.children)]
        stays = (below != UNKNOWN) & (positions + depth < prompt.positions)
        positions, nodes = positions[stays], below[stays]


def owners_of(prompt: PromptTrace) -> Ints:
    """Return (expansions,): the expansion each one is a child of, among all of the prompt; its own place for a root."""
    starts = np.repeat(prompt.offsets[:-1], np.diff(prompt.offsets)).astype(np.int64)
    own = np.arange(len(starts))
    owners: Ints = np.where(prompt.parent < 0, own, starts + prompt.parent)
    return owners


def _down_the_trees(prompt: PromptTrace, owners: Ints) -> tuple[Ints, NDArray[np.float32], Bools]:
    """Return (expansions,) depth, path log-probability, and whether each is on the target's own path."""
    own = np.arange(len(owners))
    depths, paths = np.zeros(len(owners), dtype=np.int64), np.zeros(len(owners), dtype=np.float32)
    on_path = owners == own
    reached = on_path.copy()
    while not reached.all():
        below = np.flatnonzero(~reached & reached[owners])
        above = owners[below]
        depths[below] = depths[above] + 1
        paths[below] = paths[above] + prompt.log_probs[above, prompt.rank[below]]
        on_path[below] = on_path[above] & (prompt.hit_rank[above] == prompt.rank[below])
        reached[below] = True
    return depths, paths, on_path
