"""What competes in every cell: the grids of policies that depend on the committed text alone, with their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..records.tree import TokenTree
from ..replay.acceptance import (
    UNKNOWN,
    PositionResults,
    confident_chain_results,
    eagle2_results,
    opt_tree_results,
    path_ranks,
    plain_results,
    rank_results,
    talon_results,
)
from ..replay.recorded import Recording, Rows, Text
from ..strategies import TreePolicy
from ..strategies.chain import ChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.exit_chain import ResumedPolicy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.plain import PlainPolicy
from ..strategies.static import StaticPolicy
from ..text.candidates import text_drafted
from ..text.frozen import FrozenTable
from .crossfit import EVERYWHERE, HALVES, Bools, folds_of, half_of
from .spaces import MOST_CHILDREN
from .static_tree import Floats, nested_trees

CHAIN_LENGTHS = (*range(1, 9), 10, 12, 16, 20)
CONFIDENT_LENGTHS = (4, 6, 8, 12, 20)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STATIC_SIZES = (*range(3, 13), 14, 16, 20, 24, 28, 32, 40, 48, 60, 80, 100, 128)
STATIC_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10)
EAGLE2_WIDTHS = (2, 3, 4, 5, 6, 8, 10)
EAGLE2_DEPTHS = range(8)
EAGLE2_SIZES = (*range(3, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8))
TALON_GATES = (0.01, 0.03, 0.08, 0.2, 0.5)
TALON_WIDTHS = (2, 4, 6, 10)
TALON_NODES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60, 80, 100, 128)
TALON_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 50)
OPT_TREE_NODES = (4, 8, 12, 16, 24, 32)
OPT_TREE_GAINS = (0.1, 0.2, 0.35, 0.5)
OPT_TREE_DEPTHS = (3, 5, 8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contender:
    """A policy, what it does at every position, and the half of the folds its shape was made from, or EVERYWHERE."""

    policy: TreePolicy
    results: PositionResults
    searched_on: int = EVERYWHERE


def textual(
    texts: tuple[Text, ...], rows: Rows, most_tokens: int, frozen: tuple[FrozenTable, ...] = ()
) -> Iterator[Contender]:
    """Yield plain decoding, then all that drafts from the text: what needs no model.

    Args:
        texts: recorded.
        rows: the numbering of their positions.
        most_tokens: that one verify can feed.
        frozen: tables of n-grams that stand behind the texts' own.
    """
    yield Contender(policy=PlainPolicy(), results=plain_results(rows))
    for policy, results, half in text_drafted(texts, most_tokens, frozen):
        yield Contender(policy=policy, results=results, searched_on=half)


def drafted(recording: Recording, most_tokens: int) -> Iterator[Contender]:
    """Yield chains, static trees and the dynamic trees of one drafter, cheap ones first.

    Args:
        recording: of the drafter.
        most_tokens: that one verify can feed.
    """
    for chain in _chains(most_tokens):
        yield Contender(policy=chain, results=rank_results(chain, recording))
    for tree, half in _static_trees_by_half(recording, most_tokens):
        static = StaticPolicy(tree=tree)
        yield Contender(policy=static, results=rank_results(static, recording), searched_on=half)
    for policy, results in _grown(recording, most_tokens):
        yield Contender(policy=policy, results=results)


def resumed(recording: Recording, most_tokens: int) -> Iterator[Contender]:
    """Yield the chains of one drafter, an exit, as they are verified from its states.

    Args:
        recording: of the drafter.
        most_tokens: that one verify can feed.
    """
    for chain in _chains(most_tokens):
        yield Contender(policy=ResumedPolicy(draft=chain), results=rank_results(chain, recording))


def _chains(most_tokens: int) -> list[ChainPolicy]:
    return [ChainPolicy(length=length) for length in CHAIN_LENGTHS if length < most_tokens]


def _grown(recording: Recording, most_tokens: int) -> Iterator[tuple[TreePolicy, PositionResults]]:
    """Yield what looks at the drafter's confidence."""
    children = min(MOST_CHILDREN, recording.children)
    lengths = [length for length in CONFIDENT_LENGTHS if length < most_tokens]
    if lengths:
        yield from confident_chain_results(recording, lengths, CONFIDENCES)
    for top_k in EAGLE2_WIDTHS:
        if top_k <= recording.children:
            yield from _beam(recording, top_k, most_tokens)
    nodes = [count for count in TALON_NODES if count <= most_tokens]
    for top_k in TALON_WIDTHS if nodes else ():
        for gate in TALON_GATES if top_k <= children else ():
            yield from talon_results(recording, gate, top_k, children, nodes, TALON_DEPTHS)
    yield from opt_tree_results(recording, _opt_trees(children, most_tokens))


def unrecorded_beams(recording: Recording) -> list[Eagle2Policy]:
    """Return one EAGLE-2 tree of every width that takes more children than were recorded."""
    return [Eagle2Policy(top_k=top_k) for top_k in EAGLE2_WIDTHS if top_k > recording.children]


def static_trees(acceptance: Floats, most_tokens: int = max(STATIC_SIZES)) -> list[TokenTree]:
    """Return the best trees of many sizes and depth bounds that are no chains, each shape once.

    Args:
        acceptance: (ranks,) or (depths, ranks), as `static_tree` takes it.
        most_tokens: nodes of the largest.
    """
    sizes = [size for size in STATIC_SIZES if size <= most_tokens]
    trees: dict[TokenTree, None] = {}
    for max_depth in STATIC_DEPTHS if sizes else ():
        nested = nested_trees(acceptance, max(sizes), max_depth)
        trees |= {tree: None for tree in nested.trees(sizes) if tree.size > tree.depth + 1}
    return list(trees)


def _static_trees_by_half(recording: Recording, most_tokens: int) -> list[tuple[TokenTree, int]]:
    """Return the best trees of each half of the texts, and which half that is; EVERYWHERE for those of both."""
    halves: dict[TokenTree, set[int]] = {}
    for half in range(HALVES):
        is_of_half = half_of(folds_of(len(recording.texts)))[recording.rows.text_of] == half
        for acceptance in (acceptance_by_rank(recording, is_of_half), acceptance_by_depth(recording, is_of_half)):
            for tree in static_trees(acceptance, most_tokens):
                halves.setdefault(tree, set()).add(half)
    return [(tree, EVERYWHERE if len(seen) == HALVES else seen.pop()) for tree, seen in halves.items()]


def acceptance_by_rank(recording: Recording, chosen: Bools) -> Floats:
    """Return (children,): how often the target's token has each rank, over the chosen rows."""
    at = np.flatnonzero(chosen & (recording.rows.left > 0))
    counts = np.bincount(recording.next_rank[at], minlength=recording.children)[: recording.children]
    shares: Floats = counts / max(len(at), 1)
    return shares


def acceptance_by_depth(recording: Recording, chosen: Bools) -> Floats:
    """Return (depths, children): how often the target's path goes on with each rank, given that it came so far.

    Paths start at the chosen rows, and count as far as they were recorded. The last depth is the deepest one that a
    tenth of them reach.
    """
    found, left = path_ranks(recording, max(STATIC_DEPTHS)), recording.rows.left
    at = np.flatnonzero(chosen & (left > 0))
    least = max(len(at) // 10, 1)
    rows: list[Floats] = []
    for depth in range(found.shape[1]):
        at = at[found[at, depth] != UNKNOWN]
        if len(at) < least:
            break
        counts = np.bincount(found[at, depth], minlength=recording.children)[: recording.children]
        rows.append(counts / len(at))
        at = at[(found[at, depth] < recording.children) & (left[at] > depth + 1)]
    return np.array(rows)


def _beam(recording: Recording, top_k: int, most_tokens: int) -> Iterator[tuple[TreePolicy, PositionResults]]:
    """Yield the EAGLE-2 trees of one width; sizes that hold every candidate appear once."""
    sizes = [size for size in EAGLE2_SIZES if size <= most_tokens]
    for policy, results in eagle2_results(recording, top_k, EAGLE2_DEPTHS, sizes) if sizes else ():
        if policy.max_verify_tokens == policy.verify_tokens:
            yield policy, results


def _opt_trees(children: int, most_tokens: int) -> list[OptTreePolicy]:
    return [
        OptTreePolicy(nodes=nodes, least_gain=gain, max_depth=depth, children=min(nodes, children))
        for nodes in OPT_TREE_NODES
        if nodes < most_tokens
        for gain in OPT_TREE_GAINS
        for depth in OPT_TREE_DEPTHS
    ]
