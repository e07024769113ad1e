"""Records, keys and plans that tests of stores keep and find again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.visit import Visit

DEVICE = Device(kind="cpu", name="Test CPU", index=0, memory_bytes=2**33, cores=2, threads=2, isa=("avx2",))
MODEL = ModelIdentity(
    name="tiny", weights_hash="a" * 64, parameters=10, config_hash="b" * 64, tokenizer_hash="", location="/models/tiny"
)
SURFACE = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
SETUP: dict[str, Any] = {"target": "target", "workload": "chat", "temperature": 0.7}
VISIT = Visit(ordinal=0, surface=0, batch=1, context_tokens=0, tokens=1, purpose="design", round=0, spent_s=0.5, ms=1.0)
OTHER = {  # values of a key's fields that SURFACE does not have
    "device": "other",
    "model": "other",
    "role": "draft",
    "regime": "cuda-graph",
    "dtype": "bfloat16",
    "attention": "sdpa",
}


def other_surface(field: str) -> SurfaceKey:
    different: dict[str, Any] = {field: OTHER[field]}
    return replace(SURFACE, **different)


def cell(tokens: int, *repeats_ms: float) -> Measurement:
    return Measurement(batch=1, context_tokens=128, tokens=tokens, repeats_ms=repeats_ms)


def overhead(host_ms: float, dtype: str = "float32", regime: str = "") -> RoundOverhead:
    sample = OverheadSample(kind="chain", batch=1, draft_forwards=3, nodes=4, host_ms=(host_ms, host_ms + 0.1))
    return RoundOverhead(device="device", target="target", dtype=dtype, samples=(sample,), regime=regime)


def trace(drafter: str = "drafter", seed: int = 0, temperature: float = 0.7, workload: str = "chat") -> AcceptanceTrace:
    prompt = PromptTrace(
        prompt=(1, 2),
        continuation=(3, 4, 5),
        next_rank=np.array([0, 255], np.uint8),
        offsets=np.array([0, 1, 2], np.int32),
        parent=np.array([-1, -1], np.int16),
        rank=np.array([0, 0], np.uint8),
        log_probs=np.array([[-0.1, -3.0], [-1 / 3, -np.inf]], np.float32),
        hit_rank=np.array([0, 255], np.uint8),
    )
    return AcceptanceTrace(
        target="target",
        drafter=drafter,
        drafter_name=f"the {drafter}",
        workload=workload,
        temperature=temperature,
        seed=seed,
        children=2,
        prefix_exact=True,
        prompts=(prompt,),
    )


def agreement(positions: int, models: tuple[str, ...] = ("large", "small"), **along: Any) -> PairwiseAcceptance:
    rows = ((1.0, 0.4), (0.4, 1.0))
    return PairwiseAcceptance(models=models, greedy=rows, overlap=rows, positions=positions, **along)


def surface(*cells: Measurement, key: SurfaceKey = SURFACE) -> LatencySurface:
    names = {name: getattr(key, name) for name in ("device", "model", "role", "regime", "dtype", "attention")}
    return LatencySurface(**names, measurements=cells)
