"""Texts that stored studies and the order of hybrids hang on: pinned, and free of how records are called."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass, replace
from typing import Any

import pytest

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.tree import TokenTree
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price_all
from spectune.planner.search.searched import Searcher, limits_text, samples_text
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.records.overhead import OverheadSample

from ..support.chain_traces import rooted, trace_of
from ..support.synthetic import TARGET, inputs, model
from .search.test_searched import Shelf

PLAIN = OverheadSample(kind="plain", batch=1, draft_forwards=0, nodes=1, host_ms=(0.25, -1e-07))
BLOCK = OverheadSample(
    kind="eagle2", batch=8, draft_forwards=3, nodes=24, host_ms=(1.5,), is_sampled=True, role="block", drafter="it's",
    is_ahead=True,
)  # fmt: skip
PLAIN_TEXT = (
    "OverheadSample(kind='plain', batch=1, draft_forwards=0, nodes=1, host_ms=(0.25, -1e-07), is_sampled=None, "
    "role='draft', drafter='', is_ahead=False)"
)
BLOCK_TEXT = (
    "OverheadSample(kind='eagle2', batch=8, draft_forwards=3, nodes=24, host_ms=(1.5,), is_sampled=True, "
    "role='block', drafter=\"it's\", is_ahead=True)"
)
BOUND = LatencyBound(metric="p90_itl", most_ms=30.5)
TREE = TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 2, 1))
MODELS: dict[str, TreePolicy] = {
    "ChainPolicy(length=12, kind='chain')": ChainPolicy(length=12),
    "ChainPolicy(length=3, kind='chain')": ChainPolicy(length=3),
    "Eagle2Policy(verify_tokens=16, depth=3, top_k=4, kind='eagle2')": Eagle2Policy(verify_tokens=16, depth=3, top_k=4),
    "StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 2, 1)), kind='static')": StaticPolicy(tree=TREE),
}


def test_host_times_are_written_as_they_were_when_the_first_studies_were_stored() -> None:
    assert samples_text([PLAIN]) == f"({PLAIN_TEXT},)"
    assert samples_text([PLAIN, BLOCK]) == f"({PLAIN_TEXT}, {BLOCK_TEXT})"


@pytest.mark.parametrize(
    ("bound", "most_bytes", "text"),
    [
        (None, None, "(None, None)"),
        (None, 2**34, "(None, 17179869184)"),
        (BOUND, None, "(LatencyBound(metric='p90_itl', most_ms=30.5), None)"),
    ],
)
def test_limits_are_written_as_they_were(bound: LatencyBound | None, most_bytes: int | None, text: str) -> None:
    assert limits_text(bound, most_bytes) == text


def test_models_of_hybrids_are_ordered_as_they_were() -> None:
    """By text: a chain of 12 before one of 3, and chains before trees."""
    assert {model.written: model for model in MODELS.values()} == MODELS
    assert [*MODELS] == sorted(MODELS)


@pytest.mark.parametrize("record", [PLAIN, BLOCK], ids=lambda record: record.kind)
def test_host_times_are_written_alike_under_another_name_and_in_another_order(record: OverheadSample) -> None:
    assert repr(other_of(record)) != repr(record)
    assert samples_text([other_of(record)]) == samples_text([record])


def test_limits_are_written_alike_under_another_name_and_in_another_order() -> None:
    assert limits_text(other_of(BOUND), None) == limits_text(BOUND, None)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.code)
def test_models_are_written_alike_under_another_name_and_in_another_order(model: TreePolicy) -> None:
    written: Any = type(model).written
    assert written.fget(other_of(model)) == model.written


def other_of(record: Any) -> Any:
    """Return the same fields, turned round, in a class of another name; so are the records among them."""
    values = {field.name: getattr(record, field.name) for field in fields(record)[::-1]}
    made = {name: other_of(value) if is_dataclass(value) else value for name, value in values.items()}
    return make_dataclass("Renamed", made, frozen=True)(**made)


def timed() -> PlanInputs:
    """Return inputs of which every number is written down here or in whole milliseconds."""
    recorded = trace_of(*(rooted([0, 1, 0, 2, 0, 0, 255, 0, 1, 0], prompt=n + 1) for n in range(4)), prefix_exact=True)
    named = replace(recorded, target=TARGET.key, drafter=model("small").key, drafter_name="small")
    found = inputs(named, verify_ms=lambda *shape: 10.0, draft_ms=lambda *shape: 1.0, host_ms=0.25)
    return replace(found, overhead=replace(found.overhead, samples=(*found.overhead.samples, BLOCK)))


def test_studies_are_called_as_they_were_when_the_first_ones_were_stored() -> None:
    shelf, rehearsal, cell = Shelf(), Rehearsal(timed()), Cell(batch=1, context=20)
    for bound in (None, BOUND):
        options = SearchOptions(trials=2, bound=bound, new_tokens=9, cached_share=0.25)
        (contest,) = price_all(rehearsal, [cell], options)
        Searcher(options=options, studies=shelf, rehearsal=rehearsal).search(contest)
    place = "562f1f24fc0e643e 1x20 in -inf..inf, (None, None), answers of 9 behind 0.25 cached | v3 small cast half 0"
    assert place in shelf.studies
    assert place.replace("(None,", "(LatencyBound(metric='p90_itl', most_ms=30.5),") in shelf.studies
