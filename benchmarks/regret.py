"""Is the plan as fast as the best of a sweep that takes twenty times as long as its profile?

Profiles the demo family at batch 1, 4 and 8 on 24 prompts x 96 tokens and plans. Then does what people do today:
decodes the same 16 x 96 tokens with every one of a list of configurations (plain decoding, chains, prompt lookup,
suffixes and their trees, EAGLE-2 grids, TALON), interleaved, per batch. The sweep's five best and the plan are measured
again in fresh races, on 64 prompts neither has seen. Every way may run padded to the same cheaper shapes, plain
decoding too. The last line is one JSON object.

Two decoders of the very same policy differ by up to three percent in one race here, so that the best of six is mostly
the luckiest. So every race has fresh decoders, the plan is entered twice, and what counts is the median over races of
the ratio within a race; the ratio of the plan's two decoders says how much of a difference is noise.

    python benchmarks/regret.py [--temperature 0] [--races 4] [--budget 18] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.errors import SpectuneError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.search.price import price
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy, Occurrence
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.regime import decoding_regime
from spectune.tuning.family import load_family, torch_device
from spectune.tuning.measuring.decoding import Family

from sweep import DTYPE, FINE_TURNS, LOOKUP, PROMPTS, Raced, Way, learned, raced, requests, speed_of, speeds_of  # isort: skip
from result import print_result  # isort: skip

OCCURRENCES: tuple[Occurrence, ...] = ("first", "last")
FINALISTS = 5  # of the sweep, measured again
LEAST_RATIO = 0.98  # plan over the best of the fresh rounds
MOST_SHARE = 0.05  # profile's seconds over the sweep's


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--races", type=int, default=4, help="of the finalists, whose medians count")
    parser.add_argument("--budget", type=float, default=18.0, help="seconds for latency cells")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sweep, to see that all of it runs")
    asked = parser.parse_args()
    chapter = learned(asked.temperature, asked.budget)
    models = family_models(family_folder())
    device = chapter.inputs.device
    regime = decoding_regime(chapter.inputs.verify.regime, device.kind)
    family = load_family(models, dtype=DTYPE, device=torch_device(device), regime=regime)
    swept = requests(calibration_prompts()[:PROMPTS], asked.temperature, seed=0)
    fresh = requests(evaluation_prompts(), asked.temperature, seed=1000)
    ways = configurations(list(models.drafters))[:: 10 if asked.quick else 1]
    rows = [one_cell(cell, ways, chapter.inputs, family, swept, fresh, asked.races) for cell in chapter.cells]
    sweep_s = sum(row["sweep_s"] for row in rows)
    checks = verdicts(rows, chapter.profile_s / sweep_s, len(ways))
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "regret",
        "device": chapter.inputs.device.label,
        "temperature": asked.temperature,
        "configurations": len(ways),
        "profile_s": chapter.profile_s,
        "plan_s": chapter.plan_s,
        "sweep_s": sweep_s,
        "profiled": profiled(chapter.inputs.verify),
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200"],
    }
    print_result(result)


def configurations(drafters: list[str]) -> list[Way]:
    """Return the list of the sweep: what a careful engineer tries by hand."""
    textual: list[TreePolicy] = [
        LookupPolicy(length=length, max_ngram=longest, min_ngram=shortest)
        for length in (2, 3, 4, 6, 8, 10, 16)
        for longest, shortest in ((2, 1), (3, 1), (3, 2))
    ]
    textual += [SuffixPolicy(length=length, occurrence=which) for length in (8, 16, 40) for which in OCCURRENCES]
    textual += [SuffixTreePolicy(nodes=nodes, factor=factor) for nodes in (6, 8, 16, 25) for factor in (1, 4)]
    modelled: list[TreePolicy] = [
        *(ChainPolicy(length=length) for length in (1, 2, 3, 4, 5, 6, 8)),
        ConfidentChainPolicy(),
        *(
            Eagle2Policy(verify_tokens=size, depth=depth, top_k=top_k)
            for top_k in (2, 4, 10)
            for depth in (1, 3, 5)
            for size in (8, 16, 32, 60)
            if size <= top_k + depth * top_k**2 + 1
        ),
        Eagle2Policy(),
        *(TalonPolicy(nodes=nodes, gate=gate) for nodes in (16, 32, 60) for gate in (0.03, 0.1)),
    ]
    ways = [Way(policy=PlainPolicy(), drafter=None), *(Way(policy=policy, drafter=LOOKUP) for policy in textual)]
    return ways + [Way(policy=policy, drafter=drafter) for drafter in drafters for policy in modelled]


def one_cell(
    cell: PlanCell,
    ways: list[Way],
    inputs: PlanInputs,
    family: Family,
    swept: list[Request],
    fresh: list[Request],
    races: int,
) -> dict[str, Any]:
    """Sweep one batch size, then measure the best and the plan again; return what came of it."""
    place = Cell(batch=cell.batch, context=cell.context)
    padding = cell_costs(place, inputs.verify, {}, inputs.overhead).run_tokens
    ranked = raced(ways, padding, family, swept, cell.batch)
    planned = Way(policy=cell.policy, drafter=cell.drafter)
    plain = Way(policy=PlainPolicy(), drafter=None)
    finalists = dict.fromkeys([*(one.way for one in ranked[:FINALISTS]), planned, plain])
    field = [*finalists, planned]
    again = [raced(field, padding, family, fresh, cell.batch, turns=FINE_TURNS, seed=1 + n) for n in range(races)]
    over = {way: over_in_races(again, planned, way) for way in finalists if way != planned}
    best, speed = min(over, key=lambda way: over[way]), statistics.median(speed_of(run, planned) for run in again)
    row: dict[str, Any] = {
        "batch": cell.batch,
        "context": cell.context,
        "plan": planned.name,
        "ratio_to_best": over[best],
        "ratio_to_plain": over.get(plain, 1.0),
        "plan_over": {way.name: ratio for way, ratio in sorted(over.items(), key=lambda one: one[1])},
        "same_policy_ratios": [max(twins) / min(twins) for twins in (speeds_of(run, planned) for run in again)],
        "predicted_tokens_per_s": cell.prediction.tokens_per_s,
        "interval": [cell.prediction.low, cell.prediction.high],
        "measured_tokens_per_s": speed,
        "padding": padding,
        "races": [{one.way.name: one.tokens_per_s for one in run} for run in again],
        "place_of_plan_in_sweep": next((n for n, one in enumerate(ranked, 1) if one.way == planned), None),
        "sweep_s": sum(one.device_s for one in ranked),
        "sweep": [_judged(one, inputs, place) for one in ranked],
    }
    errors = [abs(one["predicted"] / one["measured"] - 1.0) for one in row["sweep"] if one["predicted"]]
    row["median_error_of_sweep"] = statistics.median(errors)
    print(
        f"batch {cell.batch}: plan {planned.name} {speed:.0f} tokens/s (predicted {cell.prediction.tokens_per_s:.0f}), "
        f"best other {best.name}, ratio {over[best]:.3f}; "
        f"{len(errors)} predictions off by {row['median_error_of_sweep']:.1%} in the median",
        flush=True,
    )
    return row


def over_in_races(races: list[list[Raced]], way: Way, other: Way) -> float:
    """Return the median over races of the ratio of two ways' tokens/s."""
    return statistics.median(speed_of(run, way) / speed_of(run, other) for run in races)


def profiled(surface: LatencySurface) -> list[dict[str, Any]]:
    """Return the points that the predictions lie on: where one is wrong, these tell what a profile saw."""
    return [
        {
            "batch": point.batch,
            "context": point.context_tokens,
            "tokens": point.tokens,
            "ms": round(point.median_ms, 4),
            "repeats": len(point.repeats_ms),
            "pace": [round(drift, 3) for drift in point.drift],
        }
        for point in surface.measurements
        if not point.failure
    ]


def verdicts(rows: list[dict[str, Any]], share: float, configurations: int) -> dict[str, bool]:
    """Return what must hold, by name."""
    checks = {
        f"at least 60 configurations swept ({configurations})": configurations >= 60,
        f"profile at most {MOST_SHARE:.0%} of the sweep's device time ({share:.3f})": share <= MOST_SHARE,
    }
    for row in rows:
        place = f"batch {row['batch']}"
        ratio, over_plain = row["ratio_to_best"], row["ratio_to_plain"]
        checks[f"{place}: plan at least {LEAST_RATIO} of the best ({ratio:.3f})"] = ratio >= LEAST_RATIO
        checks[f"{place}: plan never below plain decoding ({over_plain:.3f})"] = over_plain >= 1.0
    return checks


def _judged(one: Raced, inputs: PlanInputs, place: Cell) -> dict[str, Any]:
    """Return what was measured of a way in the sweep, and what the planner says of it."""
    try:
        predicted: float | None = price(inputs, place, one.way.policy, one.way.drafter).tokens_per_s
    except SpectuneError:
        predicted = None  # the standard recording does not hold its tree
    return {"way": one.way.name, "measured": one.tokens_per_s, "predicted": predicted}


if __name__ == "__main__":
    main()
