"""What becomes of a plan when the texts are others than those it was made for?

Profiles the demo family on greedy texts and plans for them. Greedy texts of so weak a target repeat themselves, so the
plan copies. Then two kinds of traffic are decoded, a call of some texts after the other: the planned kind, and texts
sampled at a temperature, which repeat little. Each is decoded by the plan, held to; by the plan watched against plain
decoding alone; by the plan watched against its rivals too, as `spectune.load` does by itself; and by every way that the
watch may choose, held to. All run in turns on the same prompts. Speeds are of whole calls, prompts included; `settled`
is the middle of the second half of the turns. The last line is one JSON object. It holds where, on texts that were
planned for, rivals cost at most 2 % beside watching without them, and on the others the watched plan comes within 5 %
of the best way.

    python benchmarks/shift.py [--batch 1] [--temperature 0.8] [--turns 24] [--budget 12] [--share 0.01]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spectune import load
from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.strategies.naming import name_of
from spectune.runtime.batch.step_config import StepConfig, plain_setup
from spectune.runtime.engine.generator import Generator
from spectune.runtime.watch.options import WatchOptions
from spectune.runtime.watch.watch import Watch

from sweep import learned, profiled_prompts  # isort: skip
from result import print_result  # isort: skip

NEVER = 1e-9  # a share of rounds
TRACED = 48  # prompts of the profile
CALL = 8  # prompts of a call
NEW_TOKENS = 96
HELD, PLAIN_ONLY, WATCHED = "the plan, held to", "watched against plain decoding", "watched against rivals too"
MOST_COST, LEAST_OF_BEST = 0.02, 0.95


@dataclass(slots=True)
class Entrant:
    """A way of decoding traffic, and the tokens/s of its calls."""

    name: str
    generator: Generator
    is_fixed: bool
    speeds: list[float] = field(default_factory=list)

    @property
    def settled(self) -> float:
        """Middle of the second half."""
        return statistics.median(self.speeds[len(self.speeds) // 2 :])


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the texts that nobody planned for")
    parser.add_argument("--turns", type=int, default=24, help="calls of every entrant, 8 texts for each sequence")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds for latency cells")
    parser.add_argument("--share", type=float, default=WatchOptions().rival_share, help="of time, for rivals to lose")
    asked = parser.parse_args()
    plan = learned(0.0, asked.budget, prompts=profiled_prompts(TRACED), batches=(asked.batch,)).plan
    kinds = {"planned": 0.0, "other": asked.temperature}
    found = {kind: traffic(plan, asked, temperature) for kind, temperature in kinds.items()}
    checks = verdicts(found["planned"], found["other"])
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    rows = [
        {
            "traffic": kind,
            "temperature": kinds[kind],
            "decoder": one.name,
            "tokens_per_s": round(statistics.median(one.speeds), 1),
            "settled_tokens_per_s": round(one.settled, 1),
            "events": events_of(one.generator),
        }
        for kind, entrants in found.items()
        for one in entrants
    ]
    result: dict[str, Any] = {
        "bench": "shift",
        "device": plan.device.label,
        "batch": asked.batch,
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
    }
    print_result(result)


def traffic(plan: Plan, asked: argparse.Namespace, temperature: float) -> list[Entrant]:
    """Decode texts of a temperature in every way, in turns."""
    (cell,) = plan.cells
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(plan_to_json(plan), encoding="utf-8")
        held = WatchOptions(probe_share=NEVER, rival_share=0.0)
        entrants = [
            Entrant(HELD, loaded(file, held), is_fixed=True),
            Entrant(PLAIN_ONLY, loaded(file, WatchOptions(rival_share=0.0)), is_fixed=False),
            Entrant(WATCHED, loaded(file, WatchOptions(rival_share=asked.share)), is_fixed=False),
        ]
        others = (plain_setup(cell), *entrants[-1].generator.choice.rivals_of(cell))
        for setup in others:
            file.write_text(plan_to_json(replace(plan, cells=(run_by(setup, cell),))), encoding="utf-8")
            entrants.append(Entrant(named(setup), loaded(file, held), is_fixed=True))
    prompts = [prompt.text for prompt in evaluation_prompts()]
    order = random.Random(0)
    for turn in range(asked.turns):
        texts = [
            prompts[place % len(prompts)] for place in range(turn * CALL * asked.batch, (turn + 1) * CALL * asked.batch)
        ]
        for one in order.sample(entrants, len(entrants)):
            started = time.perf_counter()
            done = one.generator.generate_batch(
                texts, slots=asked.batch, max_new_tokens=NEW_TOKENS, temperature=temperature, seed=1000 * turn
            )
            one.speeds.append(sum(len(each.tokens) for each in done) / (time.perf_counter() - started))
    print(f"temperature {temperature:g}")
    for one in entrants:
        print(f"  {one.name}: {one.settled:.0f} tokens/s settled; " + " ".join(f"{speed:.0f}" for speed in one.speeds))
        for event in events_of(one.generator):
            print(f"    {event}")
    return entrants


def loaded(file: Path, watch: WatchOptions) -> Generator:
    """Return the demo's target with a plan."""
    return load(family_models(family_folder()).target, plan=file, watch=watch)


def run_by(setup: StepConfig, cell: PlanCell) -> PlanCell:
    """Return a cell that is planned to run another of its ways; its promise is not that way's."""
    sizes = range(setup.policy.max_verify_tokens + 1)
    return replace(
        cell, policy=setup.policy, drafter=setup.drafter, run_tokens=tuple(map(setup.padded, sizes)), run_ms=()
    )


def named(setup: StepConfig) -> str:
    """Return a name for people."""
    return name_of(setup.policy.code, setup.drafter)


def events_of(generator: Generator) -> list[str]:
    """Return what a generator's watch has told."""
    return [event.message for event in generator.observer.events] if isinstance(generator.observer, Watch) else []


def verdicts(planned: Sequence[Entrant], other: Sequence[Entrant]) -> dict[str, bool]:
    """Return what is claimed, and whether it held."""
    here, there = {one.name: one for one in planned}, {one.name: one for one in other}
    pairs = zip(here[WATCHED].speeds, here[PLAIN_ONLY].speeds, strict=True)
    cost = 1.0 - statistics.median(rivals / plain for rivals, plain in pairs)
    best = max(one.settled for one in other if one.is_fixed)
    share = there[WATCHED].settled / best
    return {
        f"planned texts: rivals cost {100 * cost:.1f} % (at most {100 * MOST_COST:.0f} %)": cost <= MOST_COST,
        f"other texts: the watched plan makes {share:.2f} of the best way (at least {LEAST_OF_BEST})": share
        >= LEAST_OF_BEST,
    }


if __name__ == "__main__":
    main()
