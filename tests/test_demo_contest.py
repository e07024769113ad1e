"""Who competes in a cell, what has to be recorded to replay them all, and the rows that come out."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache

import pytest

from spectune.demo.contest import (
    CHAIN,
    GENERATE,
    PLAIN,
    PLAN,
    TREE,
    Contestant,
    Count,
    beams_for,
    outcome_of_cell,
    replayed,
    rows_of_cell,
)
from spectune.demo.records import DemoOutcome
from spectune.planner.cost import cells_of
from spectune.planner.inputs import PlanInputs
from spectune.planner.plan import Plan
from spectune.planner.policy import CastPolicy, ChainPolicy, Eagle2Policy, LookupPolicy, PlainPolicy, TreePolicy
from spectune.planner.search import solve
from spectune.runtime.setup import PLAIN as PLAINLY
from spectune.runtime.setup import RoundSetup
from spectune.tuning.exact import Judgement
from spectune.tuning.recording import ROOTS_ONLY, Beams

from .decoded_runs import POLICIES
from .synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

SPEEDS = {PLAIN: 100.0, CHAIN: 120.0, TREE: 50.0, PLAN: 160.0, GENERATE: 80.0}


@cache
def measured() -> PlanInputs:
    language = Language(3)
    return inputs(record(SkilledDrafter(language, 0.9), texts(language, 6, lambda text: 20), every_node(2, 3)))


@cache
def solved() -> Plan:
    return solve(measured(), cells_of([1, 3], [50]), created="2026-01-01T00:00:00Z", spectune="0.1")


def setups(*policies: TreePolicy, drafter: str = "small") -> list[RoundSetup]:
    return [RoundSetup(policy=policy, drafter=drafter) for policy in policies]


def test_chains_lookups_and_static_trees_need_only_the_roots() -> None:
    found = beams_for([PLAINLY, *setups(ChainPolicy(length=8), LookupPolicy(length=4), POLICIES["static"])])
    assert found == ROOTS_ONLY


def test_every_width_of_an_eagle2_tree_is_a_beam_as_deep_as_its_deepest() -> None:
    small = setups(Eagle2Policy(top_k=4, depth=2), Eagle2Policy(top_k=4, depth=5), Eagle2Policy(top_k=10, depth=7))
    medium = setups(Eagle2Policy(top_k=2, depth=3), drafter="medium")
    assert beams_for([*small, *medium]).layers == ((2, 4), (4, 6), (10, 8))


def test_a_cast_policy_needs_the_whole_recording() -> None:
    assert isinstance(POLICIES["cast"], CastPolicy)
    assert beams_for(setups(Eagle2Policy(), POLICIES["cast"])) == Beams()


def test_plain_decoding_replays_to_one_token_a_round() -> None:
    assert replayed(measured(), solved().cells[0], PLAINLY) == 1.0


def test_what_the_trace_does_not_hold_has_no_replay() -> None:
    (wide,) = setups(Eagle2Policy())  # ten children; the trace has three
    assert replayed(measured(), solved().cells[0], wide) is None


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
            setup=RoundSetup(policy=policy, drafter=None if name == PLAIN else "small"),
            predicted_tokens_per_s=90.0,
        )
        for name, policy in policies.items()
    ]


def test_a_cell_has_a_row_per_contestant_and_one_for_transformers_without_what_it_has_not() -> None:
    count = Count(tokens_per_round=1.5, judgement=Judgement(near_ties=2, wrong=0))
    rows = rows_of_cell(field(), SPEEDS, dict.fromkeys(SPEEDS, count), dict.fromkeys(SPEEDS, 1.5), 8)
    assert {row.name: row.measured_tokens_per_s for row in rows} == SPEEDS
    assert rows[1].drafters == ("small",) and rows[1].policy == "chain of 4" and rows[1].near_ties == 2
    last = asdict(rows[-1])
    missing = {name for name, value in last.items() if value is None}
    assert missing == {
        "policy", "predicted_tokens_per_s", "tokens_per_round", "near_ties", "replayed_tokens_per_round"
    }  # fmt: skip


def test_an_outcome_says_how_the_plan_fared_against_plain_and_transformers() -> None:
    cell = solved().cells[0]
    promise = replace(cell.prediction, low=140.0, tokens_per_s=144.0, high=150.0)
    outcome = outcome_of_cell(replace(cell, prediction=promise), SPEEDS)
    assert outcome.speedup_over_plain == pytest.approx(1.6)
    assert outcome.speedup_over_generate == pytest.approx(2.0)
    assert outcome.prediction_error == pytest.approx(0.1)
    assert outcome.interval == (140.0, 150.0) and not outcome.is_covered


def test_the_demos_json_has_the_keys_people_were_promised() -> None:
    count = Count(tokens_per_round=1.5, judgement=Judgement(near_ties=2, wrong=0))
    rows = rows_of_cell(field(), SPEEDS, dict.fromkeys(SPEEDS, count), dict.fromkeys(SPEEDS, 1.5), 1)
    cell = outcome_of_cell(solved().cells[0], SPEEDS)
    outcome = asdict(DemoOutcome(device="here", rows=tuple(rows), cells=(cell,), greedy_identical=True, seconds=1.0))
    assert {"device", "rows", "cells", "greedy_identical"} <= set(outcome)
    assert {
        "batch", "name", "policy", "drafters", "predicted_tokens_per_s", "measured_tokens_per_s", "tokens_per_round",
        "near_ties", "replayed_tokens_per_round",
    } <= set(outcome["rows"][0])  # fmt: skip
    assert {"batch", "chosen", "speedup_over_plain", "speedup_over_generate", "prediction_error"} <= set(
        outcome["cells"][0]
    )
