"""The union of growth rules: exactly what each of them alone would expand, and no node asked twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from spectune.planner.strategies.cast import CastPolicy
from spectune.profiler.records.acceptance import MISS
from spectune.tuning.recording.cast_rule import Cast
from spectune.tuning.recording.growth_rule import GrowthRule
from spectune.tuning.recording.growth_rules import Beam, BestFirst, OptTree, Talon

from .toy_drafter import ToyDrafter
from .toy_forest import Path, expanded, grown

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
RULES: list[GrowthRule] = [
    Beam(width=1, forwards=6),
    Beam(width=3, forwards=4),
    Beam(width=5, forwards=3),
    Talon(nodes=14, gate=0.2, top_k=3, children=6),
    BestFirst(nodes=16, children=6),
    OptTree(nodes=6, least_gain=0.3, max_depth=4),
    Cast(policy=CAST),
]
TEXT = [4, 1, 1, 8, 0, 3, 5, 2, 6, 6]


def followed(seed: int) -> list[int]:
    """A text that often takes the drafter's own best tokens, so that neighbouring trees share nodes."""
    drafter, text = ToyDrafter(seed, 9), [seed % 9]
    for place in range(9):
        text.append(drafter.best(tuple(text), 3)[(seed + place) % 3 if place % 2 else 0][0])
    return text


FOLLOWED = {seed: followed(seed) for seed in range(8)}


def drawn(rules: Sequence[GrowthRule], text: list[int], seed: int, levels: int | None) -> list[set[Path]]:
    return expanded(grown(rules, text, seed=seed, levels=levels)[1], ToyDrafter(seed, 9, levels), text)


@pytest.mark.parametrize("levels", [None, 3], ids=["distinct scores", "many ties"])
@pytest.mark.parametrize("seed", range(4))
def test_the_union_holds_exactly_what_each_rule_alone_expands(seed: int, levels: int | None) -> None:
    text = followed(seed) if levels is None else TEXT
    alone = [drawn([rule], text, seed, levels) for rule in RULES]
    together = drawn(RULES, text, seed, levels)
    assert together == [set().union(*(one[position] for one in alone)) for position in range(len(text) - 1)]


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        (Beam(width=2, forwards=4), Beam(width=6, forwards=4)),
        (Beam(width=6, forwards=4), Beam(width=2, forwards=4)),
        (Talon(nodes=20, gate=0.2, top_k=3, children=6), Beam(width=6, forwards=8)),
        (BestFirst(nodes=16, children=6), Talon(nodes=20, gate=0.2, top_k=3, children=6)),
        (Cast(policy=CAST), Beam(width=2, forwards=5)),
    ],
)
def test_one_rule_may_expand_nodes_another_does_not(rule: GrowthRule, other: GrowthRule) -> None:
    pairs = [(drawn([rule], text, seed, None), drawn([other], text, seed, None)) for seed, text in FOLLOWED.items()]
    assert any(not own <= others for mine, theirs in pairs for own, others in zip(mine, theirs, strict=True))


def test_no_node_of_a_text_is_asked_twice_whichever_tree_it_is_in() -> None:
    text = followed(2)
    drafter, layers = grown(RULES, text, seed=2)
    assert len(set(drafter.prefixes)) == len(drafter.prefixes)
    in_trees = sum(len(layer.ranks) for layer in layers)
    assert len(drafter.prefixes) < 0.8 * in_trees


def test_without_rules_only_the_roots_are_taken() -> None:
    drafter, layers = grown([], TEXT)
    assert len(layers) == 1 and layers[0].parents.tolist() == [-1] * 9
    assert len(drafter.prefixes) == 9


def test_hits_follow_the_text_and_stop_where_it_ends() -> None:
    text = followed(3)
    toy = ToyDrafter(3, 9)
    _, layers = grown(RULES, text, seed=3)
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
    _, layers = grown(RULES, text, seed=0)
    places: list[list[Path]] = [[] for _ in text[1:]]
    for layer in layers:
        for node, position in enumerate(layer.positions.tolist()):
            parent, rank = int(layer.parents[node]), int(layer.ranks[node])
            above = () if parent < 0 else places[position][parent]
            step = () if parent < 0 else (toy.best((*text[: position + 1], *above), rank + 1)[rank][0],)
            places[position].append((*above, *step))
            own = [score for _, score in toy.best((*text[: position + 1], *above, *step), 6)]
            assert np.array_equal(layer.log_probs[node], np.array(own, dtype=np.float32))
