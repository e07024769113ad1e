"""What the levels of a recording hold, and recipes that cannot be."""

from __future__ import annotations

import pytest

from spectune.errors import MeasurementError
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import EAGLE, EAGLE_OF_TALON
from spectune.planner.strategies.opt_tree import opt_tree
from spectune.planner.strategies.talon import TalonPolicy, talon
from spectune.tuning.recording.cast_rule import Cast
from spectune.tuning.recording.growth_rules import Beam, OptTree, Talon
from spectune.tuning.recording.recipe import Recipe, recipe_of
from spectune.tuning.request import Level

from .toy_drafter import ToyDrafter
from .toy_forest import expanded, grown

CAST = CastPolicy(
    breadth=0.1,
    depth=0.1,
    rerank=0.1,
    max_width=4,
    max_depth=3,
    max_verify_tokens=6,
    ratio_window=2,
    draft_cost_ms=(0.0, 1.0, 1.1, 1.2, 1.3),
    verify_cost_ms=(0.0, *(9.0 + tokens for tokens in range(6))),
)


def beams(level: Level) -> dict[int, int]:
    return {rule.width: rule.forwards for rule in recipe_of(level).rules if isinstance(rule, Beam)}


@pytest.mark.parametrize("level", ["quick", "standard", "full"])
def test_every_level_holds_chains_of_eight(level: Level) -> None:
    assert beams(level)[1] >= 8


@pytest.mark.parametrize("level", ["standard", "full"])
def test_the_wider_levels_hold_eagle2s_own_tree_and_beams_of_every_width(level: Level) -> None:
    assert beams(level)[EAGLE.top_k] >= EAGLE.draft_forwards
    assert sorted(beams(level)) == list(range(1, 11))


def test_the_full_level_holds_transformers_chain_and_the_deepest_of_eagles_trees() -> None:
    assert beams("full")[1] == ConfidentChainPolicy().length
    assert beams("full")[10] == EAGLE_OF_TALON.draft_forwards


def test_the_full_level_holds_talons_and_opt_trees_published_trees() -> None:
    assert {Talon(nodes=60, gate=0.03, top_k=10), OptTree(nodes=60, least_gain=0.5, max_depth=10)} <= set(
        recipe_of("full").rules
    )


def rule_of(policy: TalonPolicy) -> Talon:
    return Talon(nodes=policy.nodes, gate=policy.gate, top_k=policy.top_k, children=policy.children)


def test_the_published_talon_is_recorded_whole_by_the_full_level_and_over_ten_children_by_both_wider_ones() -> None:
    assert rule_of(talon()) == rule_of(TalonPolicy(children=49)) in recipe_of("full").rules
    for level in ("standard", "full"):
        assert rule_of(talon(10)) == rule_of(TalonPolicy(children=10)) in recipe_of(level).rules


def test_the_published_opt_tree_lies_within_the_rule_of_the_full_level() -> None:
    policy = opt_tree()
    rule = OptTree(nodes=policy.nodes, least_gain=policy.least_gain, max_depth=10, children=policy.children)
    assert rule in recipe_of("full").rules and policy.max_depth <= rule.max_depth


@pytest.mark.parametrize(("less", "more"), [("quick", "standard"), ("standard", "full")])
def test_a_level_expands_all_that_the_level_below_expands(less: Level, more: Level) -> None:
    text, found = [1, 5, 5, 0, 2], []
    for level in (less, more):
        _, layers = grown(recipe_of(level).rules, text, vocabulary=14, children=recipe_of(more).children)
        found.append(expanded(layers, ToyDrafter(0, 14), text))
    assert all(few < many for few, many in zip(*found, strict=True))


def test_cast_policies_are_recorded_besides() -> None:
    assert recipe_of("quick", [Cast(policy=CAST)]).rules == (*recipe_of("quick").rules, Cast(policy=CAST))


def test_the_default_recipe_is_the_standard_level() -> None:
    assert Recipe() == recipe_of("standard")


@pytest.mark.parametrize(
    "change",
    [
        {"children": 0},
        {"children": 255},
        {"children": 3, "rules": (Beam(width=4, forwards=2),)},
        {"children": 3, "rules": (Cast(policy=CAST),)},
        {"children": 10, "rules": (Talon(),)},
        {"children": 10, "rules": (OptTree(),)},
    ],
)
def test_an_impossible_recipe_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        Recipe(**change)  # type: ignore[arg-type]
