"""What is recorded at every position: the union of what several ways of growing a tree would expand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias, cast

from ...errors import MeasurementError
from ...planner.strategies import TreePolicy
from ...profiler.records.acceptance import MISS
from ..request import Level
from .growth_rule import GrowthRule
from .growth_rules import Beam, BestFirst, OptTree, Talon

Rule: TypeAlias = GrowthRule
LEVELS: tuple[Level, ...] = ("standard", "quick", "chains")  # among which time decides, the richest first

CHILDREN, MOST_CHILDREN = 10, 60
CHAINS: tuple[Rule, ...] = (Beam(width=1, forwards=8),)
NARROW: tuple[Rule, ...] = tuple(
    Beam(width=width, forwards=forwards) for width, forwards in ((1, 8), (2, 6), (3, 5), (4, 4))
)
BEAMS: tuple[Rule, ...] = tuple(
    Beam(width=width, forwards=8) for width in range(1, CHILDREN + 1)
)  # the widest is EAGLE-2 60/7/10's own
STANDARD: tuple[Rule, ...] = (*BEAMS, Talon(children=CHILDREN), BestFirst(nodes=24))
DEEP: tuple[Rule, ...] = (Beam(width=1, forwards=20), Beam(width=10, forwards=9))  # transformers' chain, EAGLE 60/8/10
FULL: tuple[Rule, ...] = (*STANDARD, *DEEP, Talon(), BestFirst(), OptTree(), OptTree(children=CHILDREN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Which nodes are recorded: those that any rule (by default `standard`) would expand, or the roots alone."""

    children: int = CHILDREN  # best next tokens recorded of each
    rules: tuple[Rule, ...] = STANDARD

    def __post_init__(self) -> None:
        if not 1 <= self.children < MISS:
            raise MeasurementError(f"a recording keeps 1..{MISS - 1} children of a node, got {self.children}")
        for rule in self.rules:
            if rule.children > self.children:
                raise MeasurementError(
                    f"{rule} looks at {rule.children} children of a node and {self.children} are recorded; record more"
                )


def recipe_of(level: Level, besides: Sequence[Rule] = ()) -> Recipe:
    """Return what a level records.

    chains    chains of up to 8; what a static tree keeps is known from the children of each position besides
    quick     chains and narrow beams: chains of up to 8, EAGLE-2 of top 2 to 4
    standard  beams of width 1 to 10 as deep as EAGLE-2's default, the 24 most probable nodes, and TALON's default
              tree; all over the 10 best children of a node
    full      besides these the 60 most probable nodes, TALON's and OPT-Tree's default trees over the 60 best children,
              which is all that they can use, chains of up to 20, and the deepest of EAGLE's published trees

    The rules `besides` come on top, such as CAST's: its cost tables are known once the device is measured.
    """
    if level == "chains":
        return Recipe(rules=(*CHAINS, *besides))
    if level == "quick":
        return Recipe(rules=(*NARROW, *besides))
    if level == "standard":
        return Recipe(rules=(*STANDARD, *besides))
    return Recipe(children=MOST_CHILDREN, rules=(*FULL, *besides))


def rule_of(policy: TreePolicy) -> Rule | None:
    """Return what a policy of a model expands at every position; None where the root tells all."""
    match policy.kind:
        case "confident-chain":
            return Beam(width=1, forwards=policy.draft_forwards)
        case "eagle2":
            return Beam(width=policy.top_k, forwards=policy.draft_forwards)
        case "talon":
            return Talon(nodes=policy.nodes, gate=policy.gate, top_k=policy.top_k, children=policy.children)
        case "opt-tree":
            depths = {"max_depth": policy.max_depth, "children": policy.children}
            return OptTree(nodes=policy.nodes, least_gain=policy.least_gain, **depths)
        case "cast":
            return cast(Rule, import_module(".cast_rule", __package__).Cast(policy=policy))
        case _:
            return None
