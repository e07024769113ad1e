"""What a block drafter's rounds cost: one forward whatever its layers; and static trees that follow recorded paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.inputs import DrafterInputs
from spectune.planner.lockstep import Replay
from spectune.planner.pricing.bounds import Bound
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.planner.pricing.worth import DecisionWorth
from spectune.planner.records.recording import UNKNOWN, Recording, path_ranks, recording_of
from spectune.planner.records.results import same_everywhere
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.grown import grown_results
from spectune.planner.strategies.static import StaticPolicy, acceptance_by_depth
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.surface import LatencySurface

from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts
from .pricing.test_cost import DRAFT_MS, VERIFY_MS, one_round, overhead, surface

TREES = (
    TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0)),
    TokenTree(parents=(-1, 0, 1, 1, 2, 3), ranks=(0, 1, 0, 2, 0, 1)),
)


def costs(role: str) -> CellCosts:
    cell = Cell(batch=2, context=150)
    return cell_costs(cell, surface("verify", VERIFY_MS), {"it": surface(role, DRAFT_MS)}, overhead())


def drafted_ms(role: str, replay: Replay) -> float:
    return float(costs(role).times(replay, "chain", "it").draft_ms[0])


def test_all_layers_of_a_block_cost_the_one_forward_that_reads_what_was_committed() -> None:
    assert drafted_ms("block", one_round(125, widths=(1, 2, 2))) == 1.25 * 3
    assert drafted_ms("draft", one_round(125, widths=(1, 2, 2))) == 1.25 * (3 + 2 + 2)
    assert drafted_ms("block", one_round(125, widths=(0, 0, 0))) == 0.0


def test_a_layer_of_a_block_may_be_wider_than_any_measured_forward() -> None:
    assert drafted_ms("block", one_round(100, widths=(1, 9))) == 3.0


def test_host_time_counts_every_layer() -> None:
    times = costs("block").times(one_round(125, nodes=4, widths=(1, 2, 2)), "chain", "it")
    assert times.host_ms == pytest.approx([0.5 + 0.25 * 3 + 0.125 * 4])


def test_a_block_s_least_round_is_below_every_round() -> None:
    bound = Bound(most_tokens=1.0, nodes=np.array([2]), widths=same_everywhere((1, 2, 2)), censored_share=0.0)
    least = {role: bound.least_ms(costs(role).at_least("chain", "it")) for role in ("block", "draft")}
    round_ms = costs("block").times(one_round(100, catch_up=1, widths=(1, 2, 2)), "chain", "it").total_ms[0]
    assert least["block"] <= round_ms * (1 + 1e-12) and least["block"] == pytest.approx(least["draft"] - 2.0 - 2.0)


def test_cast_weighs_every_layer_of_a_block_alike() -> None:
    assert costs("block").drafts["it"].layers(100.0, 4) == (0.0, 1.0, 1.0, 1.0, 1.0)
    assert costs("draft").drafts["it"].layers(100.0, 2) == (0.0, 1.0, 2.0)


def test_a_block_drafter_is_in_no_stack() -> None:
    drafter = inputs(recorded(exact=True)[1]).drafters[0]
    block = replace(drafter, surface=renamed(drafter))
    assert block.reads_features and not drafter.reads_features


def renamed(drafter: DrafterInputs) -> LatencySurface:
    return replace(drafter.surface, role="block")


def test_shapes_that_only_deep_drafting_needs_are_worth_nothing_of_a_block() -> None:
    accepted = {1: np.array([0.8, 0.1])}
    cost = lambda surface, shape: 10.0 if surface == 0 else 1.0 + shape[2]  # noqa: E731
    model, block = (DecisionWorth(0, accepted, [100], (), blocks).worths(cost) for blocks in ((), {1}))
    assert model(1, (1, 100, 4)) > 0.0 == block(1, (1, 100, 4))
    assert block(1, (1, 100, 1)) > 0.0


def recorded(*, exact: bool, depth: int = 4) -> tuple[Recording, AcceptanceTrace]:
    language = Language(7)
    drafter, pairs = SkilledDrafter(language, 0.6), texts(language, 5, lambda text: 12 + text)
    trace = record(drafter, pairs, every_node(depth, 3), prefix_exact=exact)
    return recording_of(trace), trace


def test_a_recording_tells_how_many_layers_a_block_has() -> None:
    assert recorded(exact=False, depth=2)[0].layers == 3


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_static_tree_on_recorded_paths_is_the_tree_grown_there(tree: TokenTree) -> None:
    recording, _ = recorded(exact=False)
    policy = StaticPolicy(tree=tree)
    walked, grown = results_of(policy, recording), grown_results(policy, recording)
    rows = recording.rows.left > 0
    assert not walked.censored[rows].any() and (walked.accepted[rows] > 1).any()
    np.testing.assert_array_equal(
        np.minimum(walked.accepted, recording.rows.left)[rows], np.minimum(grown.accepted, recording.rows.left)[rows]
    )
    np.testing.assert_array_equal(walked.sizes[rows], grown.sizes[rows])


def test_a_path_that_was_not_recorded_is_censored_where_the_tree_goes_on_from_it() -> None:
    shallow, _ = recorded(exact=False, depth=0)
    flat = TokenTree(parents=(-1, 0, 0), ranks=(0, 0, 1))
    deep, wide = (results_of(StaticPolicy(tree=tree), shallow) for tree in (TREES[0], flat))
    first = path_ranks(shallow, 1)[:, 0]
    goes_on = (first == 0) & (shallow.rows.left > 1)
    assert goes_on.any() and np.array_equal(deep.censored, goes_on) and not wide.censored.any()


def test_acceptance_by_depth_is_counted_along_the_paths() -> None:
    """A drafter whose trees are functions of the text says the same either way."""
    exact, walked = (recorded(exact=is_exact)[0] for is_exact in (True, False))
    everywhere = np.ones(len(exact.rows.left), dtype=np.bool_)
    found, known = acceptance_by_depth(walked, everywhere), acceptance_by_depth(exact, everywhere)
    depths = min(len(found), 3)
    np.testing.assert_allclose(found[:depths], known[:depths])
    assert path_ranks(walked, 2).min() == UNKNOWN
