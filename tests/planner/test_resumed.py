"""Chains of an exit verified from its states: same rounds, another price, and the plan takes the cheaper way."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs, resumes_of
from spectune.planner.lockstep import Replay
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.pricing.worth import DecisionWorth
from spectune.planner.reasons.explain import explain_cell
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price
from spectune.planner.search.promise import SurfaceErrors
from spectune.planner.search.restricted import prices
from spectune.planner.search.search import solve
from spectune.planner.strategies import drafting, policy_from_json, policy_to_json
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.naming import name_of
from spectune.profiler.records.overhead import OverheadSample
from spectune.profiler.records.surface import LatencySurface

from ..support.priced_cells import priced
from ..support.synthetic import (
    DEVICE,
    Language,
    Milliseconds,
    SkilledDrafter,
    every_node,
    inputs,
    record,
    surface,
    texts,
)

CELL = Cell(batch=3, context=50)
CHAIN = ChainPolicy(length=4)
RESUMED = ResumedPolicy(draft=CHAIN)
WHOLE_MS, CHEAP_MS, DEAR_MS = 10.0, 6.0, 14.0


def resume_surface(ms: Milliseconds) -> LatencySurface:
    return surface("small", "resume", ms, tokens=range(2, 22))


@cache
def measured(resume_ms: float | None = CHEAP_MS) -> PlanInputs:
    """Return inputs with an exit that is right nearly always, so that chains are the fastest of all."""
    language = Language(7)
    pairs = texts(language, 6, lambda text: 20 + text)
    found = inputs(
        record(SkilledDrafter(language, 0.95), pairs, every_node(2, 2)),
        verify_ms=lambda batch, context, tokens: WHOLE_MS + 0.1 * tokens,
        draft_ms=lambda batch, context, tokens: 1.0 + 0.5 * tokens,
    )
    (drafter,) = found.drafters
    resume = None if resume_ms is None else resume_surface(lambda batch, context, tokens: resume_ms + 0.1 * tokens)
    own = replace(drafter, surface=replace(drafter.surface, role="self"), resume=resume)
    return replace(found, drafters=(own,))


@cache
def solved(resume_ms: float | None) -> Plan:
    return solve(
        measured(resume_ms), [CELL], created="2026-01-01T00:00:00Z", spectune="0.1", options=SearchOptions(trials=0)
    )


def kinds(plan: Plan) -> set[str]:
    (cell,) = plan.cells
    return {cell.policy.kind, *(other.policy.kind for other in cell.alternatives)}


def test_a_plan_takes_the_cheaper_verification() -> None:
    """Both directions: the same chains, once dearer and once cheaper from the exit's states."""
    (cheap,), (dear,) = solved(CHEAP_MS).cells, solved(DEAR_MS).cells
    assert isinstance(cheap.policy, ResumedPolicy) and cheap.drafter == "small"
    assert not isinstance(dear.policy, ResumedPolicy)
    assert "chain" in kinds(solved(CHEAP_MS)) and "resumed" in kinds(solved(DEAR_MS))


def test_without_a_surface_of_it_nothing_is_verified_from_states() -> None:
    assert "resumed" not in kinds(solved(None))
    with pytest.raises(PlanError, match="no verification from the states of small was timed"):
        price(measured(None), CELL, RESUMED, "small")


def test_captured_forwards_are_never_verified_from_states() -> None:
    found = measured()
    captured = replace(found.verify, regime="cuda-graph")
    costs = cell_costs(CELL, captured, {}, found.overhead, resumes_of(found))
    assert not costs.resumed and cell_costs(CELL, found.verify, {}, found.overhead, resumes_of(found)).resumed


@pytest.mark.parametrize("failure", [None, "out of memory"])
def test_a_batch_that_was_not_timed_from_states_is_planned_without(failure: str | None) -> None:
    found, (drafter,) = measured(), measured().drafters
    assert drafter.resume is not None
    cells = [cell for cell in drafter.resume.measurements if cell.batch == 1]
    if failure:  # it was tried there
        cells += [replace(cell, batch=3, repeats_ms=(), failure=failure) for cell in cells]
    lacking = replace(drafter, resume=replace(drafter.resume, measurements=tuple(cells)))
    asked = [replace(CELL, batch=1), CELL]
    plan = solve(
        replace(found, drafters=(lacking,)),
        asked,
        created="2026-01-01T00:00:00Z",
        spectune="0.1",
        options=SearchOptions(trials=0),
    )
    there, here = ({cell.policy.kind, *(other.policy.kind for other in cell.alternatives)} for cell in plan.cells)
    assert "resumed" in there and "resumed" not in here
    assert here == kinds(solved(None))
    reasons = [gone.reason for gone in plan.provenance.censored if gone.batch == 3]
    assert any("no verification from the states of small was timed at batch 3, context 50" in each for each in reasons)


def test_a_plan_says_how_a_chain_is_verified() -> None:
    plan = solved(CHEAP_MS)
    (cell,) = plan.cells
    assert cell.policy.label.endswith("verified from the exit")
    told = explain_cell(cell)
    assert name_of(cell.policy.code, cell.drafter) in told[0]
    assert any(f"{cell.policy.max_verify_tokens} tokens of each sequence, 1 by all layers" in line for line in told)
    assert plan_from_json(plan_to_json(plan)) == plan
    roles = [source.role for source in plan.provenance.surfaces]
    assert roles == ["verify", "self", "resume"]


@pytest.mark.parametrize("batch", [1, 3])
def test_replays_are_those_of_the_chain_round_for_round(batch: int) -> None:
    rehearsal = Rehearsal(measured())
    one, other = (rehearsal.replay(policy, "small", batch) for policy in (RESUMED, CHAIN))
    for name in (field.name for field in fields(Replay)):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert rehearsal.shape(RESUMED, "small", batch) == rehearsal.shape(CHAIN, "small", batch)


def test_only_the_verification_is_priced_otherwise() -> None:
    one, other = (price(measured(), CELL, policy, "small") for policy in (RESUMED, CHAIN))
    assert (one.draft_ms, one.host_ms, one.tokens_per_round) == (other.draft_ms, other.host_ms, other.tokens_per_round)
    assert one.verify_ms == pytest.approx(CHEAP_MS + 0.5) and other.verify_ms == pytest.approx(WHOLE_MS + 0.5)


def test_prices_of_chosen_policies_know_it_too() -> None:
    found = prices(measured(), [CELL], [(RESUMED, "small"), (CHAIN, "small")])
    for policy in (RESUMED, CHAIN):
        told = found[policy, "small"][CELL.batch, CELL.context].tokens_per_s
        assert told == pytest.approx(price(measured(), CELL, policy, "small").tokens_per_s)


def test_its_padding_is_its_own_and_a_root_alone_is_padded_as_verified_whole() -> None:
    """From the states 6 tokens are far cheaper than 5; whole ones cost by their number."""
    found = measured()
    stepped = resume_surface(lambda batch, context, tokens: 3.0 if tokens >= 6 else 30.0)
    costs = cell_costs(CELL, found.verify, {}, found.overhead, {"small": stepped})
    own = costs.verifying("resumed", "small")
    assert own.run_tokens[:7] == (0, 1, 6, 6, 6, 6, 6) and costs.run_tokens[:7] == tuple(range(7))
    assert costs.verifying("chain", "small").table is costs.verify


def test_a_chain_longer_than_was_timed_is_left_out() -> None:
    with pytest.raises(PlanError, match="a verify of 31 tokens was not measured"):
        price(measured(), CELL, ResumedPolicy(draft=ChainPolicy(length=30)), "small")


def test_the_forwards_of_a_cell_are_those_that_it_runs() -> None:
    """A plain round, which is run where nothing can be drafted, reads by all layers."""
    (cell,) = solved(CHEAP_MS).cells
    tokens = len(cell.run_ms) - 1
    assert cell.run_ms[1] == pytest.approx(WHOLE_MS + 0.1) and cell.run_ms[-1] == pytest.approx(CHEAP_MS + 0.1 * tokens)


def test_host_time_is_that_of_a_chain_unless_it_was_timed() -> None:
    found = measured()
    timed = OverheadSample(kind="resumed", batch=3, draft_forwards=0, nodes=1, host_ms=(2.0,))
    own = replace(found.overhead, samples=(*found.overhead.samples, timed))
    untold, told = (cell_costs(CELL, found.verify, {}, over, resumes_of(found)) for over in (found.overhead, own))
    assert untold.host_of("resumed") == untold.host_of("chain")
    assert told.host_of("resumed")[0] > told.host_of("chain")[0] + 1.0


def test_the_error_of_its_own_surface_counts() -> None:
    errors = SurfaceErrors(verify=0.1, drafts={}, resumed={"small": 0.4})
    told: list[Candidate] = [priced(policy, 2.0) for policy in (RESUMED, CHAIN)]
    assert [errors.verify_of(candidate) for candidate in told] == [0.4, 0.1]


def test_timing_it_is_worth_most_where_it_decides() -> None:
    """Surface 2 verifies what the exit of surface 1 drafts, at half the target's cost."""

    def cost(number: int, shape: tuple[int, int, int]) -> float:
        return (10.0, 0.5, 5.0)[number]

    acceptance = {1: np.array([0.9, 0.05])}
    worth = DecisionWorth(0, acceptance, (100,), resumes={1: 2}).worths(cost)
    assert worth(2, (1, 100, 9)) > worth(0, (1, 100, 9))
    assert DecisionWorth(0, acceptance, (100,)).worths(cost)(2, (1, 100, 9)) == 0.0


def test_its_bounds_are_the_chain_s() -> None:
    assert drafting(RESUMED) == CHAIN and policy_from_json(policy_to_json(RESUMED)) == RESUMED
    assert (RESUMED.draft_forwards, RESUMED.max_verify_tokens, RESUMED.is_coupled(3)) == (4, 5, False)
    assert (RESUMED.bounds, RESUMED.fixed_tree) == (CHAIN.bounds, CHAIN.fixed_tree)
    assert (RESUMED.draft_room(), RESUMED.widest_layer) == (CHAIN.draft_room(), CHAIN.widest_layer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "verify"}, "other surface's role is 'verify', expected 'resume'"),
        ({"model": "another"}, "other surface's model is 'another'"),
        ({"device": "another"}, "other surface's device is 'another'"),
        ({"regime": "compiled"}, "other surface's regime is 'compiled', expected 'eager'"),
    ],
)
def test_a_surface_of_something_else_is_refused(changes: dict[str, str], message: str) -> None:
    (drafter,) = measured().drafters
    with pytest.raises(PlanError, match=message):
        replace(drafter, resume=replace(drafter.surfaces[1], **changes))  # type: ignore[arg-type]


def test_a_drafter_that_is_no_exit_leaves_no_states() -> None:
    (drafter,) = measured().drafters
    with pytest.raises(PlanError, match="verified from its states: the role is 'draft', expected 'self'"):
        replace(drafter, surface=replace(drafter.surface, role="draft"))
    assert drafter.surface.device == DEVICE.fingerprint
