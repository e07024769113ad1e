"""Bounds that no policy beats, and a contest that prunes by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.lockstep import replay_results
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.pricing.bounds import bound_of, most_tokens_per_round
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.records.recording import Recording, Rows, Text, recording_of, rows_of
from spectune.planner.records.results import PositionResults
from spectune.planner.search.candidate import candidate_of, times_of
from spectune.planner.search.contest import CellSearch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy, confident_chain_results
from spectune.planner.strategies.eagle2 import eagle2_results
from spectune.planner.strategies.lookup import LookupPolicy, lookup_results
from spectune.planner.strategies.opt_tree import OptTreePolicy, opt_tree_results
from spectune.planner.strategies.plain import PlainPolicy, plain_results
from spectune.planner.strategies.stack import model_of
from spectune.planner.strategies.talon import talon_results

from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

CELL = Cell(batch=3, context=20)


@cache
def made(skill: float = 0.7, token_ms: float = 0.3) -> PlanInputs:
    language = Language(11)
    trace = record(SkilledDrafter(language, skill), texts(language, 8, lambda text: 15 + text), every_node(3, 3))
    return inputs(
        trace,
        verify_ms=lambda batch, context, tokens: 30.0 + token_ms * tokens + 0.01 * context,
        draft_ms=lambda batch, context, tokens: 2.0 + 0.1 * token_ms * tokens,
    )


def contenders(found: PlanInputs) -> list[tuple[TreePolicy, str | None, PositionResults]]:
    recording, rows = recording_of(found.drafters[0].trace), rows_of(found.texts)
    chains = [ChainPolicy(length=length) for length in (1, 2, 3)]
    return [
        (PlainPolicy(), None, plain_results(rows)),
        *((policy, LOOKUP, results) for policy, results in lookup_results(found.texts, 2, 1, [1, 3])),
        *((policy, "small", results_of(policy, recording)) for policy in chains),
        *((policy, "small", results) for policy, results in drafted(recording)),
    ]


def drafted(recording: Recording) -> Iterator[tuple[TreePolicy, PositionResults]]:
    yield from eagle2_results(recording, 2, [0, 1], [2, 4])
    yield from talon_results(recording, 0.3, 2, 3, [4, 6], [1, 3])
    yield from opt_tree_results(recording, [OptTreePolicy(nodes=4, least_gain=0.3, max_depth=3, children=3)])
    yield from confident_chain_results(recording, [3], [0.2, 0.6])


def contest_of(found: PlanInputs) -> CellSearch:
    costs = cell_costs(CELL, found.verify, {"small": found.drafters[0].surface}, found.overhead)
    return CellSearch(costs=costs, texts=len(found.texts), needs_bytes=lambda policy, drafter: None)


@pytest.mark.parametrize("token_ms", [0.3, -0.3])
def test_no_policy_is_faster_than_its_bound(token_ms: float) -> None:
    found = made(token_ms=token_ms)
    rows, costs = rows_of(found.texts), contest_of(found).costs
    for policy, drafter, results in contenders(found):
        replayed = replay_results(results, rows, 3)
        times = times_of(policy, drafter, replayed, costs)
        priced = candidate_of(policy, drafter, replayed, times, costs, len(found.texts))
        bound = bound_of(results, rows)
        rate = 1000.0 * 3 * bound.most_tokens / bound.least_ms(costs.at_least(policy.kind, model_of(drafter)))
        assert priced.tokens_per_s <= rate * (1.0 + 1e-9), policy.label


def test_a_text_that_has_ended_makes_no_tree_smaller() -> None:
    """There nothing is drafted, which said of every tree that follows scores that it might cost nothing."""
    found = made()
    recording, rows = recording_of(found.drafters[0].trace), rows_of(found.texts)
    ((_, results),) = talon_results(recording, 0.3, 2, 3, [6], [3])
    bound, runs = bound_of(results, rows), rows.left > 0
    assert results.sizes.min() == 1 < bound.nodes == results.sizes[runs].min()
    assert bound.widths.tolist() == [results.widths[runs].min(axis=0).tolist()]


def test_the_most_tokens_of_plain_decoding_is_one() -> None:
    rows = rows_of(made().texts)
    assert most_tokens_per_round(plain_results(rows), rows) == 1.0


def test_the_most_tokens_of_a_perfect_chain_is_its_length_and_one() -> None:
    found = made(1.0)
    rows, policy = rows_of(found.texts), ChainPolicy(length=1)
    perfect = most_tokens_per_round(results_of(policy, recording_of(found.drafters[0].trace)), rows)
    rounds = np.ceil(rows.left[rows.starts] / 2).sum()
    assert perfect == pytest.approx(rows.left[rows.starts].sum() / rounds)


def alike(texts: int, tokens: int) -> Rows:
    """Return the rows of texts of equally many tokens behind the first."""
    return rows_of([Text(prompt=(1,), continuation=(1,) * (tokens + 1))] * texts)


def drafting(accepted: Sequence[int]) -> PositionResults:
    """Return the results of chains of 4 that are right as far as told at every row."""
    rows = len(accepted)
    return PositionResults(
        accepted=np.array(accepted),
        sizes=np.full(rows, 5),
        censored=np.zeros(rows, dtype=np.bool_),
        widths=np.ones((1, 4), dtype=np.int64),
    )


@pytest.mark.parametrize("batch", range(1, 7))
def test_no_batch_yields_more_tokens_than_the_bound(batch: int) -> None:
    draw, rows = np.random.default_rng(2), alike(6, 20)
    for _ in range(20):
        luck = draw.integers(1, 6, len(rows.starts))[rows.text_of]
        results = drafting((draw.integers(0, 6, len(rows.left)) % luck).tolist())
        yielded = replay_results(results, rows, batch).tokens_per_round
        assert yielded <= most_tokens_per_round(results, rows) + 1e-9


def test_a_hopeless_policy_is_pruned_and_counted() -> None:
    found = made()
    contest, rows = contest_of(found), rows_of(found.texts)
    results = plain_results(rows)
    contest.enter(PlainPolicy(), None, replay_results(results, rows, 3))
    chain = results_of(ChainPolicy(length=3), recording_of(found.drafters[0].trace))
    contest.enter(ChainPolicy(length=1), "small", replay_results(chain, rows, 3))  # one of its kind is known
    slow = replace(bound_of(chain, rows), most_tokens=0.1)
    assert not contest.can_matter(ChainPolicy(length=3), "small", slow)
    assert contest.pruned == 1


def test_the_first_of_a_kind_is_never_pruned() -> None:
    found = made()
    contest, rows = contest_of(found), rows_of(found.texts)
    contest.enter(PlainPolicy(), None, replay_results(plain_results(rows), rows, 3))
    slow = replace(bound_of(plain_results(rows), rows), most_tokens=0.001)
    assert contest.can_matter(ChainPolicy(length=3), "small", slow)


def test_what_takes_too_much_memory_is_left_out_with_the_reason() -> None:
    found = made()
    contest, rows = contest_of(found), rows_of(found.texts)
    contest.needs_bytes, contest.most_bytes = lambda policy, drafter: 3 * 2**30, 2**30
    ((policy, results),) = lookup_results(found.texts, 2, 1, [2])
    assert contest.enter(policy, LOOKUP, replay_results(results, rows, 3)) is None
    (gone,) = contest.left_out()
    assert gone.label == LookupPolicy(length=2, max_ngram=2).code
    assert gone.reason == "it takes 3.00 GiB of memory, at most 1.00 GiB are allowed"


def test_what_could_verify_more_than_was_measured_is_left_out() -> None:
    found = made()
    contest, rows = contest_of(found), rows_of(found.texts)
    policy = ConfidentChainPolicy(length=80, confidence=0.9)
    assert contest.enter(policy, "small", replay_results(plain_results(rows), rows, 3)) is None
    assert "a verify of 81 tokens was not measured" in contest.left_out()[0].reason


def test_what_breaks_the_bound_is_nothing_to_be_measured_against() -> None:
    found = made()
    contest, rows = contest_of(found), rows_of(found.texts)
    contest.bound = LatencyBound(metric="itl", most_ms=1.0)
    contest.enter(PlainPolicy(), None, replay_results(plain_results(rows), rows, 3))
    assert not contest.keeps_bound(0)
    assert contest.best_rate == 0.0


def test_many_of_one_kind_are_left_out_in_one_line() -> None:
    contest = contest_of(made())
    for length in (1, 2, 3):
        contest.refuse(ChainPolicy(length=length), "small", "no reason at all")
    (gone,) = contest.left_out()
    assert (gone.label, gone.reason) == ("3 of kind chain", "for example chain of 1: no reason at all")
