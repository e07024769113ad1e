"""What others publish as their default, in this project's terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from spectune.errors import PlanError
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts
from spectune.planner.pricing.table import CostTable
from spectune.planner.search.published import published_defaults, unpriceable_defaults
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy, paper_cast
from spectune.planner.strategies.chain import SGLANG_STANDALONE, ChainPolicy
from spectune.planner.strategies.confident_chain import TRANSFORMERS, ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import (
    EAGLE,
    EAGLE_OF_TALON,
    SGLANG_LLAMA,
    Eagle2Policy,
    eagle_auto,
    eagle_total_tokens,
)
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.planner.strategies.text import TextPolicy
from spectune.profiler.records.host_line import HostLine

from ...support.toy_drafter import ToyScorer, drafted_paths, toy_scorer

TEXTUAL = ("lookup", "suffix", "suffix-tree", "cacheback")
KINDS = ("plain", *TEXTUAL, "chain", "confident-chain", "static", "eagle2", "talon", "opt-tree", "cast")
CONTEXTS = (100.0, 300.0, 700.0)


def table(base: float, slope: float, tokens: int, contexts: tuple[float, ...] = CONTEXTS) -> CostTable:
    """Cost (context / 100) * (base + slope * tokens)."""
    rows = [[0.0, *((context / 100.0) * (base + slope * n) for n in range(1, tokens + 1))] for context in contexts]
    return CostTable(contexts=np.array(contexts), ms=np.array(rows))


def costs(*, verify: int = 64, draft: int = 64, context: int = 300, kinds: tuple[str, ...] = KINDS) -> CellCosts:
    return CellCosts(
        cell=Cell(batch=1, context=context),
        verify=table(10.0, 0.1, verify),
        run_tokens=tuple(range(verify + 1)),
        drafts={"small": table(1.0, 0.01, draft)},
        host=dict.fromkeys(kinds, HostLine(0.1, 0.0, 0.0)),
    )


def policies(of: CellCosts, children: int) -> dict[str, TreePolicy]:
    return {found.name: found.policy for found in published_defaults(of, "small", children)}


def test_with_everything_measured_and_recorded_every_default_is_there() -> None:
    assert unpriceable_defaults(costs(), "small", 60) == ()
    assert policies(costs(), 60) == {
        "transformers' prompt lookup": LookupPolicy(length=10, max_ngram=2, min_ngram=1, occurrence="first"),
        "SAM decoding 40/4": SuffixPolicy(length=40, factor=4, offset=1, occurrence="first"),
        "SuffixDecoding 1/0.1": SuffixTreePolicy(nodes=25, factor=1, offset=0, least_chance=0.1),
        "Cacheback 1/3": CachebackPolicy(leader_tokens=1, follower_tokens=3),
        "transformers' assisted generation": ConfidentChainPolicy(length=20, confidence=0.4),
        "transformers' earlier chain of 5": ChainPolicy(length=5),
        "vLLM's chain of 5": ChainPolicy(length=5),
        "vLLM's chain of 3": ChainPolicy(length=3),
        "SGLang 3/1/4": ChainPolicy(length=3),
        "SGLang 5/4/8": Eagle2Policy(verify_tokens=8, depth=4, top_k=4),
        "EAGLE 60/7/10": Eagle2Policy(verify_tokens=60, depth=7, top_k=10),
        "EAGLE-3 as TALON sets it": Eagle2Policy(verify_tokens=60, depth=8, top_k=10),
        "EAGLE's own choice of size": eagle_auto(costs()),
        "TALON 60/0.03/10": TalonPolicy(nodes=60, gate=0.03, top_k=10, children=49, max_depth=50),
        "OPT-Tree 60/0.5/10": OptTreePolicy(nodes=60, least_gain=0.5, max_depth=9, children=60),
        "CAST 4/3/2.5": paper_cast(costs(), "small", 60),
    }


def test_names_and_sources_are_told_and_names_differ() -> None:
    kept, gone = published_defaults(costs(), "small", 10), unpriceable_defaults(costs(), "small", 10)
    names = [*(found.name for found in kept), *(left.name for left in gone)]
    assert len(set(names)) == len(names) == 18
    assert all(found.source for found in kept) and all(left.source for left in gone)


def test_few_recorded_children_leave_variants_over_those_and_say_why_the_others_are_gone() -> None:
    found = policies(costs(), 10)
    assert found["TALON over 10 children"] == TalonPolicy(nodes=60, gate=0.03, top_k=10, children=10, max_depth=50)
    assert found["OPT-Tree over 10 children"] == OptTreePolicy(nodes=60, least_gain=0.5, max_depth=9, children=10)
    reasons = {gone.name: gone.reason for gone in unpriceable_defaults(costs(), "small", 10)}
    assert set(reasons) == {"TALON 60/0.03/10", "OPT-Tree 60/0.5/10"}
    assert "looks at 49 children of a node and 10 are recorded" in reasons["TALON 60/0.03/10"]


def test_with_four_recorded_children_no_tree_of_top_ten_is_left() -> None:
    found = policies(costs(), 4)
    assert (
        "SGLang 5/4/8" in found
        and "CAST 4/3/2.5" in found
        and not {"EAGLE 60/7/10", "TALON over 4 children"} & set(found)
    )


def test_trees_beyond_the_measured_verify_are_left_out_with_the_sizes() -> None:
    gone = {one.name: one.reason for one in unpriceable_defaults(costs(verify=60), "small", 60)}
    assert list(gone) == ["OPT-Tree 60/0.5/10"]  # 60 drafted nodes and the root
    assert "verify of 61 tokens was not measured, at most 60" in gone["OPT-Tree 60/0.5/10"]


def test_layers_beyond_the_measured_draft_are_left_out_with_the_widths() -> None:
    gone = {one.name: one.reason for one in unpriceable_defaults(costs(draft=9), "small", 60)}
    assert "a draft of 10 tokens was not measured for small, at most 9" in gone["EAGLE 60/7/10"]


def test_a_kind_without_host_time_is_left_out() -> None:
    gone = unpriceable_defaults(costs(kinds=("chain", *TEXTUAL)), "small", 60)
    assert {one.reason.split(" at batch")[0] for one in gone} == {
        f"no host time for '{kind}'" for kind in ("confident-chain", "eagle2", "talon", "opt-tree", "cast")
    }


def test_without_a_drafter_the_text_itself_is_left() -> None:
    found = published_defaults(costs(), None, 0)
    assert tuple(one.policy.kind for one in found) == TEXTUAL


def test_transformers_defaults_are_those_of_the_installed_version() -> None:
    installed = GenerationConfig._get_default_generation_params()
    assert (TRANSFORMERS.length, TRANSFORMERS.confidence) == (
        installed["num_assistant_tokens"],
        installed["assistant_confidence_threshold"],
    )
    assert installed["num_assistant_tokens_schedule"] == "constant"


@pytest.mark.parametrize(
    ("policy", "forwards", "deepest"), [(EAGLE, 8, 8), (EAGLE_OF_TALON, 9, 9), (SGLANG_LLAMA, 5, 5)]
)
def test_beams_run_the_forwards_their_authors_count(policy: Eagle2Policy, forwards: int, deepest: int) -> None:
    scorer = toy_scorer(1, vocabulary=12)
    draft = grow(replace(policy, verify_tokens=10**6), scorer, 1)
    assert (len(scorer.widths), int(draft.depths.max())) == (forwards, deepest)


def sglang(scorer: ToyScorer, steps: int, top_k: int, tokens: int) -> set[tuple[int, ...]]:
    """SGLang's draft, re-told: a first answer behind the text, steps - 1 forwards, the best tokens - 1 of all."""
    drafter = scorer.drafters[0]
    seen: dict[tuple[int, ...], np.float32] = {}
    frontier: dict[tuple[int, ...], np.float32] = {(): np.float32(0.0)}
    for _ in range(steps):
        layer = {
            (*path, token): np.float32(score + step)
            for path, score in frontier.items()
            for token, step in drafter.best(path, top_k)
        }
        seen |= layer
        frontier = {path: layer[path] for path in sorted(layer, key=lambda path: -layer[path])[:top_k]}
    return {(), *sorted(seen, key=lambda path: -seen[path])[: tokens - 1]}


@pytest.mark.parametrize("seed", range(8))
def test_sglangs_defaults_draft_sglangs_trees(seed: int) -> None:
    for policy, setting in ((SGLANG_LLAMA, (5, 4, 8)), (SGLANG_STANDALONE, (3, 1, 4))):
        drafted = drafted_paths(grow(policy, toy_scorer(seed, vocabulary=9), 1))
        assert set(drafted) == sglang(toy_scorer(seed, vocabulary=9), *setting)


@given(st.lists(st.floats(0.1, 10.0), min_size=61, max_size=70))
def test_eagles_choice_is_the_least_time_per_hard_coded_worth(verify_ms: list[float]) -> None:
    ratios = [verify_ms[40], verify_ms[48] / 1.05, verify_ms[50] / 1.07, verify_ms[56] / 1.1, verify_ms[60] / 1.13]
    assert eagle_total_tokens(verify_ms) == [40, 48, 50, 56, 60][ratios.index(min(ratios))]


def test_eagles_choice_is_the_largest_where_tokens_cost_nothing_and_the_smallest_where_they_cost_all() -> None:
    assert eagle_total_tokens([1.0] * 61) == 60
    assert eagle_total_tokens(list(range(61))) == 40


def test_eagles_choice_needs_60_measured_tokens() -> None:
    with pytest.raises(PlanError, match="times up to 60 tokens, got 59"):
        eagle_total_tokens([1.0] * 60)


def test_the_papers_cast_takes_the_costs_of_the_quantised_context() -> None:
    for context, quantised in ((80, 100), (100, 100), (101, 200), (650, 700), (900, 700)):
        cast = paper_cast(costs(context=context), "small", 10)
        assert cast.verify_cost_ms[1] == pytest.approx(quantised / 100.0 * 10.1)
        assert cast.draft_cost_ms[10] == pytest.approx(quantised / 100.0 * 1.1)


def test_the_papers_cast_may_be_told_another_grid() -> None:
    cast = paper_cast(costs(context=101), "small", 10, step=250, longest=500)
    assert cast.verify_cost_ms[1] == pytest.approx(2.5 * 10.1)


def test_the_papers_cast_is_capped_by_what_is_measured_and_recorded() -> None:
    cast = paper_cast(costs(verify=20, draft=6), "small", 8)
    assert (cast.breadth, cast.depth, cast.rerank, cast.survival) == (4.0, 3.0, 2.5, ())
    assert (cast.max_width, cast.max_verify_tokens, cast.max_depth) == (6, 20, 8)


def test_a_cell_of_single_token_verifies_has_no_cast() -> None:
    with pytest.raises(PlanError, match="CAST needs a verify of 2 tokens"):
        paper_cast(costs(verify=1), "small", 10)


def test_every_priceable_default_can_be_grown() -> None:
    for found in published_defaults(costs(), "small", 10):
        if not isinstance(found.policy, TextPolicy):
            draft = grow(found.policy, toy_scorer(1, 2, vocabulary=60), 2)
            assert draft.sizes.max() <= found.policy.max_verify_tokens


def test_only_cast_depends_on_the_cell() -> None:
    near, far = (policies(costs(context=context), 60) for context in (100, 700))
    assert {name for name in near if near[name] != far[name]} == {"CAST 4/3/2.5"}
    assert isinstance(near["CAST 4/3/2.5"], CastPolicy)
