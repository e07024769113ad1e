"""Policies worth a look in an engine, whatever a plan chose: what engines have names for."""

from __future__ import annotations

from dataclasses import replace

from ..planner.strategies import REGISTRY, TreePolicy
from ..planner.strategies.chain import LENGTHS as CHAIN_LENGTHS
from ..planner.strategies.chain import ChainPolicy
from ..planner.strategies.lookup import LENGTHS as LOOKUP_LENGTHS
from ..planner.strategies.lookup import NGRAMS as LOOKUP_NGRAMS
from ..planner.strategies.lookup import LookupPolicy


def grid_of(kind: str) -> tuple[TreePolicy, ...]:
    """Return the policies of a kind that are worth a look in engines; none where no such kind is registered."""
    return tuple(REGISTRY[kind].engine_grid()) if kind in REGISTRY else ()


CHAINS = tuple(ChainPolicy(length=length) for length in CHAIN_LENGTHS)
LOOKUPS = tuple(
    LookupPolicy(length=length, max_ngram=longest, min_ngram=shortest)
    for longest, shortest in LOOKUP_NGRAMS
    for length in LOOKUP_LENGTHS
)
FIRST_LOOKUPS = tuple(replace(policy, occurrence="first") for policy in LOOKUPS)
CONFIDENT, TREES, SUFFIX_TREES = grid_of("confident-chain"), grid_of("eagle2"), grid_of("suffix-tree")
