"""Compiled calls of a drafter on a CPU, each for a layer's children or a whole beam's trees."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...planner.kernels.arrays import Bools, Ints
from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ..models.forward import Draws, FindsChildren, UnlaidBeam, UnlaidNodes
from ..models.kv_cache import KeyValueCache
from .host_pass import require_numbers


class Beam(NamedTuple):
    """A tree as EAGLE-2 grows it."""

    depth: int  # layers below the first
    top_k: int  # nodes of each
    max_verify_tokens: int  # nodes of the tree, root included


def beam_of(policy: TreePolicy) -> Beam | None:
    """Return the beam whose trees are those of a policy, None where there is none: a chain is a beam of one."""
    if isinstance(policy, ChainPolicy):
        return Beam(policy.length - 1, 1, policy.length + 1)
    return Beam(policy.depth, policy.top_k, policy.max_verify_tokens) if policy.kind == "eagle2" else None


def nodes_behind(
    contexts: Many[int], tokens: Ints, depth: int, visible: Bools, wanted: Ints, draws: Draws | None
) -> UnlaidNodes:
    """Return new tokens behind texts with so many cached tokens; see `UnlaidNodes`."""
    seen = max(contexts) + max(visible.shape[2], tokens.shape[1])
    behind = np.array(contexts, dtype=np.int64)
    return UnlaidNodes(
        tokens=tokens, contexts=behind, depth=depth, visible=visible, wanted=wanted, seen=seen, draws=draws
    )


def grown_by(
    model: FindsChildren,
    cache: KeyValueCache,
    beam: Beam,
    read: Many[int],
    behind: Many[int],
    unread: tuple[Ints, Ints],
    draws: Draws | None,
) -> DraftBatch | None:
    """Return the trees of a beam; None where they have to grow layer by layer.

    `read` and `behind` are the tokens of each text in the cache and in all; `unread` is (batch, any), what has to be
    read first, and (batch,), the index of each row's last token. The beam is no wider than the vocabulary. RequestError
    where the cache has no room; ModelError: scores are not numbers.
    """
    asked = unlaid_beam(beam, *unread, np.array((read, behind)), draws)
    cache.require(asked.seen)
    grown = model.grown(asked, cache)
    return None if grown is None else whole_draft(beam, *grown)


def unlaid_beam(beam: Beam, tokens: Ints, wanted: Ints, contexts: Ints, draws: Draws | None = None) -> UnlaidBeam:
    """Return a beam behind texts; see `UnlaidBeam`."""
    read, behind = contexts
    return UnlaidBeam(
        tokens=tokens,
        wanted=wanted,
        contexts=contexts,
        depth=beam.depth,
        top_k=beam.top_k,
        drafts=beam.max_verify_tokens - 1,
        seen=int(max(read.max() + tokens.shape[1], behind.max() + beam.depth * beam.top_k)),
        draws=draws,
    )


def whole_draft(beam: Beam, trees: Ints, are_numbers: bool) -> DraftBatch:
    """Return the trees of a beam, (3, batch, nodes), as a draft; ModelError where scores are not numbers."""
    require_numbers(are_numbers)
    tokens, parents, depths = trees
    widths, sizes = _shape_of(beam, len(tokens))
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=widths)


@lru_cache(maxsize=256)
def _shape_of(beam: Beam, batch: int) -> tuple[tuple[int, ...], Ints]:
    """Return the nodes of each forward of a beam, and of its trees (batch,); both are shared, so read-only."""
    return (1,) + (beam.top_k,) * beam.depth, np.full(batch, beam.max_verify_tokens, dtype=np.int64)
