"""Traces of what an engine's drafter would draft along the target's own texts."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.engines.measured import MeasuredEngine
from spectune.engines.setting import EngineDrafter
from spectune.planner.records.recording import Text
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.tuning.engines.trace import prompt_trace


def followed(engine: MeasuredEngine, drafter: EngineDrafter, texts: Sequence[Text]) -> AcceptanceTrace:
    """Return a drafter's trace along texts."""
    told = engine.next_tokens(drafter, texts)
    return AcceptanceTrace(
        target="target",
        drafter=drafter.name,
        drafter_name=drafter.name,
        workload="w",
        temperature=0.0,
        seed=0,
        children=1,
        prefix_exact=True,
        prompts=tuple(prompt_trace(text, own) for text, own in zip(texts, told, strict=True)),
    )
