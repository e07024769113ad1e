"""Goldens of plans: the documents, what every kind of drafting was priced at, and the trials of every study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell, cells_at
from spectune.planner.records.crossfit import HALVES
from spectune.planner.search.lossy_search import with_lossy_runs
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import Solve, SolvedCell, solve
from spectune.planner.search.studies import AT_RANDOM, studies_in_memory

from .golden_inputs import FAMILY, TABLE, lossy_runs, made, real_pair, recorded, recorded_elsewhere

PLACES = ((1, 8), (3, 8), (1, 30), (8, 30), (3, 120), (8, 120))  # batch and context
RANDOM = HALVES * AT_RANDOM  # trials; what Optuna's sampler proposes behind these turns on last digits of its sums
CREATED, VERSION = "2026-01-01T00:00:00Z", "golden"
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One plan: its inputs, cells and options."""

    inputs: Callable[[], PlanInputs]
    cells: tuple[Cell, ...]
    options: SearchOptions


ASKED = {
    "made": Asked(inputs=made, cells=cells_at(PLACES), options=SearchOptions(trials=2, seed=5)),
    "made-whole-requests": Asked(
        inputs=made,
        cells=cells_at([(3, 30)]),
        options=SearchOptions(
            trials=RANDOM,
            seed=7,
            bound=LatencyBound(metric="p90_itl", most_ms=14.0),
            new_tokens=24,
            cached_share=0.25,
            tables=(TABLE,),
        ),
    ),
    "made-lossy": Asked(
        inputs=lambda: with_lossy_runs(made(), lossy_runs()),
        cells=cells_at([(1, 30)]),
        options=SearchOptions(trials=0, allow_lossy=True),
    ),
    "recorded": Asked(inputs=recorded, cells=cells_at([(4, 40), (1, 50)]), options=SearchOptions(trials=2, seed=3)),
    "recorded-in-little-memory": Asked(
        inputs=recorded,
        cells=cells_at([(1, 40)]),
        options=SearchOptions(
            trials=2, seed=4, bound=LatencyBound(metric="itl", most_ms=2.5), max_memory_bytes=37_500_000
        ),
    ),
    "real-pair": Asked(
        inputs=real_pair,
        cells=cells_at([(1, 60), (4, 60), (1, 300), (4, 300)]),
        options=SearchOptions(trials=2, seed=6),
    ),
    "recorded-elsewhere": Asked(
        inputs=recorded_elsewhere, cells=cells_at([(1, 40), (3, 40)]), options=SearchOptions(trials=RANDOM, seed=9)
    ),
}


@dataclass
class Shelf:
    """Opens studies in memory and remembers them."""

    seed: int
    studies: dict[str, optuna.Study] = field(default_factory=dict)

    def __call__(self, name: str) -> optuna.Study:
        self.studies[name] = studies_in_memory(self.seed)(name)
        return self.studies[name]


def plan_goldens(name: str) -> dict[str, str]:
    """Return the files of one plan by their names."""
    asked, cells = ASKED[name], list[SolvedCell]()
    shelf = Shelf(asked.options.seed)

    def kept(work: Solve, groups: Iterable[tuple[Cell, ...]]) -> Iterator[tuple[SolvedCell, ...]]:
        for group in groups:
            found = work(group)
            cells.extend(found)
            yield found

    plan = solve(
        asked.inputs(),
        asked.cells,
        created=CREATED,
        spectune=VERSION,
        options=asked.options,
        studies=shelf,
        spread=kept,
        parts=2,
    )
    found = {"cells": [prices_of(cell) for cell in cells], "studies": trials_of(shelf)}
    return {f"plans/{name}.json.gz": document_of(plan), f"prices/{name}.json.gz": json.dumps(found, indent=1)}


def document_of(plan: Plan) -> str:
    """Return a plan's document as it is where this repository lies at /spectune."""
    return plan_to_json(plan).replace(str(FAMILY), "/spectune/demo/models")


def prices_of(cell: SolvedCell) -> Json:
    """Return, by kind and drafter, how many candidates have a price, their mean speed, and the fastest of them."""
    contest = cell.contest
    speeds: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for one in contest.priced:
        speeds.setdefault((one.policy.kind, one.drafter or ""), []).append((one.tokens_per_s, one.policy.code))
    return {
        "batch": cell.place[0],
        "context": cell.place[1],
        "pruned": contest.pruned,
        "untried": contest.untried,
        "near": [contest_code(cell, place) for place in cell.ballot.near],
        "priced": [
            {"kind": kind, "drafter": drafter, "count": len(own), "mean": mean_of(own), "fastest": list(max(own))}
            for (kind, drafter), own in speeds.items()
        ],
    }


def contest_code(cell: SolvedCell, place: int) -> str:
    """Return who is at a place of a cell's ballot."""
    one = cell.ballot.candidates[place]
    return f"{one.policy.code} by {one.drafter}"


def mean_of(speeds: Sequence[tuple[float, str]]) -> float:
    """Return the mean speed."""
    return sum(speed for speed, _ in speeds) / len(speeds)


def trials_of(shelf: Shelf) -> Json:
    """Return the trials of every study by its name: knobs, and what they reached."""
    return {
        name: [{"knobs": trial.params, "tokens_per_s": trial.value} for trial in study.get_trials()]
        for name, study in shelf.studies.items()
    }
