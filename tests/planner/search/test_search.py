"""The search against prices worked out by decoding token by token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.tree import TokenTree
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.search.search import solve
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace

from ...support.slow_decoder import Pair, decode, drawing
from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

CELL = Cell(batch=1, context=50)
LANGUAGE = Language(7)
TREE = TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))


@cache
def recorded(skill: float, depth: int = 3, children: int = 3) -> tuple[SkilledDrafter, list[Pair], AcceptanceTrace]:
    drafter, pairs = SkilledDrafter(LANGUAGE, skill), texts(LANGUAGE, 6, lambda text: 20 + text)
    return drafter, pairs, record(drafter, pairs, every_node(depth, children))


def solved(found: PlanInputs, *cells: Cell) -> Plan:
    return solve(found, cells or (CELL,), created="2026-01-01T00:00:00Z", spectune="0.1")


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "policy",
    [
        PlainPolicy(),
        ChainPolicy(length=3),
        LookupPolicy(length=3),
        StaticPolicy(tree=TREE),
        Eagle2Policy(verify_tokens=5, depth=2, top_k=2),
    ],
    ids=lambda policy: policy.kind,
)
def test_a_price_is_the_tokens_over_the_time_of_decoding_token_by_token(policy: TreePolicy, batch: int) -> None:
    drafter, pairs, trace = recorded(0.7)
    priced = price(
        inputs(trace, draft_ms=lambda batch, context, tokens: 1.0 + 0.2 * tokens),
        Cell(batch=batch, context=50),
        policy,
        trace.drafter_name,
    )
    log = decode(drawing(policy, drafter), pairs, batch)
    ms, tokens = 0.0, 0
    for row, (nodes, catch_up, widths) in enumerate(zip(log.nodes, log.catch_up, log.widths, strict=True)):
        forwards = [catch_up, *widths[1:]] if widths else []
        own = [kept for kept, text in zip(log.kept[row], log.texts[row], strict=True) if text >= 0]
        ms += len(own) / batch * (10.0 + 0.1 * nodes + sum(1.0 + 0.2 * fed for fed in forwards) + 0.1)
        tokens += sum(own)
    assert tokens == sum(len(continuation) - 1 for _, continuation in pairs)
    assert priced.tokens_per_s == pytest.approx(1000.0 * tokens / ms)


@pytest.mark.parametrize("skill", [0.3, 0.6, 0.9])
def test_the_fastest_chain_is_the_one_of_brute_force(skill: float) -> None:
    drafter, pairs, trace = recorded(skill)
    speeds = {}
    for length in range(1, 9):
        log = decode(drawing(ChainPolicy(length=length), drafter), pairs, 1)
        speeds[length] = sum(map(sum, log.kept)) / (len(log.kept) * (10.0 + 0.1 * (length + 1) + length + 0.1))
    (contest,) = price_all(Rehearsal(inputs(trace)), [CELL], SearchOptions())
    chains = [candidate for candidate in contest.priced if candidate.policy.kind == "chain"]
    fastest = max(chains, key=lambda candidate: candidate.tokens_per_s)
    assert fastest.policy == ChainPolicy(length=max(speeds, key=lambda length: speeds[length]))


def test_nothing_priced_is_faster_than_the_choice_beyond_noise() -> None:
    _, _, trace = recorded(0.8)
    (cell,) = solved(inputs(trace)).cells
    (contest,) = price_all(Rehearsal(inputs(trace)), [CELL], SearchOptions())
    fastest = max(candidate.tokens_per_s for candidate in contest.priced)
    chosen = price(inputs(trace), CELL, cell.policy, cell.drafter)
    assert fastest >= chosen.tokens_per_s >= 0.9 * fastest


def test_plain_decoding_is_chosen_where_drafting_is_costly() -> None:
    _, _, trace = recorded(0.3)
    found = inputs(trace, draft_ms=lambda *_: 20.0, verify_ms=lambda batch, context, tokens: 10.0 * tokens)
    (cell,) = solved(found).cells
    assert cell.policy == PlainPolicy()
    assert cell.prediction.speedup_over_plain == 1.0


def test_a_skilled_and_cheap_drafter_is_used() -> None:
    _, _, trace = recorded(0.95)
    (cell,) = solved(inputs(trace)).cells
    assert cell.drafter == "small"
    assert cell.prediction.speedup_low > 1.5


@pytest.mark.parametrize("unit", [0.125, 1000.0])
def test_the_unit_of_time_leaves_the_choice(unit: float) -> None:
    _, _, trace = recorded(0.7)
    scaled = inputs(
        trace,
        verify_ms=lambda batch, context, tokens: unit * (10.0 + 0.1 * tokens),
        draft_ms=lambda *_: unit,
        host_ms=0.1 * unit,
    )
    cells = [solved(found).cells[0] for found in (inputs(trace), scaled)]
    assert cells[0].policy.code.split(",")[0] == cells[1].policy.code.split(",")[0]
    assert cells[1].prediction.tokens_per_s * unit == pytest.approx(cells[0].prediction.tokens_per_s)


def more_right(trace: AcceptanceTrace, every: int) -> AcceptanceTrace:
    """Let the drafter be right at every n-th position where it was not."""
    prompts = []
    for prompt in trace.prompts:
        ranks = prompt.next_rank.copy()
        wrong = np.flatnonzero(ranks)
        ranks[wrong[::every]] = 0
        hits = prompt.hit_rank.copy()
        hits[prompt.offsets[:-1]] = ranks
        prompts.append(replace(prompt, next_rank=ranks, hit_rank=hits))
    return replace(trace, prompts=tuple(prompts))


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_more_accepted_tokens_never_lower_a_price(length: int) -> None:
    _, _, trace = recorded(0.4, depth=0)
    traces = [trace, more_right(trace, 3), more_right(trace, 2), more_right(trace, 1)]
    speeds = [price(inputs(seen), CELL, ChainPolicy(length=length), "small").tokens_per_s for seen in traces]
    assert speeds == sorted(speeds)
    assert speeds[0] < speeds[-1]


def test_policies_that_were_not_recorded_are_left_out_and_listed() -> None:
    _, _, trace = recorded(0.9, depth=0)
    plan = solved(inputs(trace))
    reasons = {gone.label.split()[-1]: gone.reason for gone in plan.provenance.censored}
    assert "lack a recorded expansion" in reasons["eagle2"]
    assert "for example TALON" in reasons["talon"]
    assert "EAGLE-2" not in {other.label.split()[0] for other in plan.cells[0].alternatives if "/0/" not in other.label}


def test_a_policy_that_was_not_recorded_has_no_price() -> None:
    _, _, trace = recorded(0.9, depth=0)
    with pytest.raises(PlanError, match=r"cannot be priced: .* lack a recorded expansion"):
        price(inputs(trace), CELL, Eagle2Policy(verify_tokens=8, depth=2, top_k=3), "small")


def test_an_unknown_drafter_has_no_price() -> None:
    _, _, trace = recorded(0.9, depth=0)
    with pytest.raises(PlanError, match=r"no drafter 'tiny' among the inputs \(small\)"):
        price(inputs(trace), CELL, ChainPolicy(length=2), "tiny")


def test_a_losing_default_has_a_price() -> None:
    _, _, trace = recorded(0.3, depth=0)
    found = inputs(trace, draft_ms=lambda *_: 20.0)
    plain = price(found, CELL, PlainPolicy()).tokens_per_s
    assert 0.0 < price(found, CELL, ChainPolicy(length=4), "small").tokens_per_s < plain


def test_each_batch_has_its_own_cell() -> None:
    _, _, trace = recorded(0.8)
    plan = solved(inputs(trace), CELL, Cell(batch=3, context=50))
    assert [cell.batch for cell in plan.cells] == [1, 3]
    assert plan.cells[1].plain.tokens_per_s == pytest.approx(3 * plan.cells[0].plain.tokens_per_s)


def test_the_promise_adds_up() -> None:
    _, _, trace = recorded(0.8)
    promise = solved(inputs(trace), Cell(batch=3, context=50)).cells[0].prediction
    assert promise.round_ms == pytest.approx(promise.draft_ms + promise.verify_ms + promise.host_ms)
    assert promise.tokens_per_s == pytest.approx(3000.0 * promise.tokens_per_round / promise.round_ms)


def test_the_same_seed_gives_the_same_plan() -> None:
    _, _, trace = recorded(0.8)
    assert solved(inputs(trace)) == solved(inputs(trace))


def test_a_surface_of_another_device_is_refused() -> None:
    _, _, trace = recorded(0.8)
    found = inputs(trace)
    with pytest.raises(PlanError, match="measure all on one device"):
        replace(found, verify=replace(found.verify, device="elsewhere"))


def test_traces_of_different_texts_are_refused() -> None:
    _, _, trace = recorded(0.8)
    found = inputs(trace)
    with pytest.raises(PlanError, match="recorded along other texts"):
        replace(found, texts=found.texts[1:])
