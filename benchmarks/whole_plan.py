"""How long a whole plan takes: three drafters, all policies, batch 1 to 32 x context 256, 1k and 4k.

Hybrids and chains that are verified from an exit are not among the policies. Records the demo family along the target's
own text, the target itself as third drafter. The surfaces are made up, since no forward of this size is timed in a
minute: memory-bound, with a tile step every 8 rows, dearer with batch and context. The last line is one JSON object;
`holds` is true where the plan took at most 60 s.

    python benchmarks/whole_plan.py [--prompts 48] [--tokens 96] [--jobs N]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.pricing.cells import cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies.naming import name_of
from spectune.profiler.device import detect
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.family import EXACT_DTYPE, identify_all, load_family
from spectune.tuning.prompts import requests_of
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import recipe_of
from spectune.tuning.recording.record import record_prompts
from spectune.tuning.recording.traces import trace_of
from spectune.tuning.request import ProfileRequest
from spectune.tuning.spread import Spread, cores_available

from result import print_result  # isort: skip

MOST_S = 60.0
BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32), (256, 1024, 4096)
TOKENS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 25, 32, 33, 40, 41, 48, 49, 56, 57, 64)
TEXTUAL = ("lookup", "suffix", "suffix-tree", "cacheback")
KINDS = ("plain", *TEXTUAL, "chain", "confident-chain", "static", "eagle2", "talon", "opt-tree", "cast", "stack")
DTYPE = "bfloat16"


def main() -> int:
    """Record, solve, and say how long the solving took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=96, help="of each continuation")
    parser.add_argument("--jobs", type=int, default=cores_available())
    asked = parser.parse_args()
    device = detect("cpu")
    inputs = recorded(asked.prompts, asked.tokens, device)
    started = time.perf_counter()
    plan = solve(
        inputs,
        cells_of(BATCHES, CONTEXTS),
        created="2026-01-01T00:00:00Z",
        spectune="benchmark",
        options=SearchOptions(),
        spread=Spread(jobs=asked.jobs, progress=lambda what, share: None),
        parts=asked.jobs,
    )
    seconds = time.perf_counter() - started
    origin = plan.provenance
    for cell in plan.cells:
        print(f"batch {cell.batch:2}, context {cell.context:4}: {name_of(cell.policy.code, cell.drafter)}")
    print(f"{origin.candidates} priced, {origin.pruned} pruned, {seconds:.1f} s in {asked.jobs} processes")
    result = {
        "benchmark": "whole plan",
        "machine": device.label,
        "positions": sum(drafter.trace.positions for drafter in inputs.drafters),
        "cells": len(plan.cells),
        "priced": origin.candidates,
        "pruned": origin.pruned,
        "jobs": asked.jobs,
        "seconds": seconds,
        "bar_s": MOST_S,
        "holds": seconds <= MOST_S,
        "not_run": [],
    }
    print_result(result)
    return 0 if result["holds"] else 1


def recorded(prompts: int, tokens: int, device: Device) -> PlanInputs:
    """Return the demo family and the target as its own drafter, recorded, with made-up surfaces."""
    models = family_models(family_folder())
    chosen = (*calibration_prompts(), *evaluation_prompts())[:prompts]
    request = ProfileRequest(models=models, prompts=chosen, max_new_tokens=tokens)
    family, identities = load_family(models, dtype=EXACT_DTYPE, device="cpu"), identify_all(models)
    asked = requests_of(request, load_tokenizer(str(models.target)))
    texts = list(zip(asked, continuations(family.target, asked), strict=True))
    itself = replace(identities.target, name="itself")
    known = replace(identities, drafters={**identities.drafters, "itself": itself})
    sources = {**family.drafters, "itself": family.target}
    traces = {
        name: trace_of(request, known, name, record_prompts(model, texts, recipe_of("standard"), name=name))
        for name, model in sources.items()
    }
    costs = {"small": 0.1, "medium": 0.2, "itself": 0.5}
    return PlanInputs(
        device=device,
        target=identities.target,
        dtype=DTYPE,
        verify=surface(identities.target, "verify", device, 1.0),
        overhead=overhead(identities.target, device),
        drafters=tuple(drafter(name, known.drafters[name], traces[name], device, costs[name]) for name in sources),
    )


def drafter(name: str, model: ModelIdentity, trace: AcceptanceTrace, device: Device, share: float) -> DrafterInputs:
    """Return a drafter whose forwards cost a share of the target's."""
    return DrafterInputs(name=name, model=model, surface=surface(model, "draft", device, share), trace=trace)


def surface(model: ModelIdentity, role: str, device: Device, share: float) -> LatencySurface:
    """Return 8 ms for the weights, tile steps of 8 rows, and a key-value part, times the share."""
    cells = tuple(
        Measurement(
            batch=batch,
            context_tokens=context,
            tokens=tokens,
            repeats_ms=(share * (8.0 + 0.25 * -(-batch * tokens // 8) + 2e-5 * batch * context),) * 3,
        )
        for batch in BATCHES
        for context in (64, *CONTEXTS)
        for tokens in TOKENS
    )
    return LatencySurface(
        device=device.fingerprint, model=model.key, role=role, regime="eager", dtype=DTYPE, measurements=cells
    )


def overhead(target: ModelIdentity, device: Device) -> RoundOverhead:
    """Return host times of the size seen on a CPU."""
    samples = tuple(
        OverheadSample(
            kind=kind,
            batch=batch,
            draft_forwards=forwards,
            nodes=nodes,
            host_ms=(0.3 + 0.2 * forwards + 0.005 * nodes * batch,) * 3,
        )
        for kind in KINDS
        for batch in BATCHES
        for forwards, nodes in ((0, 1), (0, 3)) * (kind in ("plain", *TEXTUAL)) or ((1, 2), (5, 24))
    )
    return RoundOverhead(device=device.fingerprint, target=target.key, dtype=DTYPE, samples=samples)


if __name__ == "__main__":
    sys.exit(main())
