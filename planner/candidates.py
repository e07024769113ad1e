"""What competes in every cell: the grids of policies that depend on the committed text alone, with their results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .acceptance import (
    PositionResults,
    confident_chain_results,
    eagle2_results,
    lookup_results,
    opt_tree_results,
    plain_results,
    rank_results,
    talon_results,
)
from .policy import ChainPolicy, Eagle2Policy, OptTreePolicy, PlainPolicy, StaticPolicy, TreePolicy
from .recorded import Recording, Rows, Text
from .static_tree import Floats, nested_trees
from .tree import TokenTree

CHAIN_LENGTHS = (*range(1, 9), 10, 12, 16, 20)
CONFIDENT_LENGTHS = (4, 6, 8, 12, 20)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LOOKUP_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)
LOOKUP_NGRAMS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3))  # longest, shortest
STATIC_SIZES = (3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 60)
STATIC_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10)
EAGLE2_WIDTHS = (2, 3, 4, 5, 6, 8, 10)
EAGLE2_DEPTHS = range(8)
EAGLE2_SIZES = (*range(3, 17), *range(18, 33, 2), *range(36, 61, 4))
TALON_GATES = (0.01, 0.03, 0.08, 0.2, 0.5)
TALON_WIDTHS = (2, 4, 6, 10)
TALON_NODES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60)
TALON_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 50)
OPT_TREE_NODES = (4, 8, 12, 16, 24, 32)
OPT_TREE_GAINS = (0.1, 0.2, 0.35, 0.5)
OPT_TREE_DEPTHS = (3, 5, 8)

Contender = tuple[TreePolicy, PositionResults]


def textual(texts: tuple[Text, ...], rows: Rows) -> Iterator[Contender]:
    """Yield plain decoding, then every lookup: what needs no model."""
    yield PlainPolicy(), plain_results(rows)
    for max_ngram, min_ngram in LOOKUP_NGRAMS:
        yield from lookup_results(texts, max_ngram, min_ngram, LOOKUP_LENGTHS)


def drafted(recording: Recording, acceptance: Floats) -> Iterator[Contender]:
    """Yield chains, static trees and the dynamic trees of one drafter, cheap ones first.

    Args:
        recording: of the drafter.
        acceptance: (children,), its unconditional acceptance by rank, from which static trees are built.
    """
    for length in CHAIN_LENGTHS:
        policy = ChainPolicy(length=length)
        yield policy, rank_results(policy, recording)
    yield from confident_chain_results(recording, CONFIDENT_LENGTHS, CONFIDENCES)
    if recording.is_prefix_exact:
        for tree in dict.fromkeys((*static_trees(acceptance), *static_trees(acceptance_by_depth(recording)))):
            static = StaticPolicy(tree=tree)
            yield static, rank_results(static, recording)
    for top_k in EAGLE2_WIDTHS:
        if top_k <= recording.children:
            yield from _beam(recording, top_k)
    for top_k in TALON_WIDTHS:
        if top_k <= recording.children:
            for gate in TALON_GATES:
                children = min(10, recording.children)
                yield from talon_results(recording, gate, top_k, children, TALON_NODES, TALON_DEPTHS)
    yield from opt_tree_results(recording, _opt_trees(recording.children))


def unrecorded_beams(recording: Recording) -> list[Eagle2Policy]:
    """Return one EAGLE-2 tree of every width that takes more children than were recorded."""
    return [Eagle2Policy(top_k=top_k) for top_k in EAGLE2_WIDTHS if top_k > recording.children]


def static_trees(acceptance: Floats) -> list[TokenTree]:
    """Return the best trees of every size and depth bound that are no chains, each shape once.

    Args:
        acceptance: (ranks,) or (depths, ranks), as `static_tree` takes it.
    """
    trees: dict[TokenTree, None] = {}
    for max_depth in STATIC_DEPTHS:
        nested = nested_trees(acceptance, max(STATIC_SIZES), max_depth)
        trees |= {tree: None for tree in nested.trees(STATIC_SIZES) if tree.size > tree.depth + 1}
    return list(trees)


def acceptance_by_depth(recording: Recording) -> Floats:
    """Return (depths, children): how often the target's path goes on with each rank, given that it came so far.

    The last row is the deepest one behind which a tenth of the positions still are.
    """
    ranks, left = recording.next_rank, recording.rows.left
    positions = np.flatnonzero(left > 0)
    at = positions
    rows: list[Floats] = []
    while len(at) >= max(len(positions) // 10, 1) and len(rows) < max(STATIC_DEPTHS):
        counts = np.bincount(ranks[at], minlength=recording.children)[: recording.children]
        rows.append(counts / len(at))
        at = at[ranks[at] < recording.children] + 1
        at = at[left[at] > 0]
    return np.array(rows)


def _beam(recording: Recording, top_k: int) -> Iterator[Contender]:
    """Yield the EAGLE-2 trees of one width; sizes that hold every candidate appear once."""
    for policy, results in eagle2_results(recording, top_k, EAGLE2_DEPTHS, EAGLE2_SIZES):
        if policy.max_verify_tokens == policy.verify_tokens:
            yield policy, results


def _opt_trees(children: int) -> list[OptTreePolicy]:
    return [
        OptTreePolicy(nodes=nodes, least_gain=gain, max_depth=depth, children=min(nodes, children, 10))
        for nodes in OPT_TREE_NODES
        for gain in OPT_TREE_GAINS
        for depth in OPT_TREE_DEPTHS
    ]
