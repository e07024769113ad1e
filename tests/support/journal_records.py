"""Records that a profile leaves behind on its way: timed calls, a surface, and what it finishes with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit

VISIT = Visit(
    ordinal=0,
    surface=1,
    batch=2,
    context_tokens=128,
    tokens=5,
    purpose="held-out",
    round=3,
    spent_s=0.1 + 0.2,
    ms=1 / 3,
)
FAILED = replace(VISIT, ordinal=1, purpose="design", ms=None, failure="out of memory\non 'cuda:0'")
SURFACE = LatencySurface(
    device="device",
    model="model",
    role="verify",
    regime="eager",
    dtype="float32",
    attention="sdpa",
    measurements=(
        Measurement(batch=1, context_tokens=0, tokens=1, repeats_ms=(1.0, 1 / 3), drift=(1.0, 1.1)),
        Measurement(batch=1, context_tokens=0, tokens=2, failure="out of memory"),
    ),
)
OVERHEAD = RoundOverhead(
    device="device",
    target="target",
    dtype="float32",
    samples=(OverheadSample(kind="chain", batch=1, draft_forwards=3, nodes=4, host_ms=(0.25,)),),
)
TRACE = AcceptanceTrace(
    target="target",
    drafter="drafter",
    drafter_name="small",
    workload="chat",
    temperature=0.0,
    seed=0,
    children=1,
    prefix_exact=True,
    prompts=(
        PromptTrace(
            prompt=(1,),
            continuation=(2, 3),
            next_rank=np.array([0], np.uint8),
            offsets=np.array([0, 1], np.int32),
            parent=np.array([-1], np.int16),
            rank=np.array([0], np.uint8),
            log_probs=np.array([[-0.5]], np.float32),
            hit_rank=np.array([0], np.uint8),
        ),
    ),
)
AGREEMENT = PairwiseAcceptance(
    models=("large", "small"), greedy=((1.0, 0.5), (0.5, 1.0)), overlap=((1.0, 0.5), (0.5, 1.0)), positions=2
)
