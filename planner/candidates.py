"""What competes in every cell: the grids of policies, and their results at every position."""

from __future__ import annotations

from collections.abc import Iterator

from .acceptance import PositionResults, eagle2_results, lookup_results, plain_results, rank_results
from .cost import CellCosts
from .policy import CastPolicy, ChainPolicy, Eagle2Policy, PlainPolicy, StaticPolicy, TreePolicy
from .recorded import Recording, Rows, Text
from .static_tree import Floats, nested_trees
from .tree import TokenTree

CHAIN_LENGTHS = range(1, 9)
LOOKUP_LENGTHS = (1, 2, 3, 4, 6, 8, 10)
LOOKUP_NGRAMS = ((2, 1), (2, 2), (3, 1), (3, 2))  # longest, shortest
STATIC_SIZES = (3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
STATIC_DEPTHS = (1, 2, 3, 4, 5, 6, 8)
EAGLE2_WIDTHS = (2, 3, 4, 6, 8, 10)
EAGLE2_DEPTHS = range(7)
EAGLE2_SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 60)
EAGLE2_DEFAULT = Eagle2Policy()  # as published: 60 tokens, depth 7, top 10
CAST_PAPER = (4.0, 3.0, 2.5)  # Source: arXiv:2510.26577, order C_1, C_2, C_3
CAST_UNIFORM = (1.0, 1.5, 2.0, 2.5, 3.0)
CAST_WIDTH, CAST_DEPTH, CAST_SIZE = 10, 8, 60
CAST_RATIOS = 4  # the paper's R is not printed

Contender = tuple[TreePolicy, PositionResults]


def textual(texts: tuple[Text, ...], rows: Rows) -> Iterator[Contender]:
    """Yield plain decoding, then every lookup: what needs no model."""
    yield PlainPolicy(), plain_results(rows)
    for max_ngram, min_ngram in LOOKUP_NGRAMS:
        yield from lookup_results(texts, max_ngram, min_ngram, LOOKUP_LENGTHS)


def drafted(recording: Recording, acceptance: Floats) -> Iterator[Contender]:
    """Yield chains, static trees and EAGLE-2 trees of one drafter, cheap ones first.

    Args:
        recording: of the drafter.
        acceptance: (children,), its unconditional acceptance by rank, from which static trees are built.
    """
    for length in CHAIN_LENGTHS:
        policy = ChainPolicy(length=length)
        yield policy, rank_results(policy, recording)
    if recording.is_prefix_exact:
        for tree in static_trees(acceptance):
            static = StaticPolicy(tree=tree)
            yield static, rank_results(static, recording)
    for top_k in EAGLE2_WIDTHS:
        if top_k <= recording.children:
            yield from _beam(recording, top_k)


def static_trees(acceptance: Floats) -> list[TokenTree]:
    """Return the best trees of every size and depth bound that are no chains, each shape once."""
    trees: dict[TokenTree, None] = {}
    for max_depth in STATIC_DEPTHS:
        nested = nested_trees(acceptance, max(STATIC_SIZES), max_depth)
        trees |= {tree: None for tree in nested if tree.size in STATIC_SIZES and tree.size > tree.depth + 1}
    return list(trees)


def cast_policies(costs: CellCosts, drafter: str, children: int) -> list[CastPolicy]:
    """Return CAST with the paper's and with uniform thresholds, on the cell's own cost tables."""
    draft, verify = costs.drafts[drafter], costs.verify
    width = min(CAST_WIDTH, children, draft.most_tokens)
    size = min(CAST_SIZE, verify.most_tokens)
    if size < 2:
        return []
    context = float(costs.cell.context)
    thresholds = [CAST_PAPER, *((uniform,) * 3 for uniform in CAST_UNIFORM)]
    return [
        CastPolicy(
            breadth=breadth,
            depth=depth,
            rerank=rerank,
            max_width=width,
            max_depth=CAST_DEPTH,
            max_verify_tokens=size,
            ratio_window=CAST_RATIOS,
            draft_cost_ms=tuple(draft.row(context)[: width + 1].tolist()),
            verify_cost_ms=tuple(verify.row(context)[: size + 1].tolist()),
        )
        for breadth, depth, rerank in thresholds
    ]


def _beam(recording: Recording, top_k: int) -> Iterator[Contender]:
    """Yield the EAGLE-2 trees of one width; sizes that hold every candidate appear once."""
    depths = set(EAGLE2_DEPTHS)
    if top_k == EAGLE2_DEFAULT.top_k:
        depths.add(EAGLE2_DEFAULT.depth)
    for policy, results in eagle2_results(recording, top_k, depths, EAGLE2_SIZES):
        is_in_grid = policy.depth in EAGLE2_DEPTHS or policy == EAGLE2_DEFAULT
        if is_in_grid and policy.max_verify_tokens == policy.verify_tokens:
            yield policy, results
