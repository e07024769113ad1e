"""Does the planned decoder keep what the plan promises, on this machine?

Profiles the demo family, plans on the calibration prompts, then decodes the evaluation prompts with
plain decoding, two hand-set defaults, the plan and `transformers.generate`, in interleaved turns,
several times over; medians count. Tokens per round are counted in fp32 and compared with the replay
of a trace of the same prompts. Where the target's greedy text loops, the whole is repeated at
temperature 0.8. The last line is one JSON object.

    python benchmarks/spine.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from demo_corpus import held_out_texts
from transformers import PreTrainedTokenizerFast
from variety import distinct_share

from spectune.db import open_store
from spectune.demo.contest import CHAIN, PLAIN, PLAN, TREE
from spectune.demo.prompts import evaluation_prompts
from spectune.demo.records import DemoOutcome
from spectune.demo.story import DemoSize, compare, family_folder, family_models, learn
from spectune.profiler.device import detect
from spectune.tuning.family import EXACT_DTYPE, load_family
from spectune.tuning.prompts import requests_of
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.request import ProfileRequest

from result import print_result  # isort: skip

LOOPING = 0.8  # share of the corpus's distinct 4-grams below which greedy text counts as looping
SAMPLED = 0.8  # temperature of the second part


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions, whose medians count")
    size = DemoSize(repeats=parser.parse_args().repeats, budget_s=30.0)
    shares = variety(size)
    print(f"distinct 4-grams: greedy output {shares['output']:.3f}, corpus {shares['corpus']:.3f}")
    outcome = measured(size)
    checks = verdicts(outcome)
    result = {"bench": "spine", "device": detect("cpu").label, "variety": shares, "greedy": asdict(outcome)}
    if shares["output"] < LOOPING * shares["corpus"]:
        result["sampled"] = asdict(measured(replace(size, temperature=SAMPLED, repeats=1)))
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    print_result({**result, "checks": checks, "holds": all(checks.values()), "not_run": ["H200"]})


def measured(size: DemoSize) -> DemoOutcome:
    """Return one whole demo, printed row by row."""
    started, models = time.monotonic(), family_models(family_folder())
    with tempfile.TemporaryDirectory() as folder, open_store(str(Path(folder) / "store.db")) as store:
        chapter = learn(store, models, size, _tell)
        outcome = compare(chapter, models, size, _tell, started)
    print(f"temperature {size.temperature:g}")
    for row in outcome.rows:
        predicted = "-" if row.predicted_tokens_per_s is None else f"{row.predicted_tokens_per_s:.0f}"
        print(
            f"  batch {row.batch}  {row.name:22} {row.policy or '':34} predicted {predicted:>6}  "
            f"measured {row.measured_tokens_per_s:7.0f}  per round {row.tokens_per_round}  "
            f"replayed {row.replayed_tokens_per_round}"
        )
    return outcome


def verdicts(outcome: DemoOutcome) -> dict[str, bool]:
    """Return what must hold, by name."""
    speeds = {(row.batch, row.name): row.measured_tokens_per_s for row in outcome.rows}
    checks = {"greedy output identical in fp32": outcome.greedy_identical}
    for cell in outcome.cells:
        place = f"batch {cell.batch}"
        wanted = 1.3 if cell.batch == 1 else 1.1
        checks[f"{place}: plan at least {wanted}x plain ({cell.speedup_over_plain:.3f})"] = (
            cell.speedup_over_plain >= wanted
        )
        if cell.batch == 1:
            checks[f"{place}: plan at least 1.7x generate ({cell.speedup_over_generate:.3f})"] = (
                cell.speedup_over_generate >= 1.7
            )
        checks[f"{place}: plain no slower than generate"] = cell.speedup_over_generate >= cell.speedup_over_plain
        for other in (CHAIN, TREE, PLAIN):
            ratio = speeds[cell.batch, PLAN] / speeds[cell.batch, other]
            checks[f"{place}: plan at least equal to {other} ({ratio:.3f})"] = ratio >= 1.0
        checks[f"{place}: prediction error at most 15 % ({cell.prediction_error:.3f})"] = cell.prediction_error <= 0.15
        checks[f"{place}: 90 % interval covers"] = cell.is_covered
    for row in outcome.rows:
        if row.tokens_per_round is not None and row.replayed_tokens_per_round is not None:
            gap = abs(row.tokens_per_round - row.replayed_tokens_per_round)
            checks[f"batch {row.batch}: replay equals runtime, {row.name}"] = gap < 1e-9
    return checks


def variety(size: DemoSize) -> dict[str, float]:
    """Return the share of distinct 4-grams of the target's greedy output and of held-out text as long."""
    models = family_models(family_folder())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(models.target)
    request = ProfileRequest(
        models=models,
        prompts=evaluation_prompts()[: size.evaluation_prompts],
        max_new_tokens=size.new_tokens,
    )
    target = load_family(models, dtype=EXACT_DTYPE, device="cpu").target
    outputs = continuations(target, requests_of(request, tokenizer))
    pieces: list[list[int]] = []
    for text in held_out_texts():
        ids = tokenizer(text)["input_ids"]
        pieces.extend(ids[start : start + size.new_tokens] for start in range(0, len(ids) - 128, 2048))
    chosen = np.random.default_rng(0).permutation(len(pieces))[:200]
    return {"output": distinct_share(outputs), "corpus": distinct_share(pieces[i] for i in chosen)}


_said: list[str] = []


def _tell(what: str, share: float) -> None:
    if not _said or _said[-1] != what:
        _said.append(what)
        print(f"... {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
