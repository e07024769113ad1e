"""Each growth rule against its definition, spelt out over single paths of a toy drafter."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.planner.records.draft import Children, Ints
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.calibration import SurvivalCurve
from spectune.tuning.recording.cast_rule import Cast
from spectune.tuning.recording.growth_rule import GrowthRule
from spectune.tuning.recording.growth_rules import Beam, BestFirst, OptTree, Talon

from .toy_drafter import ToyDrafter, ToyScorer
from .toy_forest import Path, expanded, grown

CHILDREN, VOCABULARY = 6, 9
SEEDS = range(6)
ROOT: dict[Path, float] = {(): 0.0}  # path log-probability by path


def drawn(rule: GrowthRule, seed: int, vocabulary: int = VOCABULARY, children: int = CHILDREN) -> set[Path]:
    """Return what a rule expands behind the text (0,)."""
    _, layers = grown([rule], [0, 0], seed=seed, vocabulary=vocabulary, children=children)
    return expanded(layers, ToyDrafter(seed, vocabulary), [0, 0])[0]


def below(paths: dict[Path, float], seed: int, children: int = CHILDREN) -> dict[Path, float]:
    """Return the path log-probabilities of all children of some nodes."""
    toy = ToyDrafter(seed, VOCABULARY)
    return {
        (*path, token): score + float(step)
        for path, score in paths.items()
        for token, step in toy.best((0, *path), children)
    }


def best(candidates: dict[Path, float], count: int) -> dict[Path, float]:
    return dict(sorted(candidates.items(), key=lambda item: -item[1])[:count])


class WatchedScorer(ToyScorer):
    """A ToyScorer behind the text (0,) that remembers every node it was asked about."""

    def __init__(self, seed: int, vocabulary: int):
        super().__init__([ToyDrafter(seed, vocabulary)])
        self.paths = [[(0,)]]
        self.asked: set[Path] = {()}

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        answer = super().expand(parents, ranks, children)
        self.asked |= {path[1:] for path in self.paths[0]}
        return answer


def grown_by_the_planner(policy: TreePolicy, seed: int, vocabulary: int = VOCABULARY) -> set[Path]:
    scorer = WatchedScorer(seed, vocabulary)
    grow(policy, scorer, 1)
    return scorer.asked


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("top_k", "depth"), [(1, 5), (2, 3), (5, 2), (6, 0)])
def test_a_beam_expands_what_eagle2_of_its_width_expands(top_k: int, depth: int, seed: int) -> None:
    policy = Eagle2Policy(verify_tokens=20, depth=depth, top_k=top_k)
    assert drawn(Beam(width=top_k, forwards=policy.draft_forwards), seed) == grown_by_the_planner(policy, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("nodes", "gate", "top_k", "children"),
    [(14, 0.2, 3, 6), (30, 0.03, 6, 6), (30, 0.03, 4, 4), (9, 0.9, 2, 5), (4, 0.1, 6, 6), (8, 1.0, 1, 1)],
)
def test_talon_expands_what_the_planner_grows(nodes: int, gate: float, top_k: int, children: int, seed: int) -> None:
    rule = Talon(nodes=nodes, gate=gate, top_k=top_k, children=children)
    policy = TalonPolicy(nodes=nodes, gate=gate, top_k=top_k, children=children)
    assert drawn(rule, seed) == grown_by_the_planner(policy, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("children", [10, 49])
def test_the_levels_talon_expands_what_talons_published_tree_expands(children: int, seed: int) -> None:
    drawn_by_rule = drawn(Talon(children=children), seed, vocabulary=60, children=60)
    assert drawn_by_rule == grown_by_the_planner(TalonPolicy(children=children), seed, vocabulary=60)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("nodes", "gain", "depth", "children"), [(6, 0.5, 10, 6), (6, 0.1, 10, 4), (12, 0.02, 3, 6), (3, 0.0, 2, 2)]
)
def test_opt_tree_expands_what_the_planner_grows(nodes: int, gain: float, depth: int, children: int, seed: int) -> None:
    rule = OptTree(nodes=nodes, least_gain=gain, max_depth=depth, children=children)
    policy = OptTreePolicy(nodes=nodes, least_gain=gain, max_depth=depth, children=children)
    assert drawn(rule, seed) == grown_by_the_planner(policy, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("children", [10, 60])
def test_opt_trees_published_tree_is_recorded_by_its_rule(children: int, seed: int) -> None:
    drawn_by_rule = drawn(OptTree(children=children), seed, vocabulary=60, children=60)
    assert drawn_by_rule == grown_by_the_planner(OptTreePolicy(children=children), seed, vocabulary=60)


SURE, UNSURE = (
    SurvivalCurve(log_probs=(-6.0, -2.0, -0.1), survivals=survivals, nodes=9)
    for survivals in ((0.1, 0.6, 1.0), (0.0, 0.2, 0.5))
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("survival", [(), (SURE,), (SURE, UNSURE)])
@pytest.mark.parametrize("thresholds", [(0.0, 0.0, 0.0), (0.2, 0.3, 0.5), (0.6, 0.1, 0.5), (4.0, 3.0, 2.5)])
def test_cast_expands_what_the_planner_grows_for_one_sequence(
    thresholds: tuple[float, float, float], survival: tuple[SurvivalCurve, ...], seed: int
) -> None:
    breadth, depth, rerank = thresholds
    policy = CastPolicy(
        breadth=breadth,
        depth=depth,
        rerank=rerank,
        max_width=5,
        max_depth=5,
        max_verify_tokens=12,
        ratio_window=2,
        draft_cost_ms=(0.0, *(1.0 + 0.4 * (width // 2) for width in range(6))),
        verify_cost_ms=(0.0, *(9.0 + 0.5 * tokens for tokens in range(12))),
        survival=survival,
    )
    assert drawn(Cast(policy=policy), seed) == grown_by_the_planner(policy, seed)


def talon(seed: int, nodes: int, gate: float, top_k: int) -> set[Path]:
    """Return what TALON expands, straight from the paper's algorithm."""
    tree, layer, found = 1, ROOT, set[Path]()
    while tree < nodes:
        candidates = below(layer, seed)
        least = gate * math.exp(max(candidates.values()))
        passing = {path: score for path, score in candidates.items() if math.exp(score) >= least}
        passing = passing if found else best(candidates, top_k)
        found |= set(layer)
        layer = best(passing, nodes - tree)
        tree += len(layer)
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("nodes", "gate", "top_k"), [(14, 0.2, 3), (30, 0.03, 6), (9, 0.9, 2), (4, 0.1, 6)])
def test_talon_expands_what_the_papers_algorithm_expands(nodes: int, gate: float, top_k: int, seed: int) -> None:
    rule = Talon(nodes=nodes, gate=gate, top_k=top_k, children=CHILDREN)
    assert drawn(rule, seed) == talon(seed, nodes, gate, top_k)


def test_talons_layers_and_root_add_up_to_its_nodes_and_the_last_layer_is_not_expanded() -> None:
    choices = []
    growth = Talon(nodes=14, gate=0.2, top_k=3, children=CHILDREN).start(1)
    layer = ROOT
    while True:
        candidates = below(layer, 1)
        conditional = np.array(list(candidates.values()), dtype=np.float32).reshape(1, len(layer), CHILDREN)
        above = np.array(list(layer.values()), dtype=np.float32)[None, :, None]
        choice = growth.choose(conditional - above)
        choices.append(choice)
        if not choice.is_open[0]:
            break
        paths = list(candidates)
        layer = {paths[node]: candidates[paths[node]] for node in choice.nodes[0].tolist()}
    assert 1 + sum(choice.nodes.shape[1] for choice in choices) == 14
    assert (choices[-1].expanded == -1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_talon_with_the_strictest_gate_is_a_chain_below_the_first_layer(seed: int) -> None:
    found = drawn(Talon(nodes=8, gate=1.0, top_k=1, children=CHILDREN), seed)
    assert sorted(len(path) for path in found) == list(range(7))


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
        among = best(seen, nodes - 1)
        layer = {path: score for path, score in candidates.items() if path in among}
        wanted |= set(layer)
    assert drawn(BestFirst(nodes=nodes, children=CHILDREN), seed) == wanted


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gain", "most"), [(0.5, 10), (0.1, 10), (0.1, 3), (0.0, 2)])
def test_opt_tree_drafts_on_while_its_best_nodes_gain_enough(gain: float, most: int, seed: int) -> None:
    wanted, seen, layer, gained = set(ROOT), dict[Path, float](), ROOT, 0.0
    for depth in range(1, most + 1):
        candidates = below(layer, seed)
        seen |= candidates
        layer = best(candidates, 6)
        before, gained = gained, sum(math.exp(score) for score in best(seen, 6).values())
        if gained - before <= gain or depth == most:
            break
        wanted |= set(layer)
    assert drawn(OptTree(nodes=6, least_gain=gain, max_depth=most), seed) == wanted


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (Beam, {"width": 0, "forwards": 2}),
        (Beam, {"width": 2, "forwards": 0}),
        (Talon, {"nodes": 1}),
        (Talon, {"gate": 0.0}),
        (Talon, {"gate": 1.5}),
        (Talon, {"children": 5}),
        (BestFirst, {"nodes": 1}),
        (BestFirst, {"children": 0}),
        (OptTree, {"nodes": 0}),
        (OptTree, {"max_depth": 0}),
        (OptTree, {"children": 0}),
        (OptTree, {"least_gain": math.nan}),
    ],
)
def test_an_impossible_rule_is_refused(rule: type[GrowthRule], change: dict[str, float]) -> None:
    with pytest.raises(MeasurementError):
        rule(**change)
