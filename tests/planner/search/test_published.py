"""Published planners: Sequoia's tree of a grid, and CAST's width for block drafters."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.errors import PlanError

from ...support.best_trees import expected_tokens
from ...support.ordered_trees import ordered_trees, tree_depth, tree_value
from ...support.published_rivals import cast_b_width, sequoia_tree

VECTORS = [[0.7], [0.6, 0.2], [0.5, 0.3, 0.1], [0.1, 0.7], [0.4, 0.2, 0.15, 0.1]]
PACKED = [16, 24, 32, 48, 64, 96, 128]
H100_QWEN3_8B_MS = [30.6, 30.2, 30.6, 31.2, 31.5, 32.2, 32.6]  # the package's probe; Source: arXiv:2610.00321
# Points of the paper's GSM8K curve of mean prefix masses, by rank; between them it is read off log-log.
GSM8K = {1: 0.8595, 2: 0.7131, 4: 0.5112, 8: 0.2940, 12: 0.1803, 15: 0.1276, 16: 0.0760, 24: 0.0410, 32: 0.02675}
GSM8K |= {
    48: 0.01594,
    64: 0.01119,
    80: 0.008555,
    96: 0.006902,
    112: 0.005739,
    120: 0.005286,
    121: 0.005234,
    128: 0.0049,
}
MASSES = np.exp(np.interp(np.log(np.arange(1, 129)), np.log(list(GSM8K)), np.log(list(GSM8K.values())))).tolist()


def value_of(acceptance: list[float], nodes: int, levels: int) -> float:
    """F(nodes, levels) from the procedure: nothing else in the grid, free drafts."""
    return sequoia_tree(acceptance, [nodes], [1.0], 0.0, max_levels=levels).tokens_per_round


@pytest.mark.thinned
@pytest.mark.parametrize("nodes", range(1, 11))
@pytest.mark.parametrize("acceptance", VECTORS)
def test_sequoias_values_equal_enumeration_of_all_ordered_trees(acceptance: list[float], nodes: int) -> None:
    rows = [acceptance] * nodes
    allowed = [tree for tree in ordered_trees(nodes) if widest(tree) <= len(acceptance) and tree_depth(tree) <= 9]
    truth = max(tree_value(tree, rows) for tree in allowed)
    assert value_of(acceptance, nodes, levels=10) == pytest.approx(truth, abs=1e-12)


def widest(tree: tuple) -> int:
    return max(len(tree), *map(widest, tree), 0) if tree else 0


@pytest.mark.parametrize("acceptance", VECTORS)
def test_sequoias_values_never_fall_with_nodes_or_levels(acceptance: list[float]) -> None:
    values = np.array([[value_of(acceptance, m, levels) for m in range(1, 5)] for levels in range(4, 9)])
    assert np.all(np.diff(values, axis=0) >= -1e-12) and np.all(np.diff(values, axis=1) >= -1e-12)


@pytest.mark.parametrize("acceptance", VECTORS)
def test_sequoias_tree_has_the_chosen_size_and_yields_the_value(acceptance: list[float]) -> None:
    found = sequoia_tree(acceptance, [6], [1.0], 0.01, max_levels=7)
    assert found.tree.size == 6
    assert expected_tokens(found.tree, acceptance) == pytest.approx(found.tokens_per_round)


def test_sequoias_tree_of_a_certain_first_child_is_a_chain() -> None:
    assert sequoia_tree([1.0, 0.0], [5], [1.0], 0.0).tree.parents == (-1, 0, 1, 2, 3)


def test_sequoias_tree_of_one_node_yields_one_token() -> None:
    assert value_of([0.6, 0.2], 1, levels=10) == 1.0


@pytest.mark.parametrize("seed", range(10))
def test_sequoias_choice_is_the_least_of_all_sizes_and_levels(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes, acceptance = [1, 3, 4, 6, 8], [0.5, 0.2, 0.1]
    verify, draft_ms = (10.0 + random.uniform(0.0, 8.0, 5)).tolist(), random.uniform(0.0, 2.0)
    rivals = [
        ((tree_depth(tree) + 1) * draft_ms + ms) / tree_value(tree, [acceptance] * 8)
        for size, ms in zip(sizes, verify, strict=True)
        for tree in ordered_trees(size)
        if widest(tree) <= 3
    ]
    found = sequoia_tree(acceptance, sizes, verify, draft_ms)
    assert found.ms_per_token == pytest.approx(min(rivals))


@pytest.mark.parametrize(("sizes", "verify"), [([], []), ([0], [1.0]), ([2, 3], [1.0])])
def test_sequoia_refuses_a_grid_without_times(sizes: list[int], verify: list[float]) -> None:
    with pytest.raises(PlanError, match="Sequoia needs"):
        sequoia_tree([0.5], sizes, verify, 1.0)


def test_sequoia_refuses_sizes_that_no_tree_has() -> None:
    with pytest.raises(PlanError, match="no tree"):
        sequoia_tree([0.5], [20], [1.0], 1.0, max_levels=5)


def test_the_h100_probe_deploys_127_nodes() -> None:
    found = cast_b_width(PACKED, H100_QWEN3_8B_MS, MASSES)
    assert found.slope_ms == pytest.approx(0.0211, abs=5e-5)
    assert (found.stop, found.width) == (120, 127)


def test_the_h100_probe_does_not_stop_inside_the_curve_with_the_drafters_time() -> None:
    found = cast_b_width(PACKED, H100_QWEN3_8B_MS, MASSES, draft_ms=3.8)
    assert (found.stop, found.width) == (len(MASSES), 127)


def test_the_width_rule_stops_where_a_hand_calculation_says() -> None:
    line = [1.0 + 0.25 * n for n in PACKED]  # rho_2 = 0.3 >= 1.5 / 1.5 * 0.25, rho_3 = 0.2 < 1.8 / 1.75 * 0.25
    assert cast_b_width(PACKED, line, [0.5, 0.3, 0.2, 0.1], widths=(1, 2, 3)).stop == 2


def test_on_a_line_the_width_rule_finds_the_best_rate() -> None:
    line = [20.0 + 0.2 * n for n in PACKED]
    rate = [(1.0 + sum(MASSES[:n])) / (3.0 + 20.0 + 0.2 * (n + 1)) for n in range(1, 129)]
    assert cast_b_width(PACKED, line, MASSES, draft_ms=3.0).stop == 1 + int(np.argmax(rate))


def test_flat_costs_never_stop_the_width_rule() -> None:
    assert cast_b_width(PACKED, [30.0] * 7, MASSES).stop == len(MASSES)


def test_the_probe_outside_the_fitted_span_does_not_count() -> None:
    assert cast_b_width([1, *PACKED], [5.0, *H100_QWEN3_8B_MS], MASSES) == cast_b_width(
        PACKED, H100_QWEN3_8B_MS, MASSES
    )


def test_the_width_rule_refuses_a_probe_of_one_point() -> None:
    with pytest.raises(PlanError, match="two probed"):
        cast_b_width([16], [30.0], MASSES)
