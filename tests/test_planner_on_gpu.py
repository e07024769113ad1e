"""What a draft that grows on a GPU feeds, and that rounds are priced by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.planner.growth.grow import grow
from spectune.planner.growth.on_gpu import LATE, most_widths, widths_on_gpu
from spectune.planner.inputs import PlanInputs
from spectune.planner.policies import (
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    OptTreePolicy,
    TalonPolicy,
    TreePolicy,
)
from spectune.planner.pricing.cells import Cell
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.price import price
from spectune.runtime.growth.grow import grow_on_device

from .drawn_policies import DRAWN
from .synthetic import DEVICE, Language, SkilledDrafter, every_node, inputs, record, texts
from .toy_device import DeviceToyScorer, RestrictedScorer

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
    most = most_widths(policy) or needed
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


@pytest.mark.parametrize("policy", HANGING)
@pytest.mark.parametrize(("temperature", "is_whole"), [(0.0, True), (0.8, False)])
def test_rounds_of_captured_drafts_pay_for_all_layers_where_they_are_greedy(
    policy: TreePolicy, temperature: float, is_whole: bool
) -> None:
    cell = Cell(batch=1, context=30)
    eager, captured = (
        price(on("cuda", regime, temperature), cell, policy, "small") for regime in ("eager", "cuda-graph")
    )
    replay = Rehearsal(on("cuda", "cuda-graph", temperature)).replay(policy, "small", 1)
    below = sum(cost(width) for width in most_widths(policy)[1:])
    spent = [cost(catch_up) + below for catch_up in replay.catch_up.tolist()]
    if is_whole:
        assert captured.draft_ms == pytest.approx(np.average(spent, weights=replay.counts.sum(axis=1)))
        ends_late = len(most_widths(policy)) <= 2 + LATE  # whatever it needs, all of its forwards run anyway
        assert captured.draft_ms > eager.draft_ms or ends_late
    else:
        assert captured.draft_ms == pytest.approx(eager.draft_ms)


@pytest.mark.parametrize("policy", HANGING)
@pytest.mark.parametrize("batch", [1, 3])
def test_rounds_on_a_gpu_pay_for_what_runs_there(policy: TreePolicy, batch: int) -> None:
    cell = Cell(batch=batch, context=30)
    replay = Rehearsal(on("cpu")).replay(policy, "small", batch)
    most = most_widths(policy)
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
