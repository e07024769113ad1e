"""Is the plan at least as fast as every published rule, predicted and measured?

Profiles the demo family at batch 1, 4 and 8 with the full recording, so that TALON and OPT-Tree find every child they
would look at, and plans. Then decodes prompts the plan was not chosen on with the plan, plain decoding and every
published default, each with the drafter that is predicted to serve it best, in interleaved turns, several times over;
medians count. All may run padded to the same cheaper shapes. Sequoia's tree is built by its own procedure from the same
surface and trace. The last line is one JSON object.

    python benchmarks/rules.py [--temperature 0] [--repeats 1]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.errors import SpectuneError
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.price import price
from spectune.planner.search.published import published_defaults
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.regime import decoding_regime
from spectune.tests.support.published_rivals import sequoia_tree
from spectune.tuning.family import load_family, torch_device
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.speed_probe import SpeedProbe, gauged_sizes

from result import print_result  # isort: skip
from sweep import (  # isort: skip
    DTYPE,
    FINE_TURNS,
    LOOKUP,
    Way,
    kept_of,
    learned,
    profiled_prompts,
    raced,
    requests,
    speed_of,
)

SEQUOIA_SIZES = (2, 4, 8, 16, 32, 64)  # tokens a verify is tried with
LEAST_RATIO = 1.0  # plan over every rule
PROFILED, PROMPTS = 64, 64  # prompts: ways that copy differ by less than a few texts do


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=1, help="races, whose medians count")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for latency cells")
    asked = parser.parse_args()
    chapter = learned(asked.temperature, asked.budget, "full", prompts=profiled_prompts(PROFILED))
    device = chapter.inputs.device
    regime = decoding_regime(chapter.inputs.verify.regime, device.kind)
    family = load_family(family_models(family_folder()), dtype=DTYPE, device=torch_device(device), regime=regime)
    fresh = requests(evaluation_prompts()[:PROMPTS], asked.temperature, seed=1000)
    rows = [one_cell(cell, chapter.inputs, family, fresh, asked.repeats) for cell in chapter.cells]
    checks = {
        f"batch {row['batch']}: plan at least {rule['name']} ({rule['ratio']:.3f})": rule["ratio"] >= LEAST_RATIO
        for row in rows
        for rule in row["rules"]
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "rules",
        "device": chapter.inputs.device.label,
        "temperature": asked.temperature,
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200"],
    }
    print_result(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A published rule with the drafter that serves it best, and what the planner says of it."""

    name: str
    way: Way
    predicted: Candidate | None  # None where the recording does not hold its tree

    @property
    def predicted_tokens_per_s(self) -> float:
        """What the planner foretells, 0 where it cannot."""
        return self.predicted.tokens_per_s if self.predicted is not None else 0.0


def rules_of(cell: PlanCell, inputs: PlanInputs) -> list[Rule]:
    """Return every published rule once, plain decoding first."""
    place = Cell(batch=cell.batch, context=cell.context)
    drafts = {drafter.name: drafter.surface for drafter in inputs.drafters}
    costs = cell_costs(place, inputs.verify, drafts, inputs.overhead)
    plain = Way(policy=PlainPolicy(), drafter=None)
    found = [Rule(name="plain decoding", way=plain, predicted=_predicted(plain, inputs, place))]
    by_name: dict[str, list[Rule]] = {}
    for name, policy, drafter in _policies(costs, inputs):
        way = Way(policy=policy, drafter=drafter)
        rule = Rule(name=name, way=way, predicted=_predicted(way, inputs, place))
        by_name.setdefault(name, []).append(rule)
    return found + [max(rules, key=lambda rule: rule.predicted_tokens_per_s) for rules in by_name.values()]


def _policies(costs: CellCosts, inputs: PlanInputs) -> Iterator[tuple[str, TreePolicy, str]]:
    """Yield name, policy and drafter of every rule with every drafter."""
    for default in published_defaults(costs, None, 0):
        yield default.name, default.policy, LOOKUP
    for drafter in inputs.drafters:
        for default in published_defaults(costs, drafter.name, drafter.trace.children):
            if not isinstance(default.policy, LookupPolicy):
                yield default.name, default.policy, drafter.name
        if drafter.name in costs.drafts:
            yield "Sequoia's static tree", sequoia(costs, drafter), drafter.name


def sequoia(costs: CellCosts, drafter: DrafterInputs) -> StaticPolicy:
    """Return the tree of Sequoia's own procedure, with one acceptance vector and one cost of a draft."""
    verify, draft = costs.verify.row(costs.cell.context), costs.drafts[drafter.name].row(costs.cell.context)
    sizes = [size for size in SEQUOIA_SIZES if size <= costs.verify.most_tokens]
    acceptance = drafter.trace.rank_acceptance().tolist()
    found = sequoia_tree(acceptance, sizes, [float(verify[size]) for size in sizes], float(draft[1]))
    return StaticPolicy(tree=found.tree)


def one_cell(cell: PlanCell, inputs: PlanInputs, family: Family, fresh: list[Request], repeats: int) -> dict[str, Any]:
    """Measure the plan and all rules at one batch size."""
    place = Cell(batch=cell.batch, context=cell.context)
    padding = cell_costs(place, inputs.verify, {}, inputs.overhead).run_tokens
    rules, planned = rules_of(cell, inputs), Way(policy=cell.policy, drafter=cell.drafter)
    ways = list(dict.fromkeys([planned, *(rule.way for rule in rules)]))
    gauges = {nodes: SpeedProbe(cell, family.target, nodes) for nodes in sorted({1, *gauged_sizes(cell)})}
    runs = [
        raced(ways, padding, family, fresh, cell.batch, turns=FINE_TURNS, seed=repeat, gauges=tuple(gauges.values()))
        for repeat in range(repeats)
    ]
    speeds = {way: statistics.median(speed_of(run, way) for run in runs) for way in ways}
    kept = {way: statistics.mean(kept_of(run, way) for run in runs) for way in ways}
    promised = cell.prediction
    row: dict[str, Any] = {
        "batch": cell.batch,
        "context": cell.context,
        "plan": planned.name,
        "predicted_tokens_per_s": promised.tokens_per_s,
        "interval": [promised.low, promised.high],
        "measured_tokens_per_s": speeds[planned],
        "tokens_per_round": {"predicted": promised.tokens_per_round, "measured": kept[planned]},
        "machine_speed": {f"{nodes} tokens": gauge.speed for nodes, gauge in gauges.items()},
        "rules": [
            {
                "name": rule.name,
                "way": rule.way.name,
                "predicted_tokens_per_s": rule.predicted_tokens_per_s or None,
                "measured_tokens_per_s": speeds[rule.way],
                "tokens_per_round": {
                    "predicted": None if rule.predicted is None else rule.predicted.tokens_per_round,
                    "measured": kept[rule.way],
                },
                "ratio": speeds[planned] / speeds[rule.way],
            }
            for rule in rules
        ],
    }
    print(f"batch {cell.batch}: plan {planned.name}, pace {row['machine_speed']}")
    for rule in [row | {"name": "the plan", "ratio": 1.0}, *row["rules"]]:
        print(_line(rule), flush=True)
    return row


def _line(rule: dict[str, Any]) -> str:
    """Return how a way's measured speed, tokens a round and milliseconds a round compare with what was predicted."""
    told, predicted, kept = "not priced", rule["predicted_tokens_per_s"], rule["tokens_per_round"]
    if predicted is not None:
        speed, tokens = rule["measured_tokens_per_s"] / predicted, kept["measured"] / kept["predicted"]
        told = f"{speed:.3f} of the prediction: tokens a round {tokens:.3f}, rounds a second {speed / tokens:.3f}"
    return (
        f"  {rule['name']:34} {rule['measured_tokens_per_s']:7.0f} tokens/s, {told}; plan is {rule['ratio']:.3f} times"
    )


def _predicted(way: Way, inputs: PlanInputs, place: Cell) -> Candidate | None:
    try:
        return price(inputs, place, way.policy, way.drafter)
    except SpectuneError:
        return None


if __name__ == "__main__":
    main()
