"""From which answers on does a drafter pay that has to read the prompts, and does the plan's arithmetic know it?

Profiles the demo family, takes the fastest way by each of its models at batch 1 and 8, and decodes requests with
answers of several lengths by it and plainly, in interleaved turns whose whole time counts: prompts are read by the
target, and by the drafter where there is one. The speed-up over plain decoding of such requests is predicted from the
profile:

    ms of a request = read_ms(target) + read_ms(drafter) + (tokens - 1) / R        R: the speed of decoding alone

with the tokens that the answers really had, the first of which comes with the prompt, and R of texts cut to that
length. It is told as promised, and judged with the R that the same race measured, since a shared machine has another
pace every minute. Then plans are made for answers of some lengths, and race the plan for the recorded ones and plain
decoding over whole requests of prompts that nobody has seen. The middle of `--repeats` races counts. The last line is
one JSON object.

    python benchmarks/answers.py [--repeats 3] [--budget 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.prediction import pays_from
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.pricing.reading import reading_ms
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.replay.shortened import shortened
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.search.search import solve
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.records.excess import mean_over_median
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, plain_setup, setup_of
from spectune.tuning.family import load_family
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.race import race
from spectune.tuning.validate import entrant

from sweep import DTYPE, Chapter, Timed, Way, learned, profiled_prompts, requests  # isort: skip
from result import print_result  # isort: skip

BATCHES = (1, 8)
LENGTHS = (4, 12, 32, 96)  # new tokens
PLANNED = (8, 16, 48)  # new tokens that plans are made for
TRACED = 64
TRIALS = 8
BEST = 0.95  # of the best of a race, which a plan has to reach
TURNS = 4
WITHIN = 0.10  # of the predicted speed-up


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way by a model, beside plain decoding of the same cell."""

    own: Candidate
    plain: Candidate

    @property
    def name(self) -> str:
        """What it is called."""
        return name_of(self.own.policy.code, self.own.drafter)

    def of(self, inputs: PlanInputs, cell: Cell) -> Contender:
        """Return the same ways on other texts."""
        own, plain = (price(inputs, cell, one.policy, one.drafter) for one in (self.own, self.plain))
        return Contender(own=own, plain=plain)


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of every race, whose medians count")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds for latency cells")
    asked = parser.parse_args()
    read = profiled_prompts(TRACED)
    chapter = learned(0.0, asked.budget, prompts=read, batches=BATCHES)
    family = load_family(family_models(family_folder()), dtype=DTYPE, device="cpu")
    whole = requests(read, 0.0, seed=0)
    rows = []
    for cell in cells_of(BATCHES, [chapter.cells[0].context]):
        for contender in contenders(chapter.inputs, cell):
            for length in LENGTHS:
                some = [replace(one, max_new_tokens=length) for one in whole]
                short = contender.of(shortened(chapter.inputs, length), cell)
                rows.append(row_of(short, cell, some, chapter.inputs, family, asked.repeats))
                print(json.dumps(rows[-1]), flush=True)
    unseen = requests(evaluation_prompts(), 0.0, seed=1000)
    plans = [plan for length in PLANNED for plan in planned(chapter, length, unseen, family, asked.repeats)]
    checks = {
        f"{row['way']}, batch {row['batch']}, {row['new_tokens']} tokens: speed-up within {WITHIN:.0%}": within(row)
        for row in rows
    }
    for row in plans:
        name = f"batch {row['batch']}, {row['new_tokens']} tokens: the plan for them reaches {BEST} of the best"
        checks[name] = row["of_best"] >= BEST
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "answers",
        "device": chapter.inputs.device.label,
        "rows": rows,
        "plans": plans,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200"],
    }
    print_result(result)


def contenders(inputs: PlanInputs, cell: Cell) -> list[Contender]:
    """Return the fastest way by each model alone: no text, no stack."""
    (contest,) = price_all(Rehearsal(inputs), [cell], SearchOptions())
    plain = next(one for one in contest.priced if isinstance(one.policy, PlainPolicy))
    found = []
    for drafter in inputs.drafters:
        own = [one for one in contest.priced if one.drafter == drafter.name]
        alone = [one for one in own if not isinstance(one.policy, HybridPolicy | StackPolicy)]
        found.append(Contender(own=max(alone, key=lambda one: one.tokens_per_s), plain=plain))
    return found


def row_of(
    contender: Contender, cell: Cell, some: Sequence[Request], inputs: PlanInputs, family: Family, repeats: int
) -> dict[str, Any]:
    """Race a way and plain decoding over whole requests; return what was predicted and what was measured."""
    races = [raced(contender, cell, some, family, seed) for seed in range(repeats)]
    drafter = inputs.drafter(contender.own.drafter or "")
    excess = mean_over_median(inputs.verify)
    target_ms, drafter_ms = (
        sum(reading_ms(inputs.readings[key], len(one.prompt), excess) for one in some)
        for key in (inputs.target.key, drafter.model.key)
    )
    tokens = races[0][0].emitted
    decoded = tokens - len(some)

    def speedup(own: float, plain: float) -> float:
        return (target_ms + 1e3 * decoded / plain) / (target_ms + drafter_ms + 1e3 * decoded / own)

    mean_ms = drafter_ms / len(some)
    return {
        "batch": cell.batch,
        "way": contender.name,
        "new_tokens": some[0].max_new_tokens,
        "tokens_per_answer": tokens / len(some),
        "drafter_reads_ms": mean_ms,
        "pays_from": pays_from(mean_ms, contender.own.tokens_per_s, contender.plain.tokens_per_s),
        "speedup_of_decoding": contender.own.tokens_per_s / contender.plain.tokens_per_s,
        "promised_speedup": speedup(contender.own.tokens_per_s, contender.plain.tokens_per_s),
        "speedup_at_pace": statistics.median(speedup(own.tokens_per_s, plain.tokens_per_s) for own, plain in races),
        "measured_speedup": statistics.median(plain.device_s / own.device_s for own, plain in races),
        "measured_speedup_of_decoding": statistics.median(o.tokens_per_s / p.tokens_per_s for o, p in races),
    }


def raced(contender: Contender, cell: Cell, some: Sequence[Request], family: Family, seed: int) -> tuple[Timed, Timed]:
    """Return the way and plain decoding, once both have decoded everything."""
    own, plain = (
        Timed(
            Way(policy=one.policy, drafter=one.drafter),
            entrant(
                name_of(one.policy.code, one.drafter),
                StepConfig(policy=one.policy, drafter=one.drafter, run_tokens=one.run_tokens),
                family,
                some,
                cell.batch,
            ),
        )
        for one in (contender.own, contender.plain)
    )
    race([own, plain], turns=TURNS, seed=seed)
    return own, plain


def planned(
    chapter: Chapter, length: int, unseen: Sequence[Request], family: Family, repeats: int
) -> list[dict[str, Any]]:
    """Race the plan for answers of a length, that for the recorded ones, and plain decoding, at every batch."""
    some = [replace(one, max_new_tokens=length) for one in unseen]
    cells = cells_of(BATCHES, [chapter.cells[0].context])
    options = SearchOptions(trials=TRIALS, new_tokens=length)
    made = solve(chapter.inputs, cells, created="", spectune="", options=options).cells
    found = []
    for own, other in zip(made, chapter.cells, strict=True):
        setups = {"own": setup_of(own), "recorded": setup_of(other), "plain": plain_setup(own)}
        speeds: dict[str, list[float]] = {name: [] for name in setups}
        for seed in range(repeats):
            field = {
                name: Timed(Way(policy=each.policy, drafter=name), entrant(name, each, family, some, own.batch))
                for name, each in setups.items()
            }
            race(list(field.values()), turns=TURNS, seed=seed)
            for name, one in field.items():
                speeds[name].append(one.emitted / one.device_s)
        middle = {name: statistics.median(each) for name, each in speeds.items()}
        assert own.reading is not None
        promised = own.reading.of_requests(own.prediction.tokens_per_s, length)
        plainly = own.reading.of_requests(own.plain.tokens_per_s, length, is_drafted=False)
        found.append(
            {
                "batch": own.batch,
                "new_tokens": length,
                "policy": name_of(own.policy.code, own.drafter),
                "policy_for_recorded": name_of(other.policy.code, other.drafter),
                "tokens_per_s": middle,
                "of_best": middle["own"] / max(middle.values()),
                "promised_speedup": promised / plainly,
                "measured_speedup": middle["own"] / middle["plain"],
                "measured_speedup_of_recorded": middle["recorded"] / middle["plain"],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def within(row: dict[str, Any]) -> bool:
    """Whether a measured speed-up is near enough to its prediction."""
    return bool(abs(row["measured_speedup"] / row["speedup_at_pace"] - 1.0) <= WITHIN)


if __name__ == "__main__":
    main()
