"""What reading prompts costs, and plans that are chosen by whole requests."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.plans.prediction import PromptReading, pays_from
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.reading import ReadingCosts, decoded_tokens, reading_costs, reading_ms
from spectune.planner.reasons.explain import explain_cell, explain_plan
from spectune.planner.records.recording import Text
from spectune.planner.replay.shortened import shortened
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price
from spectune.planner.search.restricted import prices
from spectune.planner.search.search import solve
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.role import READ
from spectune.profiler.records.surface import LatencySurface

from ...support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, record, texts

CELL = Cell(batch=3, context=50)
LANGUAGE = Language(7)
PAIRS = texts(LANGUAGE, 6, lambda text: 20 + text)
WHOLE = 40  # new tokens; no recorded text is longer


def read_by(key: str, times: dict[int, float], failed: tuple[int, ...] = ()) -> LatencySurface:
    cells = [Measurement(batch=1, context_tokens=0, tokens=n, repeats_ms=(ms,)) for n, ms in times.items()]
    cells += [Measurement(batch=1, context_tokens=0, tokens=n, failure="out of memory") for n in failed]
    return LatencySurface(
        device=DEVICE.fingerprint, model=key, role=READ, regime="eager", dtype="float32", measurements=tuple(cells)
    )


@cache
def measured(drafter_ms: float) -> PlanInputs:
    """A skilled drafter that reads 50 tokens in so many milliseconds, its target in 20."""
    trace = record(SkilledDrafter(LANGUAGE, 0.95), PAIRS, every_node(3, 3))
    own = {TARGET.key: read_by(TARGET.key, {50: 20.0}), trace.drafter: read_by(trace.drafter, {50: drafter_ms})}
    return replace(inputs(trace), readings=own)


def solved(found: PlanInputs, **options: Any) -> Plan:
    wanted = SearchOptions(trials=2, **options)
    return solve(found, (CELL,), created="2026-01-01T00:00:00Z", spectune="0.1", options=wanted)


@cache
def planned(drafter_ms: float, new_tokens: int | None = None, **options: Any) -> Plan:
    """Return the plan of a drafter that reads 50 tokens in so many milliseconds."""
    return solved(measured(drafter_ms), new_tokens=new_tokens, **options)


def test_between_timed_lengths_reading_is_straight_and_in_proportion_beyond() -> None:
    surface = read_by("it", {100: 10.0, 400: 70.0}, failed=(800,))
    found = [reading_ms(surface, tokens) for tokens in (1, 50, 100, 250, 400, 800)]
    assert found == pytest.approx([0.1, 5.0, 10.0, 40.0, 70.0, 140.0])
    assert reading_ms(surface, 250, excess=1.1) == pytest.approx(44.0)  # on average, on a machine that stalls


@pytest.mark.parametrize(
    ("policy", "drafter", "expected"),
    [
        (PlainPolicy(), None, 0.0),
        (LookupPolicy(length=3), "lookup", 0.0),
        (ChainPolicy(length=2), "small", 3.0),
        (HybridPolicy(text=SuffixPolicy(), model=ChainPolicy(length=2)), "small", 3.0),
        (StackPolicy(drafters=("medium", "small", "lookup"), lengths=(2, 2, 2)), "medium+small+lookup", 8.0),
        (ChainPolicy(length=2), "untimed", None),
        (StackPolicy(drafters=("untimed", "small"), lengths=(2, 2)), "untimed+small", None),
    ],
    ids=lambda each: str(getattr(each, "kind", each)),
)
def test_every_model_that_drafts_reads(policy: TreePolicy, drafter: str | None, expected: float | None) -> None:
    costs = ReadingCosts(prompt_tokens=9, new_tokens=11, decoded_tokens=10.0, drafts_ms={"small": 3.0, "medium": 5.0})
    assert costs.drafter_ms(policy, drafter) == expected
    assert costs.share_ms(policy, drafter) == pytest.approx((expected or 0.0) / 10)
    assert replace(costs, decoded_tokens=None).share_ms(policy, drafter) == 0.0


@pytest.mark.parametrize(("new_tokens", "prompt"), [(None, 50), (20, 40), (1000, 1)])
def test_half_an_answer_stands_behind_the_prompt(new_tokens: int | None, prompt: int) -> None:
    found = reading_costs(measured(5.0), CELL, new_tokens)
    assert found.prompt_tokens == prompt
    assert found.target_ms == pytest.approx(20.0 * prompt / 50)
    assert found.drafts_ms == pytest.approx({"small": 5.0 * prompt / 50})


@pytest.mark.parametrize(("new_tokens", "decoded"), [(128, (10 + 127) / 2), (200, (10 + 199) / 2), (8, 7.0)])
def test_answers_that_end_early_decode_fewer_tokens_and_read_as_much(new_tokens: int, decoded: float) -> None:
    answers = [Text(prompt=(1,), continuation=(2,) * tokens) for tokens in (11, 128)]
    assert decoded_tokens(answers, new_tokens) == decoded
    found = replace(measured(5.0), drafters=(), texts=tuple(answers), workload="made up")
    costs = replace(reading_costs(found, CELL, new_tokens), drafts_ms={"small": 5.0})
    assert costs.share_ms(ChainPolicy(length=2), "small") == pytest.approx(5.0 / decoded)


def test_a_drafter_that_reads_for_long_drafts_for_long_answers_alone() -> None:
    (open_,), (short,), (long,) = (planned(200.0, count).cells for count in (None, 8, 90))
    assert open_.drafter == long.drafter == "small"
    assert short.drafter != "small"
    assert long.policy == open_.policy
    promised = [one.tokens_per_s / (1.0 - one.errors.optimism) for one in (long.prediction, open_.prediction)]
    assert promised[0] == pytest.approx(promised[1])  # decoding alone is promised
    assert long.plain == open_.plain


def test_what_earlier_texts_began_with_costs_what_the_rest_adds_and_at_least_what_it_takes_alone() -> None:
    curve = read_by(TARGET.key, {10: 4.0, 50: 20.0, 100: 60.0})
    assert reading_ms(curve, 100, cached=50) == pytest.approx(40.0)  # it looks at what is there
    flat = read_by(TARGET.key, {1: 4.0, 50: 5.0, 100: 6.0})
    assert reading_ms(flat, 100, cached=99) == pytest.approx(4.0)  # a forward is a forward
    assert reading_ms(curve, 50, cached=0) == reading_ms(curve, 50)


@pytest.mark.parametrize(("share", "cached"), [(0.0, 0), (0.5, 20), (0.99, 39), (0.999, 39)])
def test_a_share_of_a_prompt_is_read_by_nobody_but_its_last_token_is(share: float, cached: int) -> None:
    found = reading_costs(measured(5.0), CELL, 20, share)
    assert (found.prompt_tokens, found.cached_tokens) == (40, cached)
    assert found.target_ms == pytest.approx(20.0 * (40 - cached) / 50)
    assert found.drafts_ms == pytest.approx({"small": 5.0 * (40 - cached) / 50})


def test_a_drafter_that_reads_for_long_drafts_short_answers_behind_what_it_has_read() -> None:
    (anew,), (behind,) = (planned(200.0, 8, cached_share=share).cells for share in (0.0, 0.97))
    assert anew.drafter != "small" and behind.drafter == "small"


def test_a_cached_share_comes_back_with_its_plan_and_is_said() -> None:
    plan = planned(30.0, 20, cached_share=0.5)
    assert plan_from_json(plan_to_json(plan)) == plan and plan.cached_share == 0.5
    for wrong in (1.0, -0.5):
        with pytest.raises(PlanError, match="less than 1 of a prompt is cached"):
            replace(plan, cached_share=wrong)
    (cell,) = plan.cells
    assert "for answers of 20 new tokens, whose prompts are read first, 50 % of each before" in "\n".join(
        explain_plan(plan)
    )
    assert "requests of 40 tokens read, 20 of them before, and 20 new ones" in "\n".join(explain_cell(cell))


def test_a_drafter_that_reads_at_once_is_chosen_as_without() -> None:
    (open_,), (told,) = (planned(1e-6, count).cells for count in (None, WHOLE))
    assert (told.policy, told.drafter) == (open_.policy, open_.drafter)
    assert told.prediction.tokens_per_s == pytest.approx(open_.prediction.tokens_per_s)


def test_from_where_it_pays_requests_are_as_fast_as_plain_ones() -> None:
    (cell,) = planned(30.0).cells
    reading = cell.reading
    assert reading is not None and reading.pays_from is not None and reading.drafter_ms == pytest.approx(30.0)
    for share, is_faster in ((0.9, False), (1.1, True)):
        count = 1000 * share * (reading.pays_from - 1.0)  # tokens that a thousand requests decode
        own = 1000.0 * count / cell.prediction.tokens_per_s + 1000 * reading.drafter_ms
        assert (own < 1000.0 * count / cell.plain.tokens_per_s) == is_faster


def test_whole_requests_are_rounds_and_reading() -> None:
    reading = PromptReading(prompt_tokens=50, target_ms=20.0, drafter_ms=5.0, pays_from=1.0, new_tokens=11)
    assert reading.of_requests(1000.0, 11) == pytest.approx(11 / 0.035)
    assert reading.of_requests(1000.0, 11, is_drafted=False) == pytest.approx(11 / 0.030)
    assert reading.compared(1000.0) == pytest.approx(10 / 0.015)  # of an older plan
    assert replace(reading, decoded_tokens=4.0).compared(1000.0) == pytest.approx(4 / 0.009)
    assert replace(reading, new_tokens=None).compared(1000.0) == 1000.0


def test_what_gains_nothing_never_pays() -> None:
    assert pays_from(5.0, 900.0, 1000.0) is None
    assert pays_from(0.0, 900.0, 1000.0) is None
    assert pays_from(0.0, 2000.0, 1000.0) == 0.0
    assert pays_from(5.0, 2000.0, 1000.0) == pytest.approx(11.0)


def test_alternatives_are_told_as_the_choice_was_made() -> None:
    (open_,), (cell,) = (planned(20.0, count).cells for count in (None, WHOLE))
    share_ms = 20.0 * 30 / 50 / decoded_tokens(measured(20.0).texts, WHOLE)
    before, after = ({(o.policy, o.drafter): o.tokens_per_s for o in each.alternatives} for each in (open_, cell))
    shared = [key for key in before if key in after]
    assert {drafter for _, drafter in shared} >= {"small", "lookup"}
    for policy, drafter in shared:
        read_ms = 1000.0 / after[policy, drafter] - 1000.0 / before[policy, drafter]
        assert read_ms == pytest.approx(0.0 if drafter in (None, "lookup") else share_ms)


def test_nothing_in_the_outlook_loses_to_what_the_plan_did_not_choose() -> None:
    (cell,) = planned(60.0, 20).cells
    assert cell.outlook is not None
    assert all(scenario.loss < 0.25 for scenario in cell.outlook.scenarios)
    assert all(other.tokens_per_s <= 1.02 * compared(cell) for other in cell.outlook.neighbours)


def compared(cell: PlanCell) -> float:
    speed = cell.prediction.tokens_per_s / (1.0 - cell.prediction.errors.optimism)
    assert cell.reading is not None
    return cell.reading.compared(speed)


def test_a_bound_is_on_decoding_alone() -> None:
    (open_,) = planned(200.0).cells
    kept = LatencyBound(metric="itl", most_ms=1000.0 * CELL.batch / open_.prediction.tokens_per_s * 1.05)
    (cell,) = planned(200.0, 90, bound=kept).cells
    assert cell.drafter == "small" and cell.keeps_bound


def test_it_comes_back_with_its_plan_and_is_said() -> None:
    plan = planned(30.0, 64)
    assert plan_from_json(plan_to_json(plan)) == plan
    (cell,) = plan.cells
    assert "the fastest for answers of 64 new tokens, whose prompts are read first" in explain_plan(plan)
    assert planned(30.0).new_tokens is None
    said = "\n".join(explain_cell(cell))
    assert "requests of 18 tokens read and 64 new ones" in said
    (open_,) = planned(30.0).cells
    said = "\n".join(explain_cell(open_))
    assert "reads a prompt of 50 tokens in 30.00 ms, which pays for answers of" in said


def test_an_older_plan_tells_the_length_of_its_answers_by_its_cells() -> None:
    document = json.loads(plan_to_json(planned(30.0, 64)))
    del document["new_tokens"]
    assert plan_from_json(json.dumps(document)).new_tokens == 64


def test_without_a_reading_nothing_is_told_of_it() -> None:
    plan = solved(replace(measured(30.0), readings={}), new_tokens=8)
    (cell,) = plan.cells
    assert cell.reading is None and cell.drafter == "small"
    (note,) = (n for n in plan.provenance.notes if "reading" in n)
    assert note.startswith("reading prompts was not timed of small, so")
    assert plan_from_json(plan_to_json(plan)).new_tokens == plan.new_tokens == 8
    assert "the fastest for answers of 8 new tokens, without the reading of prompts, which was not timed" in (
        explain_plan(plan)
    )
    only_target = {TARGET.key: measured(30.0).readings[TARGET.key]}
    (cell,) = solved(replace(measured(30.0), readings=only_target), new_tokens=8).cells
    assert cell.reading is None and cell.drafter == "small"


@pytest.mark.parametrize("new_tokens", [2, 3, 9, 22, 24, 100])
def test_short_answers_are_what_would_be_recorded_along_them(new_tokens: int) -> None:
    cut = [(prompt, text[:new_tokens]) for prompt, text in PAIRS]
    found = shortened(measured(5.0), new_tokens)
    assert found.drafters[0].trace == record(SkilledDrafter(LANGUAGE, 0.95), cut, every_node(3, 3))
    assert [(text.prompt, text.continuation) for text in found.texts] == cut


def test_a_plan_of_short_answers_replays_short_answers_and_says_where_it_cannot() -> None:
    plan = planned(1e-6, 4)
    (cell,), (open_,) = plan.cells, planned(1e-6).cells
    assert cell.prediction.tokens_per_round <= 3.0  # the first token comes with the prompt
    assert open_.prediction.tokens_per_round > 3.0
    assert plan.provenance.notes == ()
    (note,) = planned(1e-6, WHOLE).provenance.notes
    assert note.startswith(f"answers of {WHOLE} tokens are planned on texts of at most 25; profile with")


@pytest.mark.parametrize(("new_tokens", "share"), [(None, 0.0), (9, 0.0), (9, 0.6)])
def test_engines_prices_are_of_answers_as_short(new_tokens: int | None, share: float) -> None:
    found, chain = measured(20.0), (ChainPolicy(length=3), "small")
    found_price = prices(found, [CELL], [chain], None, new_tokens, cached_share=share)[chain][CELL.batch, CELL.context]
    played = shortened(found, new_tokens)
    decoding = price(played, CELL, *chain).tokens_per_s
    share_ms = reading_costs(found, CELL, new_tokens, share).share_ms(*chain)
    assert (share_ms > 0.0) == (new_tokens is not None)
    assert found_price.tokens_per_s == pytest.approx(1000.0 / (1000.0 / decoding + share_ms))


@pytest.mark.parametrize("wrong", [{"prompt_tokens": 0}, {"drafter_ms": -1.0}, {"target_ms": float("inf")}])
def test_a_reading_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="finite times"):
        PromptReading(**{"prompt_tokens": 5, "target_ms": 1.0, "drafter_ms": 1.0, "pays_from": None, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("cached", [-1, 5])
def test_a_prompt_of_which_nothing_is_read_is_refused(cached: int) -> None:
    with pytest.raises(PlanError, match="the last is always read"):
        PromptReading(prompt_tokens=5, target_ms=1.0, drafter_ms=1.0, pays_from=None, cached_tokens=cached)


@pytest.mark.parametrize(("share", "new_tokens"), [(-0.1, 8), (1.0, 8), (0.5, None)])
def test_a_share_that_cannot_be_or_changes_nothing_is_refused(share: float, new_tokens: int | None) -> None:
    with pytest.raises(PlanError, match=r"less than 1 is cached|say how long"):
        SearchOptions(new_tokens=new_tokens, cached_share=share)


def test_an_answer_of_which_nothing_is_decoded_is_refused() -> None:
    with pytest.raises(PlanError, match="2 new tokens or more to be decoded, got 1"):
        SearchOptions(new_tokens=1)
