"""Lossy decoding on a task whose answers can be checked: accuracy of target, strict and lossy, with intervals.

    python benchmarks/lossy.py [--models FOLDER] [--prompts 400] [--races 2] [--practice 600] [--rollouts 8]

Two small models learn two-digit arithmetic in steps, and a pivot classifier learns from rollouts on practice problems
(minutes each on two cores, unless FOLDER holds them). All ways decode the same other problems, which nobody was trained
on, eight at a time: plainly; by a strict chain; by FLy's rule at three settings, from the published one to next to
none; by the published one with a drafter that the text accelerates; and by PAD's rule at three published thresholds and
at the one that the classifier's card recommends. Speeds are those of races in turns at batch 1, over a part of the
problems.

`holds`: strict decoding, FLy with a closed gate and PAD at threshold 0 emit the target's own tokens in every problem;
the tokens that lossy ways are said to have let be are exactly those that a plain forward of the target over the text
would not have said; and of each rule a looser setting emits more tokens a round.
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
from arithmetic_models import MAKER, prepare

from spectune.planner.lossy.quality import accuracy_loss, ends_with, share_interval
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.pad_rule import PadRule
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.identity import identify
from spectune.profiler.prompts import answers_of, read_prompts
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.sequence import Sequence as Decoded
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.prompts import encode_prompt
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.loading import load_tokenizer
from spectune.runtime.models.pivots import pivot_shape
from spectune.training.pad import train_pad
from spectune.training.pad_labels import RolloutSettings
from spectune.training.pad_request import Exercise, PadRequest
from spectune.training.run_folder import claim
from spectune.training.trainer import TrainingSettings
from spectune.tuning.family import load_family
from spectune.tuning.lossy import setup_for
from spectune.tuning.measuring.decoding import Family, names_of, room_for
from spectune.tuning.measuring.race import EngineEntrant, race
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest

from result import print_result  # isort: skip

PUBLISHED = FlyRule()
CHAIN = ChainPolicy(length=10)
COPYING = StackPolicy(drafters=("small", "lookup"), lengths=(10, 6), max_ngram=4)
PLAIN, STRICT, CLOSED = "target, plain", "strict chain", "gate closed"
FLY: dict[str, TreePolicy] = {
    PLAIN: PlainPolicy(),
    STRICT: CHAIN,
    CLOSED: FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, threshold=1e6)),
    "LOSSY published": FlyPolicy(draft=CHAIN, rule=PUBLISHED),
    "LOSSY window 3": FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, window=3)),
    "LOSSY window 1, gate open": FlyPolicy(draft=CHAIN, rule=replace(PUBLISHED, window=1, threshold=0.0)),
    "LOSSY published, copying": FlyPolicy(draft=COPYING, rule=PUBLISHED),
}
PIVOTS, SHUT, RECOMMENDED = "pivots", "PAD at threshold 0", "LOSSY PAD, recommended"
THRESHOLDS = (0.3, 0.5, 0.7)  # of the paper
OWN = (STRICT, CLOSED, SHUT)  # ways that emit the target's own tokens
FALLING = (  # ever looser
    ("LOSSY published", "LOSSY window 3", "LOSSY window 1, gate open"),
    tuple(f"LOSSY PAD {threshold}" for threshold in THRESHOLDS),
)
NEW_TOKENS, BATCH, TURNS, RACED, MARGIN = 64, 8, 8, 40, 1e-4


@dataclass(frozen=True)
class Outcome:
    """What one way decoded."""

    texts: list[tuple[int, ...]]
    lossy: list[list[int]]
    tokens_per_round: float


def ways_of(folder: Path) -> dict[str, TreePolicy]:
    """Return all ways, with PAD by the classifier of a folder."""
    classifier, shape = identify(folder / PIVOTS, PIVOTS), pivot_shape(folder / PIVOTS)
    thresholds = {SHUT: 0.0} | {f"LOSSY PAD {each}": each for each in THRESHOLDS} | {RECOMMENDED: shape.threshold}
    return FLY | {
        name: PadPolicy(draft=CHAIN, rule=PadRule(threshold=each, floor=shape.floor), classifier=classifier)
        for name, each in thresholds.items()
    }


def train_pivots(folder: Path, practice: int, rollouts: int) -> None:
    """Train the classifier unless the folder holds one; a stopped run goes on."""
    if (folder / PIVOTS / "card.json").exists():
        return
    tokenizer = load_tokenizer(str(folder / "target"))
    asked = read_prompts(folder / "practice.jsonl")[:practice]
    request = PadRequest(
        target=folder / "target",
        drafter=folder / "small",
        exercises=tuple(
            Exercise(prompt=encode_prompt(prompt, tokenizer), answer=answer)
            for prompt, answer in zip(asked, answers_of(asked), strict=True)
        ),
        files=("practice.jsonl",),
        rollouts=RolloutSettings(rollouts=rollouts),
        settings=TrainingSettings(steps=300, batch=32, sequence_tokens=1),
        max_new_tokens=NEW_TOKENS,
    )
    card = train_pad(
        request, folder / PIVOTS, progress=lambda what, share: print(f"{what} {share:.0%}", file=sys.stderr)
    )
    print(f"classifier: {card.judgement}", file=sys.stderr)


def setup_of(policy: TreePolicy) -> StepConfig:
    """Return how a way runs its rounds."""
    if isinstance(policy, FlyPolicy | PadPolicy):
        return setup_for(policy, "small")
    return StepConfig(policy=policy, drafter=None if isinstance(policy, PlainPolicy) else "small")


def decoder_of(family: Family, policy: TreePolicy, requests: Sequence[Request], batch: int = 1) -> Engine:
    """Return an empty decoder of so many slots."""
    setup = setup_of(policy)
    room = room_for(requests, [setup], batch)
    return family.decoder(always(setup), names=names_of(setup), batch=batch, capacity=room, allow_lossy=setup.is_lossy)


def decode(family: Family, policy: TreePolicy, requests: Sequence[Request]) -> Outcome:
    """Decode all requests."""
    decoder = decoder_of(family, policy, requests, BATCH)
    scheduler, rounds, kept = Scheduler(decoder), 0, 0
    states = [scheduler.add(request) for request in requests]
    while scheduler.schedule():
        done = decoder.step()
        kept += sum(done.kept)
        rounds += len(done.kept)
    sequences = sequences_of(states)
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


def speeds(
    family: Family, ways: dict[str, TreePolicy], requests: Sequence[Request], races: int
) -> dict[str, list[float]]:
    """Return tokens/s of every way in every race."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(races):
        entrants = [EngineEntrant(name, decoder_of(family, way, requests), requests, 1) for name, way in ways.items()]
        race(entrants, turns=TURNS, seed=repeat)
        for entrant in entrants:
            found[entrant.name].append(entrant.tokens_per_s)
        print(f"race {repeat + 1} of {races} is over", file=sys.stderr)
    return found


def row(way: TreePolicy, right: list[bool], own: list[bool], outcome: Outcome, rates: list[float]) -> dict[str, Any]:
    """Return the facts of one way."""
    count = len(right)
    low, high = share_interval(sum(right), count)
    loss, least, most = accuracy_loss(own, right)
    emitted = sum(map(len, outcome.texts))
    return {
        "policy": way.code,
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
    ways, tokenizer = ways_of(folder), load_tokenizer(str(models.target))
    family = load_family(models, dtype="float32", device="cpu", classifiers={PIVOTS: folder / PIVOTS})
    asked = read_prompts(folder / "prompts.jsonl")[:prompts]
    answers = answers_of(asked)
    requests = requests_of(ProfileRequest(models=models, prompts=asked, max_new_tokens=NEW_TOKENS), tokenizer)
    outcomes = {name: decode(family, policy, requests) for name, policy in ways.items()}
    right = {
        name: [
            ends_with(str(tokenizer.decode(list(text), skip_special_tokens=True)), answer)
            for text, answer in zip(outcome.texts, answers, strict=True)
        ]
        for name, outcome in outcomes.items()
    }
    rates = speeds(family, ways, requests[:RACED], races)
    rows = [
        {"way": name, **row(way, right[name], right[PLAIN], outcomes[name], rates[name])} for name, way in ways.items()
    ]
    checks = {f"{name} is the target's own": outcomes[name].texts == outcomes[PLAIN].texts for name in OWN}
    checks["lossy tokens are told"] = all(is_told_truly(family, requests, outcomes[name]) for name in ways)
    checks["looser rules emit more a round"] = all(
        sorted(falling, key=lambda name: outcomes[name].tokens_per_round) == list(falling) for falling in FALLING
    )
    card = json.loads((folder / PIVOTS / "card.json").read_text())
    told = ("candidates", "pivots", "held_out", "held_out_pivots", "auroc", "auroc_95", "threshold", "rollouts")
    facts = {"prompts": len(requests), "classifier": {name: card[name] for name in told}}
    return {**facts, "rows": rows, "checks": checks, "holds": all(checks.values())}


def main() -> None:
    """Measure, print a table, and one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--races", type=int, default=2)
    parser.add_argument("--practice", type=int, default=600, help="problems that the classifier learns from")
    parser.add_argument("--rollouts", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.models or Path(scratch)
        claim(folder, MAKER)
        prepare(folder)
        train_pivots(folder, asked.practice, asked.rollouts)
        found = measure(folder, asked.prompts, asked.races)
    print(f"{'way':28}{'accuracy, 95 %':>26}{'loss, 95 %':>28}{'a round':>9}{'lossy':>8}{'tokens/s':>10}")
    for each in found["rows"]:
        accuracy = f"{each['accuracy']:.1%} ({each['accuracy_95'][0]:.1%} to {each['accuracy_95'][1]:.1%})"
        loss = f"{each['loss']:+.1%} ({each['loss_95'][0]:+.1%} to {each['loss_95'][1]:+.1%})"
        rate = f"{each['tokens_per_round']:9.2f}{each['lossy_tokens']:8.1%}{each['tokens_per_s']:10,.0f}"
        print(f"{each['way']:28}{accuracy:>26}{loss:>28}{rate}")
    for what, is_so in found["checks"].items():
        print(f"{what}: {'yes' if is_so else 'NO'}")
    print_result({"bench": "lossy", "machine": platform.machine(), "torch": torch.__version__, **found})


if __name__ == "__main__":
    main()
