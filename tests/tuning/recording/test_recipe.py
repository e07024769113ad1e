"""What the levels of a recording hold, and recipes that cannot be."""

from __future__ import annotations

import heapq

import pytest

from spectune.errors import MeasurementError
from spectune.planner.strategies.chain import TRANSFORMERS_BEFORE, ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import EAGLE, EAGLE_OF_TALON, Eagle2Policy
from spectune.planner.strategies.opt_tree import OptTreePolicy, opt_tree
from spectune.planner.strategies.talon import TalonPolicy, talon
from spectune.tuning.recording.recipe import BestFirst, Recipe, recipe_of
from spectune.tuning.request import Level

from ...support.toy_drafter import ToyDrafter
from ...support.toy_forest import Path, expanded, grown

CHILDREN, VOCABULARY = 6, 9
SEEDS = range(6)
ROOT: dict[Path, float] = {(): 0.0}  # path log-probability by path


def beams(level: Level) -> dict[int, int]:
    return {tree.top_k: tree.depth for tree in recipe_of(level).trees if isinstance(tree, Eagle2Policy)}


def longest_chain(level: Level) -> int:
    return max(tree.length for tree in recipe_of(level).trees if isinstance(tree, ChainPolicy))


@pytest.mark.parametrize("level", ["chains", "quick", "standard", "full"])
def test_every_level_holds_chains_of_eight(level: Level) -> None:
    assert longest_chain(level) >= 8 > TRANSFORMERS_BEFORE.length


@pytest.mark.parametrize("level", ["standard", "full"])
def test_the_wider_levels_hold_eagle2s_own_tree_and_beams_of_every_width(level: Level) -> None:
    assert beams(level)[EAGLE.top_k] >= EAGLE.depth
    assert sorted(beams(level)) == list(range(2, 11))


def test_the_full_level_holds_transformers_chain_and_the_deepest_of_eagles_trees() -> None:
    assert longest_chain("full") == ConfidentChainPolicy().length
    assert beams("full")[10] == EAGLE_OF_TALON.depth


def test_the_full_level_holds_talons_and_opt_trees_published_trees() -> None:
    assert {talon(), talon(10)} <= {*recipe_of("full").trees}
    assert talon(10) in recipe_of("standard").trees
    recorded = [tree for tree in recipe_of("full").trees if isinstance(tree, OptTreePolicy)]
    for published in (opt_tree(), opt_tree(10)):
        (alike,) = [tree for tree in recorded if tree.children == published.children]
        assert (alike.nodes, alike.least_gain) == (published.nodes, published.least_gain)
        assert alike.max_depth >= published.max_depth


@pytest.mark.parametrize(("less", "more"), [("quick", "standard"), ("standard", "full")])
def test_a_level_expands_all_that_the_level_below_expands(less: Level, more: Level) -> None:
    text, found = [1, 5, 5, 0, 2], []
    for level in (less, more):
        _, layers = grown(recipe_of(level).trees, text, vocabulary=14, children=recipe_of(more).children)
        found.append(expanded(layers, ToyDrafter(0, 14), text))
    assert all(few < many for few, many in zip(*found, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"children": 0},
        {"children": 255},
        {"children": 3, "trees": (Eagle2Policy(top_k=4, depth=1),)},
        {"children": 10, "trees": (TalonPolicy(children=49),)},
    ],
)
def test_an_impossible_recipe_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        Recipe(**change)  # type: ignore[arg-type]


def drawn(tree: BestFirst, seed: int) -> set[Path]:
    """Return what a tree expands behind the text (0,)."""
    _, layers = grown([tree], [0, 0], seed=seed, vocabulary=VOCABULARY, children=CHILDREN)
    return expanded(layers, ToyDrafter(seed, VOCABULARY), [0, 0])[0]


def below(paths: dict[Path, float], seed: int) -> dict[Path, float]:
    """Return the path log-probabilities of all children of some nodes."""
    toy = ToyDrafter(seed, VOCABULARY)
    return {
        (*path, token): score + float(step)
        for path, score in paths.items()
        for token, step in toy.best((0, *path), CHILDREN)
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nodes", [2, 5, 12, 25])
def test_best_first_expands_every_node_of_the_most_probable_tree(nodes: int, seed: int) -> None:
    heap = [(-score, path) for path, score in below(ROOT, seed).items()]
    heapq.heapify(heap)
    tree: set[Path] = {()}
    while len(tree) < nodes:
        score, path = heapq.heappop(heap)
        tree.add(path)
        for child, value in below({path: -score}, seed).items():
            heapq.heappush(heap, (-value, child))
    assert tree <= drawn(BestFirst(nodes=nodes, children=CHILDREN), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nodes", [2, 5, 12])
def test_best_first_expands_a_candidate_if_it_is_among_the_best_seen_so_far(nodes: int, seed: int) -> None:
    wanted, seen, layer = set(ROOT), dict[Path, float](), ROOT
    while layer:
        candidates = below(layer, seed)
        seen |= candidates
        among = sorted(seen, key=lambda path: -seen[path])[: nodes - 1]
        layer = {path: score for path, score in candidates.items() if path in among}
        wanted |= set(layer)
    assert drawn(BestFirst(nodes=nodes, children=CHILDREN), seed) == wanted
