"""Lossy decoding on a task whose answers can be checked: accuracy of target, strict and lossy, with intervals.

    python benchmarks/lossy.py [--models FOLDER] [--prompts 400] [--races 2]

Two small models learn two-digit arithmetic in steps (minutes on two cores, unless FOLDER holds them). All ways decode
the same problems, which nobody was trained on, eight at a time: plainly; by a strict chain; by FLy's rule at three
settings, from the published one to next to none; and by the published one with a drafter that the text accelerates.
Speeds are those of races in turns at batch 1, over a part of the problems.

`holds`: strict decoding and FLy with a closed gate emit the target's own tokens in every problem; the tokens that lossy
ways are said to have let be are exactly those that a plain forward of the target over the text would not have said; and
a looser rule emits more tokens a round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectune.planner.fly import FlyRule
from spectune.planner.fly_policy import FlyPolicy
from spectune.planner.policy import ChainPolicy, PlainPolicy, StackPolicy, TreePolicy
from spectune.planner.quality import accuracy_loss, share_interval
from spectune.profiler.prompts import read_answers, read_prompts
from spectune.runtime.decoder import Decoder
from spectune.runtime.feed import Feed
from spectune.runtime.layout import lay_out
from spectune.runtime.models.loading import load_tokenizer
from spectune.runtime.requests import Request
from spectune.runtime.requests import Sequence as Decoded
from spectune.runtime.setup import RoundSetup, always
from spectune.training.arithmetic_models import prepare
from spectune.tuning.decoding import Family, room_for
from spectune.tuning.family import load_family
from spectune.tuning.lossy import ends_with, setup_for
from spectune.tuning.prompts import requests_of
from spectune.tuning.race import DecoderEntrant, race
from spectune.tuning.request import Models, ProfileRequest

PUBLISHED = FlyRule()
CHAIN = ChainPolicy(length=10)
COPYING = StackPolicy(drafters=("small", "lookup"), lengths=(10, 6), max_ngram=4)
PLAIN, STRICT, CLOSED = "target, plain", "strict chain", "gate closed"
WAYS: dict[str, TreePolicy] = {
    PLAIN: PlainPolicy(),
    STRICT: CHAIN,
    CLOSED: FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, threshold=1e6)),
    "LOSSY published": FlyPolicy(draft=CHAIN, rule=PUBLISHED),
    "LOSSY window 3": FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, window=3)),
    "LOSSY window 1, gate open": FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, window=1, threshold=0.0)),
    "LOSSY published, copying": FlyPolicy(draft=COPYING, rule=PUBLISHED),
}
FALLING = ("LOSSY published", "LOSSY window 3", "LOSSY window 1, gate open")  # ever looser
NEW_TOKENS, BATCH, TURNS, RACED, MARGIN = 64, 8, 8, 40, 1e-4


@dataclass(frozen=True)
class Outcome:
    """What one way decoded."""

    texts: list[tuple[int, ...]]
    lossy: list[list[int]]
    tokens_per_round: float


def setup_of(policy: TreePolicy) -> RoundSetup:
    """Return how a way runs its rounds."""
    if isinstance(policy, FlyPolicy):
        return setup_for(policy, "small")
    return RoundSetup(policy=policy, drafter=None if isinstance(policy, PlainPolicy) else "small")


def decoder_of(family: Family, policy: TreePolicy, requests: Sequence[Request], batch: int = 1) -> Decoder:
    """Return an empty decoder of so many slots."""
    setup = setup_of(policy)
    names = [] if setup.drafter is None else [setup.drafter]
    room = room_for(requests, [setup], batch)
    return family.decoder(always(setup), names=names, batch=batch, capacity=room, allow_lossy=setup.is_lossy)


def decode(family: Family, policy: TreePolicy, requests: Sequence[Request]) -> Outcome:
    """Decode all requests."""
    decoder = decoder_of(family, policy, requests, BATCH)
    feed, rounds, kept = Feed(decoder, requests), 0, 0
    while feed.refill():
        done = decoder.step()
        kept += sum(done.kept)
        rounds += len(done.kept)
    sequences = feed.sequences
    return Outcome([tuple(s.emitted) for s in sequences], [s.lossy for s in sequences], kept / rounds)


@torch.inference_mode()
def foreign(family: Family, sequence: Decoded) -> tuple[list[int], list[int]]:
    """Return the emitted places that a forward over the whole text says otherwise, and those too near a tie to tell."""
    first, tokens = len(sequence.request.prompt), np.array([sequence.tokens[:-1]], dtype=np.int64)
    count = tokens.shape[1]
    target, visible = family.target, np.tri(count, dtype=np.bool_)[None]
    step = lay_out(tokens, np.arange(count), [0], visible, dtype=target.dtype, device=target.device)
    logits = target.forward(step, target.new_cache(1, count))[0, first - 1 :].float()
    best = logits.topk(2, dim=-1)
    own = torch.tensor(sequence.emitted)
    differs = (best.indices[:, 0] != own).nonzero().flatten().tolist()
    tied = (best.values[:, 0] - best.values[:, 1] < MARGIN).nonzero().flatten().tolist()
    return differs, tied


def is_told_truly(family: Family, requests: Sequence[Request], outcome: Outcome) -> bool:
    """Return whether the tokens told as lossy are those the target would not have said, near-ties apart."""
    for request, text, lossy in zip(requests, outcome.texts, outcome.lossy, strict=True):
        sequence = Decoded(request, 0)
        sequence.tokens += text
        differs, tied = foreign(family, sequence)
        if set(differs) - set(tied) != set(lossy) - set(tied):
            return False
    return True


def speeds(family: Family, requests: Sequence[Request], races: int) -> dict[str, list[float]]:
    """Return tokens/s of every way in every race."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(races):
        entrants = [DecoderEntrant(name, decoder_of(family, WAYS[name], requests), requests, 1) for name in WAYS]
        race(entrants, turns=TURNS, seed=repeat)
        for entrant in entrants:
            found[entrant.name].append(entrant.tokens_per_s)
        print(f"race {repeat + 1} of {races} is over", file=sys.stderr)
    return found


def row(name: str, right: list[bool], own: list[bool], outcome: Outcome, rates: list[float]) -> dict[str, Any]:
    """Return the facts of one way."""
    count = len(right)
    low, high = share_interval(sum(right), count)
    loss, least, most = accuracy_loss(own, right)
    emitted = sum(map(len, outcome.texts))
    return {
        "way": name,
        "policy": WAYS[name].label,
        "accuracy": sum(right) / count,
        "accuracy_95": [low, high],
        "loss": loss,
        "loss_95": [least, most],
        "tokens_per_round": outcome.tokens_per_round,
        "lossy_tokens": sum(map(len, outcome.lossy)) / emitted,
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_by_race": rates,
    }


def measure(folder: Path, prompts: int, races: int) -> dict[str, Any]:
    """Return what was found."""
    models = Models(target=folder / "target", drafters={"small": folder / "small"})
    family, tokenizer = load_family(models, dtype="float32", device="cpu"), load_tokenizer(str(models.target))
    asked = read_prompts(folder / "prompts.jsonl")[:prompts]
    answers = read_answers(folder / "prompts.jsonl")[:prompts]
    requests = requests_of(ProfileRequest(models=models, prompts=asked, max_new_tokens=NEW_TOKENS), tokenizer)
    outcomes = {name: decode(family, policy, requests) for name, policy in WAYS.items()}
    right = {
        name: [
            ends_with(str(tokenizer.decode(list(text), skip_special_tokens=True)), answer)
            for text, answer in zip(outcome.texts, answers, strict=True)
        ]
        for name, outcome in outcomes.items()
    }
    rates = speeds(family, requests[:RACED], races)
    rows = [row(name, right[name], right[PLAIN], outcomes[name], rates[name]) for name in WAYS]
    checks = {
        "strict is the target's own": outcomes[STRICT].texts == outcomes[PLAIN].texts,
        "a closed gate is the target's own": outcomes[CLOSED].texts == outcomes[PLAIN].texts,
        "lossy tokens are told": all(is_told_truly(family, requests, outcomes[name]) for name in WAYS),
        "looser rules emit more a round": sorted(FALLING, key=lambda name: outcomes[name].tokens_per_round)
        == list(FALLING),
    }
    return {"prompts": len(requests), "rows": rows, "checks": checks, "holds": all(checks.values())}


def main() -> None:
    """Measure, print a table, and one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--races", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.models or Path(scratch)
        prepare(folder)
        found = measure(folder, asked.prompts, asked.races)
    print(f"{'way':28}{'accuracy, 95 %':>26}{'loss, 95 %':>28}{'a round':>9}{'lossy':>8}{'tokens/s':>10}")
    for each in found["rows"]:
        accuracy = f"{each['accuracy']:.1%} ({each['accuracy_95'][0]:.1%} to {each['accuracy_95'][1]:.1%})"
        loss = f"{each['loss']:+.1%} ({each['loss_95'][0]:+.1%} to {each['loss_95'][1]:+.1%})"
        rate = f"{each['tokens_per_round']:9.2f}{each['lossy_tokens']:8.1%}{each['tokens_per_s']:10,.0f}"
        print(f"{each['way']:28}{accuracy:>26}{loss:>28}{rate}")
    for what, is_so in found["checks"].items():
        print(f"{what}: {'yes' if is_so else 'NO'}")
    print(json.dumps({"bench": "lossy", "machine": platform.machine(), "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
