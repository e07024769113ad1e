"""What is recorded: exactly what each strategy alone would ask when it drafts, and no node is asked twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.records.draft import Children, Ints
from spectune.planner.strategies.base import Strategy, grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.acceptance import MISS
from spectune.profiler.records.calibration import SurvivalCurve
from spectune.tuning.recording.recipe import BestFirst, recipe_of
from spectune.tuning.recording.union import ExpandedLayer

from ...support.toy_drafter import ToyDrafter, ToyScorer
from ...support.toy_forest import Path, expanded, grown

CAST = CastPolicy(
    breadth=0.3,
    depth=0.4,
    rerank=0.5,
    max_width=5,
    max_depth=5,
    max_verify_tokens=12,
    ratio_window=3,
    draft_cost_ms=(0.0, *(1.0 + 0.2 * width for width in range(6))),
    verify_cost_ms=(0.0, *(9.0 + 0.5 * tokens for tokens in range(12))),
)
SURE, UNSURE = (
    SurvivalCurve(log_probs=(-6.0, -2.0, -0.1), survivals=survivals, nodes=9)
    for survivals in ((0.1, 0.6, 1.0), (0.0, 0.2, 0.5))
)
TREES: list[Strategy] = [
    Eagle2Policy(top_k=1, depth=5),
    Eagle2Policy(top_k=3, depth=3),
    Eagle2Policy(top_k=5, depth=2),
    TalonPolicy(nodes=14, gate=0.2, top_k=3, children=6),
    BestFirst(nodes=16, children=6),
    OptTreePolicy(nodes=6, least_gain=0.3, max_depth=4),
    CAST,
]
MORE: list[Strategy] = [
    ChainPolicy(length=5),
    ConfidentChainPolicy(length=5, confidence=0.4),
    TalonPolicy(nodes=30, gate=0.03, top_k=4, children=4),
    TalonPolicy(nodes=9, gate=0.9, top_k=2, children=5),
    TalonPolicy(nodes=4, gate=0.1, top_k=6, children=6),
    TalonPolicy(nodes=20, gate=0.1, top_k=3, children=6, max_depth=2),
    OptTreePolicy(nodes=6, least_gain=0.1, max_depth=10, children=4),
    OptTreePolicy(nodes=3, least_gain=0.0, max_depth=2, children=2),
    replace(CAST, breadth=0.0, depth=0.0),
    replace(CAST, breadth=0.6, depth=0.1, survival=(SURE,)),
    replace(CAST, survival=(SURE, UNSURE)),
    replace(CAST, breadth=4.0, depth=3.0, rerank=2.5),
]
TEXT = [4, 1, 1, 8, 0, 3, 5, 2, 6, 6]
BEFORE = {
    ("quick", 99): "812d1b505f433239",
    ("quick", 3): "7e88bfc1ed24cda5",
    ("standard", 99): "3c3a87ad9d5da628",
    ("standard", 3): "316f19397b02833c",
    ("full", 99): "d06c98c60b9a2855",
    ("full", 3): "d81f719c0d6d17a2",
    ("mixed", 99): "6b22cdd78e9e8db6",
    ("mixed", 3): "46a1ce07a4032337",
}


def followed(seed: int) -> list[int]:
    """A text that often takes the drafter's own best tokens, so that neighbouring trees share nodes."""
    drafter, text = ToyDrafter(seed, 9), [seed % 9]
    for place in range(9):
        text.append(drafter.best(tuple(text), 3)[(seed + place) % 3 if place % 2 else 0][0])
    return text


FOLLOWED = {seed: followed(seed) for seed in range(8)}


def drawn(trees: Sequence[Strategy], text: list[int], seed: int, levels: int | None) -> list[set[Path]]:
    return expanded(grown(trees, text, seed=seed, levels=levels)[1], ToyDrafter(seed, 9, levels), text)


class WatchedScorer(ToyScorer):
    """A ToyScorer behind a text that remembers every node it was asked about."""

    def __init__(self, drafter: ToyDrafter, text: Sequence[int]):
        super().__init__([drafter])
        self.paths, self.known = [[tuple(text)]], len(text)
        self.asked: set[Path] = {()}

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        answer = super().expand(parents, ranks, children)
        self.asked |= {path[self.known :] for path in self.paths[0]}
        return answer


def asked_when_drafting(tree: Strategy, text: list[int], seed: int, levels: int | None) -> list[set[Path]]:
    found = []
    for position in range(len(text) - 1):
        scorer = WatchedScorer(ToyDrafter(seed, 9, levels), text[: position + 1])
        grow(tree, scorer, 1)
        found.append(scorer.asked)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("levels", [None, 3], ids=["distinct scores", "many ties"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tree", [*TREES, *MORE], ids=str)
def test_what_is_recorded_is_what_the_strategy_asks_when_it_drafts_for_one_sequence(
    tree: Strategy, seed: int, levels: int | None
) -> None:
    text = followed(seed) if levels is None else TEXT
    assert drawn([tree], text, seed, levels) == asked_when_drafting(tree, text, seed, levels)


def digest(layers: Sequence[ExpandedLayer]) -> str:
    fields = [part for one in layers for part in (one.positions, one.parents, one.ranks, one.hit_ranks)]
    return hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in fields)).hexdigest()[:16]


@pytest.mark.parametrize("possible", [99, 3], ids=["all tokens", "the best three"])
@pytest.mark.parametrize("name", ["quick", "standard", "full", "mixed"])
def test_the_trees_are_node_for_node_those_of_the_rules_that_were_written_for_recording_alone(
    name: str, possible: int
) -> None:
    """The digests were made before strategies themselves were asked."""
    recipe = None if name == "mixed" else recipe_of(name)  # type: ignore[arg-type]
    trees, children = (TREES, 6) if recipe is None else (recipe.trees, recipe.children)
    _, layers = grown(trees, TEXT[:6], seed=1, vocabulary=14, children=children, levels=5, possible=possible)
    assert digest(layers) == BEFORE[name, possible]


@pytest.mark.thinned
@pytest.mark.parametrize("levels", [None, 3], ids=["distinct scores", "many ties"])
@pytest.mark.parametrize("seed", range(4))
def test_the_union_holds_exactly_what_each_strategy_alone_asks(seed: int, levels: int | None) -> None:
    text = followed(seed) if levels is None else TEXT
    alone = [drawn([tree], text, seed, levels) for tree in TREES]
    together = drawn(TREES, text, seed, levels)
    assert together == [set().union(*(one[position] for one in alone)) for position in range(len(text) - 1)]


@pytest.mark.parametrize(
    ("tree", "other"),
    [
        (Eagle2Policy(top_k=2, depth=3), Eagle2Policy(top_k=6, depth=3)),
        (Eagle2Policy(top_k=6, depth=3), Eagle2Policy(top_k=2, depth=3)),
        (TalonPolicy(nodes=20, gate=0.2, top_k=3, children=6), Eagle2Policy(top_k=6, depth=7)),
        (BestFirst(nodes=16, children=6), TalonPolicy(nodes=20, gate=0.2, top_k=3, children=6)),
        (CAST, Eagle2Policy(top_k=2, depth=4)),
    ],
)
def test_one_strategy_may_ask_about_nodes_that_another_does_not(tree: Strategy, other: Strategy) -> None:
    pairs = [(drawn([tree], text, seed, None), drawn([other], text, seed, None)) for seed, text in FOLLOWED.items()]
    assert any(not own <= others for mine, theirs in pairs for own, others in zip(mine, theirs, strict=True))


def test_no_node_of_a_text_is_asked_twice_whichever_tree_it_is_in() -> None:
    text = followed(2)
    drafter, layers = grown(TREES, text, seed=2)
    assert len(set(drafter.prefixes)) == len(drafter.prefixes)
    in_trees = sum(len(layer.ranks) for layer in layers)
    assert len(drafter.prefixes) < 0.8 * in_trees


def test_without_strategies_only_the_roots_are_taken() -> None:
    drafter, layers = grown([], TEXT)
    assert len(layers) == 1 and layers[0].parents.tolist() == [-1] * 9
    assert len(drafter.prefixes) == 9


def test_hits_follow_the_text_and_stop_where_it_ends() -> None:
    text = followed(3)
    toy = ToyDrafter(3, 9)
    _, layers = grown(TREES, text, seed=3)
    hits: dict[tuple[int, Path], int] = {}
    places: list[list[Path]] = [[] for _ in text[1:]]
    for layer in layers:
        fields = (layer.positions, layer.parents, layer.ranks, layer.hit_ranks)
        for position, parent, rank, hit in zip(*(field.tolist() for field in fields), strict=True):
            above = () if parent < 0 else places[position][parent]
            step = () if parent < 0 else (toy.best((*text[: position + 1], *above), rank + 1)[rank][0],)
            places[position].append((*above, *step))
            hits[position, (*above, *step)] = hit
    for (position, path), hit in hits.items():
        truth = tuple(text[position + 1 :])
        ranked = [token for token, _ in toy.best((*text[: position + 1], *path), 6)]
        is_on_path = path == truth[: len(path)] and len(path) < len(truth)
        assert hit == (ranked.index(truth[len(path)]) if is_on_path and truth[len(path)] in ranked else MISS)


def test_scores_are_the_drafters_own_whichever_position_asked() -> None:
    text = followed(0)
    toy = ToyDrafter(0, 9)
    _, layers = grown(TREES, text, seed=0)
    places: list[list[Path]] = [[] for _ in text[1:]]
    for layer in layers:
        for node, position in enumerate(layer.positions.tolist()):
            parent, rank = int(layer.parents[node]), int(layer.ranks[node])
            above = () if parent < 0 else places[position][parent]
            step = () if parent < 0 else (toy.best((*text[: position + 1], *above), rank + 1)[rank][0],)
            places[position].append((*above, *step))
            own = [score for _, score in toy.best((*text[: position + 1], *above, *step), 6)]
            assert np.array_equal(layer.log_probs[node], np.array(own, dtype=np.float32))
