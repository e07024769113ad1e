"""What does sampling cost a round on a CPU, beside greedy decoding?

    python benchmarks/sampled.py [--turns 12]

Decodes the demo's prompts plainly, by chains of a drafter and by copies of the text, at batch 1 and 8: greedily, at a
temperature, and with top-p and top-k besides. All take turns in one run, some rounds each, each behind untimed ones. A
round's host time is what it takes beyond its calls of models. Then the draws behind a tree of 17 nodes are timed alone,
from random scores of a vocabulary of 128,256.

A whole round is one call where the processor multiplies bf16, so that draws count with the forward there: what sampling
costs, a round tells over a greedy one. `holds` is true where at batch 1 a plain round takes at most 1.15 of that, and
one that drafts a chain at most 1.25. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, product
from typing import Any

import torch

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.profiler.device import detect
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.lookup import LookupDrafter, chains
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.bits import bits
from spectune.runtime.sampling.acceptance import accepted_by
from spectune.runtime.sampling.sampler import draws_of
from spectune.tuning.family import load_family
from spectune.tuning.measuring.decoding import Family

from sweep import DTYPE, requests  # isort: skip
from result import print_result  # isort: skip

BATCHES, DRAFTER = (1, 8), "small"
UNTIMED, TIMED = 4, 8  # rounds of a turn
MOST_OVER_GREEDY = {"plain": 1.15, "a chain of 4": 1.25}  # at batch 1; the draws of drafts count, too
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 0.8, top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "temperature 0.8, top-k 20": {"temperature": 0.8, "top_k": 20},
}
SETUPS = {
    "plain": PLAIN,
    "a chain of 4": StepConfig(policy=ChainPolicy(length=4), drafter="model"),
    "copies of up to 16": StepConfig(policy=SuffixPolicy(length=16, min_match=1, occurrence="last"), drafter="text"),
}
VOCABULARY, NODES, REPEATS = 128_256, 17, 15
Json = dict[str, Any]


@dataclass(kw_only=True)
class Runner:
    """A decoder that is kept full, and what its timed rounds took."""

    decoder: Engine
    waiting: Iterator[Request]
    round_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def run(self, slots: int) -> None:
        """Run the rounds of a turn."""
        for place in range(UNTIMED + TIMED):
            while len(self.decoder.running) < slots:
                self.decoder.admit(next(self.waiting))
            start = time.perf_counter()
            done = self.decoder.step()
            took = 1e3 * (time.perf_counter() - start)
            if place >= UNTIMED:
                self.round_ms.append(took)
                self.host_ms.append(took - done.draft_ms - done.verify_ms)
                self.kept.append(sum(done.kept))


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="of every way of decoding")
    asked = parser.parse_args()
    family = load_family(family_models(family_folder()), dtype=DTYPE, device="cpu")
    rows = [row for batch in BATCHES for row in decoded(family, batch, asked.turns)]
    draws = [drawn(way) for way in WAYS if way != "greedy"]
    checks = verdicts(rows)
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "sampled",
        "device": detect("cpu").label,
        "rows": rows,
        "draws": draws,
        "checks": checks,
        "holds": all(checks.values()),
    }
    print_result(result)


def decoded(family: Family, batch: int, turns: int) -> list[Json]:
    """Return what rounds took in every way, each of which has its turns."""
    greedy = requests(evaluation_prompts(), 0.0, seed=0)
    longest = max(len(one.prompt) + one.max_new_tokens for one in greedy)
    running = dict[tuple[str, str], Runner]()
    for (name, setup), (way, settings) in product(SETUPS.items(), WAYS.items()):
        drafters: dict[str, Drafter] = {"text": LookupDrafter()}
        if setup.drafter == "model":
            drafters = {"model": ModelDrafter(family.drafters[DRAFTER], slots=batch, capacity=longest + NODES)}
        decoder = Engine(family.target, drafters, always(setup), slots=batch, capacity=longest + NODES)
        texts = [replace(one, **settings) for one in greedy]
        running[name, way] = Runner(decoder=decoder, waiting=cycle(texts))
    for _ in range(turns):
        for each in running.values():
            each.run(batch)
    rows = []
    for (name, way), done in running.items():
        round_ms, host_ms = statistics.median(done.round_ms), statistics.median(done.host_ms)
        row = {"batch": batch, "decoder": name, "way": way, "round_ms": round_ms, "host_ms": host_ms}
        row |= {"host_overhead": host_ms / round_ms, "tokens_per_round": statistics.fmean(done.kept)}
        row["tokens_per_s"] = 1e3 * sum(done.kept) / sum(done.round_ms)
        print(f"batch {batch}, {name}, {way}: {round_ms:.3f} ms a round, {host_ms:.3f} of it the host's", flush=True)
        rows.append(row)
    return rows


def drawn(way: str) -> Json:
    """Return what the draws behind an accepted path of a tree take, of scores of a large vocabulary."""
    scores = 2.0 * torch.randn((1, NODES, VOCABULARY), generator=torch.Generator().manual_seed(0))
    scores[:, :, 7] += 40.0  # accepted where it is drafted
    logits = scores.bfloat16()
    text = Sequence(Request(prompt=(1, 2, 3), max_new_tokens=NODES, **WAYS[way]), 0)
    tree = chains([[7, 7, *([9] * (NODES - 3))]])
    found = accepted_by(bits(logits), draws_of([text]), tree).paths[0].drawn
    ms = milliseconds(lambda: accepted_by(bits(logits), draws_of([text]), tree))
    assert len(found) == 3, "the path that is drafted is accepted"
    print(f"{way}: {len(found)} draws of {VOCABULARY} tokens take {ms:.2f} ms")
    return {"way": way, "vocabulary": VOCABULARY, "nodes": NODES, "draws": len(found), "ms": ms}


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median of some calls."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return statistics.median(found)


def verdicts(rows: list[Json]) -> dict[str, bool]:
    """Return what must hold, by name."""
    took = {(row["decoder"], row["way"]): row["round_ms"] for row in rows if row["batch"] == 1}
    checks = {}
    for (decoder, most), way in product(MOST_OVER_GREEDY.items(), WAYS):
        over = took[decoder, way] / took[decoder, "greedy"]
        if way != "greedy":
            checks[f"{decoder}, {way}: at most {most} of a greedy round ({over:.3f})"] = over <= most
    return checks


if __name__ == "__main__":
    main()
