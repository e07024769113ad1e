"""Every drafter on the demo target: what it costs to have, what it promises, what it does, and what the planner picks.

Profiles the demo family with all trained heads that lie beside it, at batch 1 and 8, and plans. A system is a drafter
with one way of using it: chains, trees and the hybrid rule of each model and head, stacks of models, and what drafts
from the text itself, Cacheback's table of a corpus included. Each system runs the policy that is predicted to be its
fastest. All decode the same unseen prompts in interleaved turns; then the fastest ones, the best independent model, the
best head or stack and the plan, entered twice, race again over more prompts. What counts is the median over races of
the ratio within a race. All may run padded to the same cheaper shapes.

At batch 8 what drafts from the text lies within a few percent of each other, and a few texts that repeat themselves
more or less than others decide between them. So the profile reads more calibration prompts than the demo ships, and the
last races at batch 8 decode all the evaluation prompts, of which the planner has seen none.

The last line is one JSON object; `holds` is true where

    - at batch 1 a trained head or a stack is at least as fast as the best independent drafter model, and
    - the plan is at least 0.98 times as fast as the best single system, in every cell.

    python benchmarks/drafters.py [--temperature 0] [--races 3] [--budget 18]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_corpus import shipped_prompts, texts_without
from safetensors import safe_open

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.records.frozen_table import FrozenTable, frozen_table
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.search.stack_search import StackSearch
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.text import TextPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.loading import load_tokenizer
from spectune.runtime.models.regime import decoding_regime
from spectune.tuning.family import load_family, torch_device
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.request import Models

from sweep import DTYPE, FINE_TURNS, Raced, Way, learned, profiled_prompts, raced, requests, speed_of  # isort: skip
from result import print_result  # isort: skip

BATCHES = (1, 8)
LEARNED = ("eagle3", "medusa", "ctc", "specformer", "exit")
HEADS = (*LEARNED, "recycling")  # folders beside the target; those that are there take part
DISTILLED_S = {"small": 780.0, "medium": 780.0}  # both together, demo/models/README.md; heads have cards
TABLE_TEXTS = 8  # every so many-th training text is counted into the frozen table
TABLE = "cacheback with a frozen table"
FINALISTS = 4  # the fastest systems, raced again whatever they are
FURTHER_PROMPTS = 24  # to profile on, beside the demo's calibration prompts
FIRST_PROMPTS = {1: 16, 8: 32}  # decoded by all systems, by batch; rounds of many sequences are fewer
LAST_PROMPTS = {1: 32, 8: 64}  # decoded by the finalists
LEAST_RATIO = 0.98  # plan over the best single system
CHAINS, TREES = ("chain", "confident-chain"), ("static", "eagle2", "talon", "opt-tree", "cast")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A drafter and one way of using it, with the policy that is predicted to be its fastest."""

    name: str
    drafter: str | None  # a model or a head; None for plain decoding, stacks, and what needs neither
    best: Candidate

    @property
    def way(self) -> Way:
        """What is raced."""
        return Way(policy=self.best.policy, drafter=self.best.drafter)


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--races", type=int, default=3, help="of the finalists, whose medians count")
    parser.add_argument("--budget", type=float, default=18.0, help="seconds for latency cells")
    asked = parser.parse_args()
    models = with_heads(family_models(family_folder()))
    table, counted_s = counted_table(models.target)
    read = profiled_prompts(len(calibration_prompts()) + FURTHER_PROMPTS)
    chapter = learned(asked.temperature, asked.budget, models=models, batches=BATCHES, tables=(table,), prompts=read)
    device = chapter.inputs.device
    regime = decoding_regime(chapter.inputs.verify.regime, device.kind)
    family = load_family(models, dtype=DTYPE, device=torch_device(device), regime=regime)
    fresh = requests(evaluation_prompts(), asked.temperature, seed=1000)
    owned = {name: facts_of(folder, DISTILLED_S.get(name)) for name, folder in models.drafters.items()}
    owned[TABLE] = {"parameters": None, "training_s": counted_s}
    priced = {cell.batch: systems_of(cell, chapter.inputs, table) for cell in chapter.cells}
    cells = [one_cell(cell, priced[cell.batch], chapter.inputs, family, fresh, asked.races) for cell in chapter.cells]
    for cell in cells:
        print_table(cell, owned)
    checks = verdicts(cells)
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "drafters",
        "device": chapter.inputs.device.label,
        "temperature": asked.temperature,
        "profile_prompts": len(read),
        "profile_s": chapter.profile_s,
        "plan_s": chapter.plan_s,
        "drafters": owned,
        "cells": cells,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": [f"{name}: no such head beside the target" for name in HEADS if name not in models.drafters],
    }
    print_result(result)


def with_heads(models: Models) -> Models:
    """Return the family with every trained head that lies beside its target."""
    beside = {name: models.target.parent / name for name in HEADS}
    found = {name: folder for name, folder in beside.items() if (folder / "config.json").exists()}
    return Models(target=models.target, drafters={**models.drafters, **found})


def counted_table(target: Path) -> tuple[FrozenTable, float]:
    """Return Cacheback's frozen table of part of the training texts, and the seconds it took."""
    started = time.perf_counter()
    texts = texts_without(shipped_prompts())[::TABLE_TEXTS]
    ids: list[list[int]] = load_tokenizer(str(target))(texts, add_special_tokens=False)["input_ids"]
    corpus = np.concatenate([np.array(one, dtype=np.int64) for one in ids])
    table = frozen_table(corpus, leader_tokens=1, follower_tokens=3, leaders=1024, followers=4)
    return table, time.perf_counter() - started


def facts_of(folder: Path, training_s: float | None) -> dict[str, Any]:
    """Return how large a drafter is, and how long its training took."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys() if name not in ("d2t", "t2d")]  # noqa: SIM118
    card = json.loads((folder / "card.json").read_text()) if (folder / "card.json").exists() else {}
    parameters = sum(int(np.prod(size)) for size in sizes)
    return {"parameters": parameters, "training_s": training_s or card.get("seconds")}


def systems_of(cell: PlanCell, inputs: PlanInputs, table: FrozenTable) -> list[System]:
    """Return every system of a cell with its fastest policy, plain decoding first."""
    rehearsal, options = Rehearsal(inputs), SearchOptions(tables=(table,))
    (contest,) = price_all(rehearsal, [Cell(batch=cell.batch, context=cell.context)], options)
    StackSearch(rehearsal, options.seed).search(contest)
    best: dict[str, System] = {}
    for candidate in contest.priced:
        drafter = None if candidate.drafter not in {one.name for one in inputs.drafters} else candidate.drafter
        name = system_of(candidate)
        if name not in best or candidate.tokens_per_s > best[name].best.tokens_per_s:
            best[name] = System(name=name, drafter=drafter, best=candidate)
    if TABLE not in best:  # the planner saw without a replay that no tree of it is the fastest of its kind
        usual = price(inputs, Cell(batch=cell.batch, context=cell.context), CachebackPolicy(nodes=8, frozen=table))
        best[TABLE] = System(name=TABLE, drafter=None, best=usual)
    return list(best.values())


def system_of(candidate: Candidate) -> str:
    """Return which system a candidate belongs to."""
    policy = candidate.policy
    if isinstance(policy, PlainPolicy):
        return "plain decoding"
    if isinstance(policy, CachebackPolicy):
        return "cacheback" if policy.frozen is None else TABLE
    if isinstance(policy, TextPolicy):
        return policy.kind
    if policy.kind in CHAINS:
        return f"{candidate.drafter}, chain"
    if policy.kind in TREES:
        return f"{candidate.drafter}, tree"
    return "stack" if policy.kind == "stack" else f"{candidate.drafter}, {policy.kind}"


def one_cell(
    cell: PlanCell, systems: list[System], inputs: PlanInputs, family: Family, fresh: list[Request], races: int
) -> dict[str, Any]:
    """Race all systems of a batch size, then the best of them and the plan again; return what came of it."""
    place = Cell(batch=cell.batch, context=cell.context)
    padding = cell_costs(place, inputs.verify, {}, inputs.overhead).run_tokens
    planned = Way(policy=cell.policy, drafter=cell.drafter)
    some, all_of_them = fresh[: FIRST_PROMPTS[cell.batch]], fresh[: LAST_PROMPTS[cell.batch]]
    first = raced(list(dict.fromkeys([planned, *(one.way for one in systems)])), padding, family, some, cell.batch)
    ranked = sorted(systems, key=lambda one: -speed_of(first, one.way))
    models, learned_ones = list(independent(ranked, inputs)), list(heads_and_stacks(ranked))
    finalists = list(dict.fromkeys(one.name for one in [*ranked[:FINALISTS], *models[:1], *learned_ones[:1]]))
    ways = {one.name: one.way for one in systems if one.name in finalists}
    field = [*dict.fromkeys([*ways.values(), planned]), planned]
    again = [raced(field, padding, family, all_of_them, cell.batch, turns=FINE_TURNS, seed=1 + n) for n in range(races)]
    over = {name: ratio(again, planned, way) for name, way in ways.items()}
    rows = [row_of(one, first, planned) for one in ranked]
    best = min(over, key=lambda name: over[name])
    ahead = ratio(again, ways[learned_ones[0].name], ways[models[0].name]) if models and learned_ones else None
    print(
        f"batch {cell.batch}: plan {planned.name} is {over[best]:.3f} times {best}, the best single system", flush=True
    )
    return {
        "batch": cell.batch,
        "context": cell.context,
        "prompts": len(all_of_them),
        "plan": planned.name,
        "predicted_tokens_per_s": cell.prediction.tokens_per_s,
        "measured_tokens_per_s": speed_of(first, planned),
        "plan_over": over,
        "plan_over_best": over[best],
        "best": best,
        "best_model": models[0].name if models else None,
        "best_head_or_stack": learned_ones[0].name if learned_ones else None,
        "head_or_stack_over_model": ahead,
        "systems": rows,
    }


def independent(systems: list[System], inputs: PlanInputs) -> Iterator[System]:
    """Yield the chains and trees of drafter models that read the text alone."""
    return (one for one in systems if one.drafter and is_model(one.drafter, inputs) and "hybrid" not in one.name)


def heads_and_stacks(systems: list[System]) -> Iterator[System]:
    """Yield the chains and trees of trained heads, and stacks."""
    return (one for one in systems if one.name == "stack" or (one.drafter in LEARNED and "hybrid" not in one.name))


def is_model(drafter: str, inputs: PlanInputs) -> bool:
    """Say whether a drafter needs nothing of the target."""
    return not inputs.drafter(drafter).reads_features


def ratio(races: list[list[Raced]], way: Way, other: Way) -> float:
    """Return the median over races of the ratio of two ways' tokens/s."""
    return statistics.median(speed_of(run, way) / speed_of(run, other) for run in races)


def row_of(system: System, run: list[Raced], planned: Way) -> dict[str, Any]:
    """Return what was predicted and measured of a system."""
    measured = next(one for one in run if one.way == system.way)
    return {
        "system": system.name,
        "drafter": TABLE if system.name == TABLE else system.drafter,
        "policy": name_of(system.best.policy.code, system.best.drafter),
        "draft_ms": system.best.draft_ms,
        "predicted_tokens_per_round": system.best.tokens_per_round,
        "measured_tokens_per_round": measured.tokens_per_round,
        "predicted_tokens_per_s": system.best.tokens_per_s,
        "measured_tokens_per_s": measured.tokens_per_s,
        "is_picked": system.way == planned,
    }


def print_table(cell: dict[str, Any], owned: dict[str, dict[str, Any]]) -> None:
    """Print a cell's systems, the fastest first."""
    print(f"batch {cell['batch']}, context {cell['context']}: the planner picks {cell['plan']}")
    heads = ("trained s", "parameters", "draft ms", "tokens/round", "predicted", "measured")
    print(f"  {'system':30}" + "".join(f"{head:>13}" for head in heads) + "  policy")
    for row in cell["systems"]:
        facts = owned.get(row["drafter"], {})
        trained, parameters = facts.get("training_s"), facts.get("parameters")
        print(
            f"  {row['system']:30}{'-' if trained is None else f'{trained:.0f}':>13}"
            f"{'-' if parameters is None else f'{parameters:,}':>13}{row['draft_ms']:13.2f}"
            f"{row['measured_tokens_per_round']:13.2f}{row['predicted_tokens_per_s']:13.0f}"
            f"{row['measured_tokens_per_s']:13.0f}  {row['policy']}{'  <- picked' if row['is_picked'] else ''}"
        )


def verdicts(cells: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what must hold, by name."""
    checks = {}
    for cell in cells:
        share, ahead = cell["plan_over_best"], cell["head_or_stack_over_model"]
        name = f"batch {cell['batch']}: plan at least {LEAST_RATIO} of the best single system ({share:.3f})"
        checks[name] = share >= LEAST_RATIO
        if cell["batch"] == 1:
            told = "none" if ahead is None else f"{cell['best_head_or_stack']} {ahead:.3f} of {cell['best_model']}"
            checks[f"batch 1: a head or stack at least as fast as the best drafter model ({told})"] = (
                ahead is not None and ahead >= 1.0
            )
    return checks


if __name__ == "__main__":
    main()
