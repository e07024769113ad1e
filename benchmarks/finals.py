"""Measure a sweep's five best and the plan once more, often enough to tell two percent apart.

Two decoders of the very same policy differ by up to three percent in one race here, so that the best of six is mostly
the luckiest. Here every race has fresh decoders, the plan is entered twice, and what counts is the median over races of
the ratio within a race. The ratio of the plan's two decoders says how much of a difference is noise. The last line is
one JSON object.

    python benchmarks/finals.py REGRET.json [--repeats 6]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.policy import policy_from_json
from spectune.runtime.requests import Request
from spectune.runtime.setup import RoundSetup
from spectune.tuning.decoding import Family
from spectune.tuning.family import load_family
from spectune.tuning.race import race
from spectune.tuning.validate import entrant

from sweep import DTYPE, FINE_TURNS, requests  # isort: skip

PROMPTS = 32
LEAST_RATIO = 0.98
TWIN = "the plan again"


def main() -> None:
    """Race, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regret", type=Path, help="what regret.py wrote: its last line counts")
    parser.add_argument("--repeats", type=int, default=6, help="races per batch")
    asked = parser.parse_args()
    found = json.loads(asked.regret.read_text().splitlines()[-1])
    family = load_family(family_models(family_folder()), dtype=DTYPE, device="cpu")
    fresh = requests(evaluation_prompts()[:PROMPTS], found["temperature"], seed=1000)
    rows = [one_cell(row, family, fresh, asked.repeats) for row in found["rows"]]
    checks = {
        f"batch {row['batch']}: plan at least {LEAST_RATIO} of {other} ({ratio:.3f})": ratio >= LEAST_RATIO
        for row in rows
        for other, ratio in row["plan_over"].items()
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "finals",
        "device": found["device"],
        "temperature": found["temperature"],
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200"],
    }
    print(json.dumps(result))


def one_cell(row: dict[str, Any], family: Family, fresh: list[Request], repeats: int) -> dict[str, Any]:
    """Return the plan's ratios to every other finalist at one batch size."""
    setups = {
        name: RoundSetup(
            policy=policy_from_json(json.dumps(way["policy"])), drafter=way["drafter"], run_tokens=tuple(row["padding"])
        )
        for name, way in row["ways"].items()
    }
    setups[TWIN] = setups[row["plan"]]
    races = []
    for repeat in range(repeats):
        field = [entrant(name, setup, family, fresh, row["batch"]) for name, setup in setups.items()]
        race(field, turns=FINE_TURNS, seed=repeat)
        races.append({one.name: one.tokens_per_s for one in field})
        print(f"... batch {row['batch']}: race {repeat + 1} of {repeats}", flush=True)
    plan = [(speeds[row["plan"]] + speeds[TWIN]) / 2 for speeds in races]
    twins = [speeds[row["plan"]] / speeds[TWIN] for speeds in races]
    others = [name for name in setups if name not in (row["plan"], TWIN)]
    return {
        "batch": row["batch"],
        "plan": row["plan"],
        "measured_tokens_per_s": statistics.median(plan),
        "plan_over": {
            name: statistics.median(own / speeds[name] for own, speeds in zip(plan, races, strict=True))
            for name in others
        },
        "same_policy_ratios": twins,
        "races": races,
    }


if __name__ == "__main__":
    main()
