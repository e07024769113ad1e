"""A plan's document and its lookup, and what explains it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache

import pytest

from spectune.errors import PlanError
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.reasons.explain import cell_facts, chain_acceptance, explain_cell, explain_plan
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.plain import PlainPolicy

from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts


@cache
def made() -> Plan:
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.9), texts(language, 6, lambda text: 20), every_node(2, 3))
    return solve(
        inputs(trace),
        cells_of([1, 3], [20, 100]),
        created="2026-01-01T00:00:00Z",
        spectune="0.1",
        options=SearchOptions(trials=0),
    )


def with_policy(policy: ChainPolicy, tokens_per_round: float) -> Plan:
    cell = made().cells[0]
    promise = replace(cell.prediction, tokens_per_round=tokens_per_round, round_ms=12.0, errors=cell.plain.errors)
    plain = replace(cell.plain, round_ms=10.0)
    run_tokens = tuple(range(policy.max_verify_tokens + 1))
    fixed = replace(
        cell, policy=policy, drafter="small", run_tokens=run_tokens, run_ms=(), prediction=promise, plain=plain
    )
    return replace(made(), cells=(fixed,))


def test_a_plan_comes_back_from_its_document_bit_for_bit() -> None:
    assert plan_from_json(plan_to_json(made())) == made()


def test_a_document_says_first_what_readers_look_for() -> None:
    document = json.loads(plan_to_json(made()))
    cell, record = document["cells"][0], made().cells[0]
    assert next(iter(document)) == "version"
    assert {"device", "target", "cells", "provenance"} <= set(document)
    assert cell["drafters"] == list(record.drafters) != []
    assert cell["predicted_tokens_per_s"] == record.prediction.tokens_per_s
    assert cell["interval"] == [record.prediction.low, record.prediction.high]
    assert cell["predicted_speedup"] == record.prediction.speedup_over_plain
    assert {"batch", "context", "policy", "runner_up"} <= set(cell)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("version", 1, "plan of version 1, spectune reads 2"),
        ("cells", [], "needs cells at different"),
        ("cells", "none", "cells must be a list of objects"),
        ("target", {}, "target"),
        ("device", None, "device"),
        ("temperature", "cold", "temperature"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_document_with_a_wrong_part_is_refused_in_one_line(key: str, value: object, complaint: str) -> None:
    document = json.loads(plan_to_json(made()))
    document[key] = value
    with pytest.raises(PlanError, match=complaint) as refusal:
        plan_from_json(json.dumps(document))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["version", "device", "target", "cells", "provenance", "workload"])
def test_a_document_that_lacks_a_part_is_refused(key: str) -> None:
    document = json.loads(plan_to_json(made()))
    del document[key]
    with pytest.raises(PlanError, match=key):
        plan_from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "cut short"])
def test_what_is_no_plan_document_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="a plan must be"):
        plan_from_json(plan_to_json(made())[:-40] if text == "cut short" else text)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999999", "9" * 5000, "[" * 5000])
def test_a_number_that_json_does_not_know_is_refused(number: str) -> None:
    text = re.sub(r'("temperature": *)0.0', rf"\g<1>{number}", plan_to_json(made()), count=1)
    assert number in text
    with pytest.raises(PlanError):
        plan_from_json(text)


def test_a_document_edited_by_hand_is_refused() -> None:
    document = json.loads(plan_to_json(made()))
    document["cells"][0]["predicted_speedup"] = 9.0
    with pytest.raises(PlanError, match="cell 0 of the plan contradicts itself"):
        plan_from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"round_ms": 0.0}, "speed, tokens and time of a round must be above 0"),
        ({"tokens_per_round": 0.0}, "speed, tokens and time of a round must be above 0"),
        ({"tokens_per_s": 0.0, "low": 0.0}, "speed, tokens and time of a round must be above 0"),
        ({"host_ms": -1.0}, "parts of a round must be 0 to"),
        ({"draft_ms": math.nan}, "parts of a round must be 0 to"),
    ],
)
def test_a_promise_that_nothing_can_be_divided_by_is_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        replace(made().cells[0].prediction, **wrong)  # type: ignore[arg-type]


def test_optimism_leaves_something_of_a_speed() -> None:
    with pytest.raises(PlanError, match=r"below 1, got 1\.0"):
        replace(made().cells[0].prediction.errors, optimism=1.0)


def test_a_cell_without_its_headline_is_refused() -> None:
    document = json.loads(plan_to_json(made()))
    del document["cells"][1]["interval"]
    with pytest.raises(PlanError, match="cell 1 of the plan lacks interval"):
        plan_from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("batch", "context", "found"),
    [(1, 20, (1, 20)), (1, 61, (1, 100)), (1, 60, (1, 20)), (2, 0, (3, 20)), (64, 9999, (3, 100))],
)
def test_a_lookup_finds_the_nearest_batch_then_the_nearest_context(
    batch: int, context: int, found: tuple[int, int]
) -> None:
    cell = made().cell(batch, context)
    assert (cell.batch, cell.context) == found


def test_a_context_is_looked_up_in_the_cell_that_was_priced_around_it() -> None:
    for priced in cells_of([1], [20, 100]):
        assert (priced.low, priced.high) == (priced.context / 2, priced.context * 2)
        near = range(int(priced.low) + 1, int(priced.context * 1.2))
        assert {made().cell(1, context).context for context in near if abs(context - 60) > 10} == {priced.context}


def test_run_tokens_never_feed_fewer_tokens_than_the_tree_has() -> None:
    cell = made().cells[0]
    with pytest.raises(PlanError, match="never feed fewer than requested"):
        replace(cell, run_tokens=(0, *cell.run_tokens[:-1]))


def test_only_plain_decoding_has_no_drafter() -> None:
    with pytest.raises(PlanError, match="only plain decoding has none"):
        replace(made().cells[0], policy=PlainPolicy())


def test_an_explanation_names_the_choice_and_its_runner_up() -> None:
    cell = made().cells[0]
    lines = explain_cell(cell)
    assert name_of(cell.policy.code, cell.drafter) in lines[0]
    assert cell.runner_up is not None
    other = name_of(cell.runner_up.label, cell.runner_up.drafter)
    assert any(line.strip().startswith(f"runner-up of another kind or drafter: {other}") for line in lines)


def test_a_plan_explains_every_cell() -> None:
    lines = explain_plan(made())
    assert [line for line in lines if line.startswith("batch ")] == [explain_cell(cell)[0] for cell in made().cells]


def test_the_parts_of_a_round_are_all_of_it() -> None:
    facts = cell_facts(made().cells[0])
    assert facts.share_draft + facts.share_verify + facts.share_host == pytest.approx(1.0)


def test_a_chain_says_which_acceptance_it_has_and_which_it_needs() -> None:
    facts = cell_facts(with_policy(ChainPolicy(length=1), tokens_per_round=1.7).cells[0])
    assert facts.acceptance == pytest.approx(0.7)
    assert facts.break_even == pytest.approx(0.2)  # a round takes 1.2 plain ones


@pytest.mark.parametrize(("acceptance", "length"), [(0.0, 3), (0.5, 4), (0.93, 7), (1.0, 2)])
def test_acceptance_is_read_back_from_tokens_per_round(acceptance: float, length: int) -> None:
    tokens = 1.0 + sum(acceptance**power for power in range(1, length + 1))
    assert chain_acceptance(tokens, length) == pytest.approx(acceptance, abs=1e-9)


def test_more_tokens_than_a_chain_can_yield_need_no_acceptance() -> None:
    assert chain_acceptance(4.1, 3) is None


def test_few_accepted_drafts_are_what_limits_a_round() -> None:
    facts = cell_facts(with_policy(ChainPolicy(length=6), tokens_per_round=2.0).cells[0])
    assert facts.limited_by == "acceptance"


class TestACellAtAContextBetweenCells:
    """Plain rounds take 10 ms at context 20 and 30 ms at 100."""

    def plan(self, *, same: bool) -> Plan:
        near, far = (cell for cell in made().cells if cell.batch == 1)
        cells = []
        for cell, plain_ms, own_ms in ((near, 10.0, 20.0), (far, 30.0, 80.0)):
            own = replace(cell.prediction, round_ms=own_ms, tokens_per_s=1000.0, low=900.0, high=1200.0)
            cells.append(replace(cell, plain=replace(cell.plain, round_ms=plain_ms), prediction=own))
        policy = ChainPolicy(length=2 if same else 3)
        padded = tuple(range(9))
        cells = [
            replace(cell, policy=own, drafter="small", run_tokens=padded, run_ms=())
            for cell, own in zip(cells, (ChainPolicy(length=2), policy), strict=True)
        ]
        return replace(made(), cells=tuple(cells))

    @pytest.mark.parametrize(("same", "half_way"), [(True, 50.0), (False, 40.0)])
    def test_rounds_grow_as_those_of_the_policy_or_else_as_plain_ones(self, same: bool, half_way: float) -> None:
        plan = self.plan(same=same)
        found = plan.at_context(plan.cells[0], 60).prediction
        assert found.round_ms == pytest.approx(half_way)
        assert (found.tokens_per_s, found.low, found.high) == pytest.approx(
            [each * 20.0 / half_way for each in (1000.0, 900.0, 1200.0)]
        )
        assert found.tokens_per_round == plan.cells[0].prediction.tokens_per_round

    def test_from_the_far_cell_they_shrink(self) -> None:
        plan = self.plan(same=False)
        found = plan.at_context(plan.cells[1], 60)
        assert found.prediction.round_ms == pytest.approx(80.0 * 20.0 / 30.0)
        assert found.context == 60 and found.plain.round_ms == pytest.approx(20.0)

    def test_beyond_all_cells_and_at_a_cell_the_cells_own_holds(self) -> None:
        plan = self.plan(same=True)
        for cell, context in ((plan.cells[0], 20), (plan.cells[0], 1), (plan.cells[1], 500)):
            assert plan.at_context(cell, context) is cell

    def test_forwards_grow_by_the_sizes_that_both_cells_know(self) -> None:
        plan = self.plan(same=False)
        near = replace(plan.cells[0], run_tokens=tuple(range(4)), run_ms=(0.0, 4.0, 5.0, 6.0))
        far = replace(plan.cells[1], run_tokens=tuple(range(6)), run_ms=(0.0, 8.0, 11.0, 14.0, 15.0, 16.0))
        plan = replace(plan, cells=(near, far))
        assert plan.at_context(near, 60).run_ms == pytest.approx((0.0, 6.0, 8.0, 10.0))
        assert plan.at_context(far, 60).run_ms == pytest.approx((0.0, 6.0, 8.0, 10.0, 11.0, 12.0))

    def test_what_it_gains_over_plain_decoding_follows(self) -> None:
        plan = self.plan(same=True)
        gain = plan.cells[0].prediction.speedup_over_plain
        assert plan.at_context(plan.cells[0], 60).prediction.speedup_over_plain == pytest.approx(gain * 2.0 / 2.5)
