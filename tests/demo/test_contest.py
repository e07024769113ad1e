"""Who competes in a cell, what has to be recorded to replay them all, and the rows that come out."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest

from spectune.demo.contest import (
    CHAIN,
    GENERATE,
    PLAIN,
    PLAN,
    TREE,
    Contestant,
    Count,
    Counter,
    outcome_of_cell,
    recipe_for,
    replayed,
    rows_of_cell,
)
from spectune.demo.records import DemoOutcome
from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.prompts import Prompt
from spectune.runtime.batch.step_config import PLAIN as PLAINLY
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.exact import Judgement
from spectune.tuning.recording.recipe import Recipe, recipe_of
from spectune.tuning.request import Models, ProfileRequest

from ..support.decoded_runs import POLICIES, random_requests
from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts
from ..support.tiny_models import perturbed, tiny_llama

SPEEDS = {PLAIN: 100.0, CHAIN: 120.0, TREE: 50.0, PLAN: 160.0, GENERATE: 80.0}


@cache
def measured() -> PlanInputs:
    language = Language(3)
    return inputs(record(SkilledDrafter(language, 0.9), texts(language, 6, lambda text: 20), every_node(2, 3)))


@cache
def solved() -> Plan:
    options = SearchOptions(trials=2)
    return solve(measured(), cells_of([1, 3], [50]), created="2026-01-01T00:00:00Z", spectune="0.1", options=options)


def setup_of(kind: str) -> StepConfig:
    drafter = LOOKUP if kind == "lookup" else "small"
    return PLAINLY if kind == "plain" else StepConfig(policy=POLICIES[kind], drafter=drafter)


@cache
def counted() -> dict[tuple[str, int], Count]:
    """Count every kind of policy on tiny models, in fp32, at batch 1 and 3."""
    target = tiny_llama(layers=2, seed=1).float()
    family = Family(target=LeanModel(target), drafters={"small": LeanModel(perturbed(target, 0.05))})
    counter = Counter(family, target, random_requests(7, tokens=20))
    places = [(kind, batch) for kind in ("plain", *POLICIES) for batch in (1, 3)]
    for kind, batch in places:
        counter.run(setup_of(kind), batch)
    prompts = [Prompt(text="not read"), Prompt(text="either")]
    request = ProfileRequest(models=Models(target=Path("it")), prompts=prompts, workload="made up", batches=(1,))
    traced = counter.traced(measured(), request)
    return {(kind, batch): counter.count(setup_of(kind), solved().cell(batch, 50), traced) for kind, batch in places}


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["plain", *POLICIES])
def test_whatever_the_policy_its_replay_is_what_was_counted(kind: str, batch: int) -> None:
    count = counted()[kind, batch]
    assert count.replayed_tokens_per_round == count.tokens_per_round
    assert count.judgement == Judgement(near_ties=0, wrong=0)


def test_drafting_keeps_more_than_one_token_a_round() -> None:
    assert counted()["plain", 3].tokens_per_round == 1.0
    assert all(counted()[kind, 3].tokens_per_round > 1.1 for kind in ("chain", "static", "eagle2", "cast"))


def test_chains_lookups_and_static_trees_need_only_the_roots() -> None:
    policies: list[TreePolicy] = [PlainPolicy(), ChainPolicy(length=8), LookupPolicy(length=4), POLICIES["static"]]
    assert recipe_for(policies) == Recipe()


def test_every_tree_that_hangs_on_scores_is_recorded_once() -> None:
    policies = [Eagle2Policy(top_k=4, depth=2), Eagle2Policy(top_k=12, depth=5), Eagle2Policy(top_k=4, depth=2)]
    assert recipe_for([*policies, PlainPolicy()]) == Recipe(children=12, trees=tuple(policies[:2]))


def test_a_cast_policy_needs_the_standard_recording_and_its_own_tree() -> None:
    cast = POLICIES["cast"]
    assert isinstance(cast, CastPolicy)
    assert recipe_for([Eagle2Policy(), cast]).trees == (*recipe_of("standard").trees, cast)


def test_what_the_trace_does_not_hold_has_no_replay() -> None:
    wide = StepConfig(policy=Eagle2Policy(), drafter="small")  # ten children; the trace has three
    assert replayed(measured(), Cell(batch=1, context=50), wide) is None


def field() -> list[Contestant]:
    policies: dict[str, TreePolicy] = {
        PLAIN: PlainPolicy(),
        CHAIN: ChainPolicy(length=4),
        TREE: Eagle2Policy(),
        PLAN: ChainPolicy(length=2),
    }
    return [
        Contestant(
            name=name,
            setup=StepConfig(policy=policy, drafter=None if name == PLAIN else "small"),
            predicted_tokens_per_s=90.0,
        )
        for name, policy in policies.items()
    ]


def test_a_cell_has_a_row_per_contestant_and_one_for_transformers_without_what_it_has_not() -> None:
    count = Count(tokens_per_round=1.5, replayed_tokens_per_round=1.25, judgement=Judgement(near_ties=2, wrong=0))
    rows = rows_of_cell(field(), SPEEDS, dict.fromkeys(SPEEDS, count), 8)
    assert {row.name: row.measured_tokens_per_s for row in rows} == SPEEDS
    assert rows[1].drafters == ("small",) and rows[1].policy == "chain of 4 by small" and rows[1].near_ties == 2
    assert (rows[1].tokens_per_round, rows[1].replayed_tokens_per_round) == (1.5, 1.25)
    last = asdict(rows[-1])
    missing = {name for name, value in last.items() if value is None}
    assert missing == {
        "policy", "predicted_tokens_per_s", "tokens_per_round", "near_ties", "replayed_tokens_per_round"
    }  # fmt: skip


def test_an_outcome_says_how_the_plan_fared_against_plain_and_transformers() -> None:
    cell = solved().cells[0]
    promise = replace(cell.prediction, low=140.0, tokens_per_s=144.0, high=150.0)
    outcome = outcome_of_cell(replace(cell, prediction=promise), SPEEDS, 2.5)
    assert outcome.speedup_over_plain == pytest.approx(1.6)
    assert outcome.speedup_over_generate == pytest.approx(2.0)
    assert outcome.prediction_error == pytest.approx(0.1)
    assert outcome.interval == (140.0, 150.0) and not outcome.is_covered
    assert (outcome.predicted_tokens_per_round, outcome.tokens_per_round) == (promise.tokens_per_round, 2.5)


def test_the_demos_json_has_the_keys_people_were_promised() -> None:
    count = Count(tokens_per_round=1.5, replayed_tokens_per_round=1.25, judgement=Judgement(near_ties=2, wrong=0))
    rows = rows_of_cell(field(), SPEEDS, dict.fromkeys(SPEEDS, count), 1)
    cell = outcome_of_cell(solved().cells[0], SPEEDS, 2.5)
    outcome = asdict(DemoOutcome(device="here", rows=tuple(rows), cells=(cell,), greedy_identical=True, seconds=1.0))
    assert {"device", "rows", "cells", "greedy_identical"} <= set(outcome)
    assert {
        "batch", "name", "policy", "drafters", "predicted_tokens_per_s", "measured_tokens_per_s", "tokens_per_round",
        "near_ties", "replayed_tokens_per_round",
    } <= set(outcome["rows"][0])  # fmt: skip
    assert {"batch", "chosen", "speedup_over_plain", "speedup_over_generate", "prediction_error"} <= set(
        outcome["cells"][0]
    )
