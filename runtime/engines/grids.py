"""Policies worth a look in an engine, whatever a plan chose: what engines have names for."""

from __future__ import annotations

from dataclasses import replace

from ...planner.search.candidates import CHAIN_LENGTHS, CONFIDENCES, CONFIDENT_LENGTHS
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.confident_chain import ConfidentChainPolicy
from ...planner.strategies.eagle2 import Eagle2Policy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.suffix_tree import SuffixTreePolicy
from ...planner.text.candidates import LOOKUP_LENGTHS, LOOKUP_NGRAMS, TREE_CHANCES

TREE_WIDTHS = (2, 3, 4, 6, 8, 10)
TREE_DEPTHS = range(1, 8)
TREE_SIZES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60)
SUFFIX_NODES = (4, 8, 16, 32)

CHAINS = tuple(ChainPolicy(length=length) for length in CHAIN_LENGTHS)
CONFIDENT = tuple(
    ConfidentChainPolicy(length=length, confidence=confidence)
    for length in CONFIDENT_LENGTHS
    for confidence in CONFIDENCES
)
LOOKUPS = tuple(
    LookupPolicy(length=length, max_ngram=longest, min_ngram=shortest)
    for longest, shortest in LOOKUP_NGRAMS
    for length in LOOKUP_LENGTHS
)
FIRST_LOOKUPS = tuple(replace(policy, occurrence="first") for policy in LOOKUPS)
TREES = tuple(
    Eagle2Policy(verify_tokens=size, depth=depth, top_k=width)
    for width in TREE_WIDTHS
    for depth in TREE_DEPTHS
    for size in TREE_SIZES
    if size > depth + 2 and size - 1 <= width + depth * width**2
)
SUFFIX_TREES = tuple(
    SuffixTreePolicy(nodes=nodes, factor=factor, offset=0, least_chance=chance)
    for nodes in SUFFIX_NODES
    for factor in (1, 2)
    for chance in TREE_CHANCES
)
