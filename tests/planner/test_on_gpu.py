"""What a draft that grows on a GPU feeds, and that rounds are priced by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.planner.inputs import PlanInputs
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.tree import TokenTree
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import LATE, grow, widths_on_gpu
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import ElsePolicy, HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.runtime.growth.grow import grow_on_device

from ..support.drawn_policies import DRAWN
from ..support.synthetic import DEVICE, Language, SkilledDrafter, every_node, inputs, record, texts
from ..support.toy_device import DeviceToyScorer, RestrictedScorer

HANGING = [
    ConfidentChainPolicy(length=5, confidence=0.7),
    TalonPolicy(nodes=8, gate=0.3, top_k=2, children=3, max_depth=3),
    OptTreePolicy(nodes=5, least_gain=0.4, max_depth=3, children=3),
    CastPolicy(
        breadth=3.0,
        depth=4.0,
        rerank=0.5,
        max_width=3,
        max_depth=3,
        max_verify_tokens=6,
        ratio_window=2,
        draft_cost_ms=(0.0, 1.1, 1.2, 1.3),
        verify_cost_ms=(0.0, *(10.0 + 0.1 * tokens for tokens in range(1, 7))),
    ),
]


@pytest.mark.thinned
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("is_told", [False, True])
@settings(max_examples=60)
@given(data=st.data(), seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_they_are_those_of_trees_that_grow_as_tensors(
    kind: str, is_told: bool, data: st.DataObject, seeds: list[int]
) -> None:
    policy = data.draw(DRAWN[kind])
    mine, reference = (RestrictedScorer(seeds, vocabulary=16, levels=None, floor=None) for _ in range(2))
    ran = grow_on_device(policy, DeviceToyScorer(mine, is_told=is_told), len(seeds)).widths
    needed = grow(policy, reference, len(seeds)).widths
    most = policy.score_widths or needed
    assert ran == (most[: len(needed)] if is_told else most)
    if needed:
        late, whole = (widths_on_gpu(policy, np.array([needed]), is_captured=way)[0] for way in (False, True))
        assert late[late > 0].tolist() == list(most[: len(needed) + LATE])
        assert whole[whole > 0].tolist() == list(most)


def test_a_round_without_a_draft_has_no_forward() -> None:
    policy = TalonPolicy(nodes=6, top_k=2, children=2, max_depth=4)
    found = widths_on_gpu(policy, np.array([[0, 0, 0], [1, 2, 0], [1, 2, 1]]))
    assert found.tolist() == [[0, 0, 0, 0], [1, 2, 3, 0], [1, 2, 3, 2]]
    whole = widths_on_gpu(policy, np.array([[0, 0, 0], [1, 2, 0]]), is_captured=True)
    assert whole.tolist() == [[0, 0, 0, 0], [1, 2, 3, 2]]
    untouched = np.array([[1, 1, 0]])
    for same in (ChainPolicy(length=3), Eagle2Policy(verify_tokens=4, depth=1, top_k=2)):
        assert widths_on_gpu(same, untouched) is widths_on_gpu(same, untouched, is_captured=True) is untouched


def on(kind: Literal["cpu", "cuda"], regime: str = "eager", temperature: float = 0.0) -> PlanInputs:
    """Return the same measurements as if of a CPU, or of a GPU, and of texts at a temperature."""
    pairs = texts(Language(3), 5, lambda index: 30 + index)
    found = inputs(
        replace(record(SkilledDrafter(Language(3), 0.7), pairs, every_node(3, 3)), temperature=temperature),
        draft_ms=lambda batch, context, tokens: cost(tokens),
    )
    device = replace(DEVICE, kind=kind)
    key = device.fingerprint
    drafters = [
        replace(drafter, surface=replace(drafter.surface, device=key, regime=regime)) for drafter in found.drafters
    ]
    return replace(
        found,
        device=device,
        verify=replace(found.verify, device=key, regime=regime),
        overhead=replace(found.overhead, device=key, regime=regime),
        drafters=tuple(drafters),
    )


def cost(tokens: int) -> float:
    return 1.0 + 0.1 * tokens


@pytest.mark.thinned
@pytest.mark.parametrize("policy", HANGING)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_of_captured_drafts_pay_for_all_layers(policy: TreePolicy, temperature: float) -> None:
    cell = Cell(batch=1, context=30)
    eager, captured = (
        price(on("cuda", regime, temperature), cell, policy, "small") for regime in ("eager", "cuda-graph")
    )
    replay = Rehearsal(on("cuda", "cuda-graph", temperature)).replay(policy, "small", 1)
    below = sum(cost(width) for width in policy.score_widths[1:])
    spent = [cost(catch_up) + below for catch_up in replay.catch_up.tolist()]
    assert captured.draft_ms == pytest.approx(np.average(spent, weights=replay.counts.sum(axis=1)))
    ends_late = len(policy.score_widths) <= 2 + LATE  # whatever it needs, all of its forwards run anyway
    assert captured.draft_ms > eager.draft_ms or ends_late


@pytest.mark.thinned
@pytest.mark.parametrize("policy", HANGING)
@pytest.mark.parametrize("batch", [1, 3])
def test_rounds_on_a_gpu_pay_for_what_runs_there(policy: TreePolicy, batch: int) -> None:
    cell = Cell(batch=batch, context=30)
    replay = Rehearsal(on("cpu")).replay(policy, "small", batch)
    most = policy.score_widths
    spent = []
    for catch_up, widths in zip(replay.catch_up.tolist(), replay.widths.tolist(), strict=True):
        ran = most[: sum(width > 0 for width in widths) + LATE]
        spent.append(cost(catch_up) + sum(cost(width) for width in ran[1:]))
    slower, faster = price(on("cuda"), cell, policy, "small"), price(on("cpu"), cell, policy, "small")
    assert (
        slower.draft_ms == pytest.approx(np.average(spent, weights=replay.counts.sum(axis=1)))
        and slower.draft_ms > faster.draft_ms
    )
    assert slower.tokens.tolist() == faster.tokens.tolist()


def test_what_is_drafted_without_a_look_at_scores_costs_the_same_there() -> None:
    for policy in (ChainPolicy(length=3), Eagle2Policy(verify_tokens=5, depth=1, top_k=2)):
        cell = Cell(batch=1, context=30)
        assert np.array_equal(price(on("cpu"), cell, policy, "small").ms, price(on("cuda"), cell, policy, "small").ms)


SUFFIX = SuffixPolicy(length=4, min_match=2, factor=0, offset=4, occurrence="last")
FIXED: list[ElsePolicy] = [
    ChainPolicy(length=3),
    StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 1, 0, 1, 0))),
    Eagle2Policy(verify_tokens=7, depth=2, top_k=3),
    Eagle2Policy(verify_tokens=3, depth=0, top_k=3),
]


@pytest.mark.parametrize("policy", FIXED)
def test_drafts_that_hang_on_no_score_are_as_wide_as_those_that_grow(
    policy: ElsePolicy,
) -> None:
    scorer = RestrictedScorer([1, 2], vocabulary=16, levels=None, floor=None)
    assert policy.widths == grow(policy, scorer, 2).widths


@pytest.mark.parametrize(
    ("policy", "is_one"),
    [
        (SUFFIX, True),
        (LookupPolicy(length=3), True),
        (LookupPolicy(length=3, occurrence="mapped"), False),
        (SuffixTreePolicy(nodes=5), True),
        (CachebackPolicy(), False),
        (ChainPolicy(length=2), False),
        *((HybridPolicy(text=SUFFIX, model=model), True) for model in FIXED),
        (HybridPolicy(text=SuffixTreePolicy(nodes=5), model=FIXED[0]), True),
    ],
)
def test_what_is_copied_on_a_gpu(policy: TreePolicy, is_one: bool) -> None:
    assert (policy.copied_on_gpu is not None) == is_one


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "policy",
    [SUFFIX, SuffixTreePolicy(nodes=6), LookupPolicy(length=5), *(HybridPolicy(text=SUFFIX, model=m) for m in FIXED)],
)
def test_rounds_that_copy_ahead_of_the_host_are_all_as_large_as_any(
    policy: SuffixPolicy | LookupPolicy | HybridPolicy, batch: int
) -> None:
    cell, captured = Cell(batch=batch, context=30), on("cuda", "cuda-graph")
    found = price(captured, cell, policy, "small")
    widths = policy.model.widths if isinstance(policy, HybridPolicy) else ()
    spent = cost(1 + policy.bounds.depth) + sum(cost(width) for width in widths[1:]) if widths else 0.0
    assert found.draft_ms == pytest.approx(spent)
    run = found.run_tokens[policy.max_verify_tokens]
    assert found.verify_ms == pytest.approx(captured.verify.latency(batch, 30, run).ms)
    sampled = price(on("cuda", "cuda-graph", 0.8), cell, policy, "small")
    assert sampled.verify_ms == pytest.approx(found.verify_ms) and sampled.draft_ms == pytest.approx(found.draft_ms)
    waits = price(on("cuda"), cell, policy, "small")
    assert waits.verify_ms <= found.verify_ms and waits.draft_ms <= found.draft_ms
    assert waits.round_ms < found.round_ms


@pytest.mark.parametrize("regime", ["eager", "cuda-graph"])
def test_hybrids_over_suffix_trees_compete(regime: str) -> None:
    (contest,) = price_all(Rehearsal(on("cuda", regime)), [Cell(batch=1, context=30)], SearchOptions())
    texts = {one.policy.text.kind for one in contest.priced if isinstance(one.policy, HybridPolicy)}
    assert texts == {"suffix", "suffix-tree"}


def test_hybrids_over_suffix_trees_do_not_where_the_host_searches_for_one_drafter_alone() -> None:
    known = on("cuda", "cuda-graph")
    (drafter,) = known.drafters
    block = replace(drafter, surface=replace(drafter.surface, role="block", regime="eager"))
    samples = [replace(one, role="block", drafter=drafter.model.key) for one in known.overhead.samples]
    timed = replace(known.overhead, samples=(*known.overhead.samples, *samples))
    rehearsal = Rehearsal(replace(known, drafters=(block,), overhead=timed))
    (contest,) = price_all(rehearsal, [Cell(batch=1, context=30)], SearchOptions())
    texts = {one.policy.text.kind for one in contest.priced if isinstance(one.policy, HybridPolicy)}
    assert texts == {"suffix"} and any(isinstance(one.policy, SuffixTreePolicy) for one in contest.priced)
