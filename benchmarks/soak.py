"""Does a decoder run for ever? No growth over 10,000 rounds, the peak the planner names, faults that change no token.

    python benchmarks/soak.py [--rounds 10000] [--device cpu] [--seed 0]

    growth   in the device's native number format: random sequences of random prompts, three in ten of which go on with
             a text that ended, join, leave and are cancelled, 1 to 8 at once, while the way of decoding changes every
             few rounds between chains, trees, copies of the text and stacks; one draft in a hundred goes wrong. Behind
             every tenth of the rounds: the process's resident memory, the bytes of all living tensors, where the caches
             lie. Before and after that every model reads as much for all sequences as it ever reads together, and a
             whole cycle of ways runs at full batch, all requests sampled, with torch's allocations counted, which is
             the peak.
    faults   fp32: every third draft goes wrong. Drafters raise, run out of memory, score with NaN, answer for another
             batch or with unknown tokens; one never works, one is missing, and the target has no memory for some trees.

Texts are judged by transformers' own forward in fp32: all of the faults' part, some of the others. Every token must be
its choice, near-ties of 1e-4 aside; bf16 rounds more coarsely, so there each must lie within 0.5 of the judge's best
score. How many are not its first choice is told.

`holds` is true where over the second half the living tensors do not grow and resident memory grows by at most
4 MiB per 10,000 rounds (a least-squares slope), caches lie where they were allocated, the allocator's
peak is within 5 % of the planner's, every fault was reported and no token is another than the target's own. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import sysconf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectune.demo.story import family_folder, family_models
from spectune.planner.memory.peak import load_of, peak_bytes, workspace_bytes
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.room import READ_TOGETHER
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.device import detect
from spectune.runtime.batch.faults import MOST_FAULTS
from spectune.runtime.batch.step_config import StepConfig, draft_room
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.loading import load_pretrained
from spectune.tests.support.allocator import count_bytes
from spectune.tuning.family import EXACT_DTYPE
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.exact import Judgement, judge

from crowd import NAN, SAMPLED, Crowd, Emitted, Flawed, NeverWorks, Prompts, ScoresNaN, ShortOfMemory  # isort: skip
from identity import PROMPT_TOKENS, WAYS, drafters_of, random_prompts  # isort: skip
from peaks import Counted, counted_family, models_of  # isort: skip
from result import print_result  # isort: skip

ROUNDS, FAULT_ROUNDS = 10_000, 600
SLOTS, NEW_TOKENS, TURN = 8, 64, 8
CHECKPOINTS = 10
RARE, OFTEN = 0.01, 0.33  # chance that a draft goes wrong
MOST_GROWTH, PEAK = 4 * 2**20, 0.05  # tolerances: bytes per 10,000 rounds, relative error
NEAR_TIES, JUDGED = {"bfloat16": 0.5, EXACT_DTYPE: 1e-4}, 150
NOBODY, BROKEN = "nobody", "broken"
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the process holds between two rounds."""

    rounds: int
    resident_bytes: int  # 0 where the system does not tell
    tensor_bytes: int
    caches: tuple[int, ...]  # where they lie


def main() -> int:
    """Run both parts; return 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started = time.monotonic()
    prompts = random_prompts(2000, np.random.default_rng(asked.seed))
    growth = grown(prompts, asked.rounds, asked.device, asked.seed)
    faults = broken(prompts, min(FAULT_ROUNDS, asked.rounds), asked.device, asked.seed)
    checks = {f"{ROUNDS:,} rounds": asked.rounds >= ROUNDS, **growth.pop("checks"), **faults.pop("checks")}
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "soak",
        "device": detect(asked.device).label,
        "torch": torch.__version__,
        "seconds": time.monotonic() - started,
        "growth": growth,
        "faults": faults,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": [] if asked.device != "cpu" else ["H200"],
    }
    print_result(result)
    return 0 if result["holds"] else 1


def grown(prompts: Prompts, rounds: int, device: str, seed: int) -> Json:
    """Decode for long and return what was held on the way."""
    dtype = detect(device).native_dtype
    have = counted_family(dtype, device)
    setups = list(WAYS.values())
    crowds: list[Crowd] = []

    def start() -> None:
        keep_every = max(1, rounds // (8 * JUDGED))
        crowds.append(crowd_of(have, setups, prompts, chance=RARE, keep_every=keep_every, seed=seed))

    built = count_bytes(start, device).left_bytes
    (crowd,) = crowds
    held = [held_after(crowd)]
    peaks = [windowed_peak(crowd, held[0], device)]
    for checkpoint in range(1, CHECKPOINTS + 1):
        crowd.run(max(0, rounds * checkpoint // CHECKPOINTS - crowd.rounds))
        held.append(held_after(crowd))
        _show(held[-1])
    peaks.append(windowed_peak(crowd, held[0], device))
    late = held[len(held) // 2 :]
    measured = sum(have.held_bytes.values()) + built + max(peaks)
    predicted = predicted_peak(have, setups, device)
    texts = crowd.emitted[-JUDGED:]
    judgement = judged(texts, device, near_tie=NEAR_TIES[dtype])
    return {
        "dtype": dtype,
        "rounds": crowd.rounds,
        "tokens": crowd.tokens,
        "requests": crowd.joined,
        "cancelled": crowd.cancelled,
        "cached_tokens": crowd.cached,
        "faults": dict(crowd.faults),
        "held": [asdict(one) for one in held],
        "resident_growth_bytes": slope(held),
        "peak_bytes": measured,
        "predicted_peak_bytes": predicted,
        "judged_tokens": sum(len(one.tokens) for one in texts),
        "not_the_judges_first": judgement.near_ties + judgement.wrong,
        "beyond_rounding": judgement.wrong,
        "checks": {
            "living tensors do not grow over the second half": late[-1].tensor_bytes <= late[0].tensor_bytes,
            f"resident memory grows by at most 4 MiB per 10,000 rounds ({slope(held) / 2**20:+.2f})": slope(held)
            <= MOST_GROWTH,
            "caches lie where they were allocated": len({one.caches for one in held}) == 1,
            f"peak within 5 % of the planner's ({predicted / measured - 1:+.1%})": abs(predicted / measured - 1)
            <= PEAK,
            f"texts are the target's own within {dtype}'s rounding": judgement.is_identical,
        },
    }


def broken(prompts: Prompts, rounds: int, device: str, seed: int) -> Json:
    """Decode in fp32 while everything fails that may, and return what was reported and what became of the texts."""
    have = counted_family(EXACT_DTYPE, device)
    target = ShortOfMemory(have.family.target)
    have = replace(have, family=replace(have.family, target=target))
    chain = ChainPolicy(length=3)
    lost = [StepConfig(policy=chain, drafter=name) for name in (NOBODY, BROKEN)]
    crowd = crowd_of(have, [*WAYS.values(), *lost], prompts, chance=OFTEN, keep_every=1, seed=seed)
    missing = 0
    while crowd.rounds < rounds:
        missing += crowd.setup.drafter == NOBODY
        target.is_armed = target.is_armed or crowd.rounds % 7 == 0
        crowd.run(1)
    flaws = sum((drafter.made for drafter in crowd.flawed.values()), start=type(crowd.faults)())
    unseen = {name: sum(drafter.made.values()) - crowd.faults[name] for name, drafter in crowd.flawed.items()}
    told = {name: unseen[name] <= drafter.made[NAN] for name, drafter in crowd.flawed.items()}
    judgement = judged(crowd.emitted, device)
    return {
        "rounds": crowd.rounds,
        "tokens": sum(len(one.tokens) for one in crowd.emitted),
        "made": {**flaws, "missing drafter": missing, "no memory for a tree": target.failed},
        "reported": dict(crowd.faults),
        "near_ties": judgement.near_ties,
        "wrong": judgement.wrong,
        "checks": {
            "beginnings of prompts were not read anew": crowd.cached > 0,
            "every kind of fault was made": len(flaws) == 5 and missing > 0 and target.failed > 0,
            "what drafters raised and wrong shapes were reported": all(told.values()),
            "scores that are no numbers were reported": sum(unseen.values()) == 0,
            "a missing drafter was reported every round": crowd.faults[NOBODY] == missing,
            "a drafter that never works was reported and left alone": crowd.faults[BROKEN] == MOST_FAULTS,
            "trees without memory were reported": crowd.faults["target"] == target.failed,
            f"{len(crowd.emitted)} texts under faults are the target's own": judgement.is_identical,
        },
    }


def crowd_of(
    have: Counted, setups: Sequence[StepConfig], prompts: Prompts, *, chance: float, keep_every: int, seed: int
) -> Crowd:
    """Return a crowd over flawed drafters of all that the setups name."""
    capacity = PROMPT_TOKENS[1] + NEW_TOKENS + draft_room(setups, SLOTS)
    target, models = have.family.target, {name: ScoresNaN(model) for name, model in have.family.drafters.items()}
    sound = drafters_of(Family(target=target, drafters=models), setups, SLOTS, capacity)
    used = {str(setup.drafter): [models[name] for name in models_of(setup) if name in models] for setup in setups}
    flawed = {
        name: Flawed(drafter, used[name], chance, np.random.default_rng((seed, place)), target.vocabulary)
        for place, (name, drafter) in enumerate(sound.items())
    }
    return Crowd(
        target,
        flawed,
        {BROKEN: NeverWorks()},
        setups,
        prompts,
        slots=SLOTS,
        capacity=capacity,
        new_tokens=NEW_TOKENS,
        turn=TURN,
        keep_every=keep_every,
        seed=seed,
    )


def predicted_peak(have: Counted, setups: Sequence[StepConfig], device: str) -> int:
    """Return the planner's peak of a decoder that runs all setups in turns.

    A drafter whose turn comes may have as many tokens to read as sequences read together; a stack's models have logits
    for them.
    """
    capacity = PROMPT_TOKENS[1] + NEW_TOKENS + draft_room(setups, SLOTS)
    drafting = [models_of(setup) for setup in setups]
    caches = sum(
        SLOTS * capacity * have.footprints[name].kv_bytes_per_token
        for setup in setups
        if isinstance(setup.policy, StackPolicy)
        for name in setup.policy.models
    )  # beside the caches that these models have as drafters by themselves
    names = dict.fromkeys(name for models in drafting for name in models)
    peaks = []
    for setup in setups:
        load = load_of(Cell(batch=SLOTS, context=PROMPT_TOKENS[1]), setup.policy, setup.run_tokens)
        fed = READ_TOGETHER + setup.policy.max_chain if isinstance(setup.policy, StackPolicy) else load.layer_tokens
        load = replace(load, capacity=capacity, unread_tokens=READ_TOGETHER, layer_tokens=fed)
        drafters = [have.footprints[name] for name in names]
        kind = torch.device(device).type
        own = workspace_bytes(detect(device))
        target = have.footprints["target"]
        peaks.append(peak_bytes(target, drafters, load, device_kind=kind, is_sampled=True, library_bytes=own))
    return max(peaks) + caches


def windowed_peak(crowd: Crowd, start: Held, device: str) -> int:
    """Return the most that was handed out beyond what was held at the start, over a cycle of ways at full batch.

    Every model reads as many tokens for all sequences as it ever reads together, and all are sampled: by chance that
    happens once in thousands of rounds, or never.
    """
    crowd.level, crowd.sampled = SLOTS, 1.0
    since = tensor_bytes() - start.tensor_bytes

    def most() -> None:
        crowd.read_together(READ_TOGETHER)
        crowd.run(crowd.cycle)

    peak = since + count_bytes(most, device).peak_bytes
    crowd.level, crowd.sampled = None, SAMPLED
    return peak


def held_after(crowd: Crowd) -> Held:
    """Return what the process holds now."""
    total = tensor_bytes()
    caches = (one for one in gc.get_objects() if type(one) is KeyValueCache)
    return Held(
        rounds=crowd.rounds,
        resident_bytes=resident_bytes(),
        tensor_bytes=total,
        caches=tuple(sorted(cache.states.data_ptr() for cache in caches)),
    )


def tensor_bytes() -> int:
    """Return the bytes of all living tensors, shared memory counted once; oneDNN's own layouts tell no address."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    storages = {one.untyped_storage() for one in tensors if one.layout == torch.strided}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def resident_bytes() -> int:
    """Return the process's resident memory; 0 where the system has no /proc."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * sysconf("SC_PAGE_SIZE") if told.exists() else 0


def slope(held: Sequence[Held]) -> float:
    """Return the growth in bytes of resident memory per 10,000 rounds over the second half of the checkpoints."""
    late = held[len(held) // 2 :]
    rounds, sizes = [one.rounds for one in late], [one.resident_bytes for one in late]
    return float(np.polyfit(rounds, sizes, 1)[0] * 10_000)


def judged(emitted: Sequence[Emitted], device: str, **tolerance: float) -> Judgement:
    """Compare texts with what transformers chooses behind each of their tokens, in fp32."""
    model = load_pretrained(str(family_models(family_folder()).target), dtype=EXACT_DTYPE, device=device)
    return judge(model, [one.request for one in emitted], [one.tokens.tolist() for one in emitted], **tolerance)


def _show(held: Held) -> None:
    print(
        f"{held.rounds:6} rounds  resident {held.resident_bytes / 2**20:8.2f} MiB  "
        f"tensors {held.tensor_bytes / 2**20:8.3f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
