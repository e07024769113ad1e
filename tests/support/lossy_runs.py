"""Lossy runs made by hand for the made-up language, and inputs they fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from spectune.planner.inputs import PlanInputs
from spectune.planner.kernels.slots import NOBODY
from spectune.planner.lossy.quality import Quality
from spectune.planner.lossy.run import LossyRun
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.pad_rule import PadRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace

from .synthetic import TARGET, Language, SkilledDrafter, every_node, inputs, model, record, texts

LENGTH = 4
WAY = FlyPolicy(draft=ChainPolicy(length=LENGTH), rule=FlyRule(threshold=0.2, window=2))
JUDGED = PadPolicy(draft=ChainPolicy(length=LENGTH), rule=PadRule(threshold=0.4), classifier=model("pivots"))
LOSSY: dict[str, FlyPolicy | PadPolicy] = {WAY.kind: WAY, JUDGED.kind: JUDGED}
QUALITY = Quality(
    measure="accuracy",
    prompts=100,
    target=0.9,
    lossy=0.88,
    loss=0.02,
    low=-0.01,
    high=0.05,
    same_texts=0.5,
    lossy_tokens=0.1,
)


@cache
def trace() -> AcceptanceTrace:
    """Return the recording of a middling drafter."""
    language = Language(3)
    return record(SkilledDrafter(language, 0.5), texts(language, 6, lambda text: 20), every_node(2, 3))


def made_inputs() -> PlanInputs:
    """Return the inputs without anything lossy."""
    return inputs(trace())


def made_run(*, kept: int = LENGTH + 1, batch: int = 1, rounds: int = 60) -> LossyRun:
    """Return a run whose every round keeps so many tokens."""
    count = len(trace().prompts)
    return LossyRun(
        target=TARGET.key,
        dtype="float32",
        workload="made up",
        temperature=0.0,
        seed=0,
        max_new_tokens=20,
        batch=batch,
        drafters=(("small", model("small").key),),
        drafter="small",
        policy=WAY,
        quality=QUALITY,
        prompts=tuple(prompt.prompt for prompt in trace().prompts),
        contexts=np.full(rounds, 10, dtype=np.int32),
        nodes=np.full(rounds, LENGTH + 1, dtype=np.int32),
        catch_up=np.full(rounds, kept, dtype=np.int32),
        widths=np.ones((rounds, LENGTH), dtype=np.int32),
        levels=np.full((rounds, LENGTH), NOBODY, dtype=np.int32),
        texts=np.arange(rounds * batch, dtype=np.int32).reshape(rounds, batch) % count,
        kept=np.full((rounds, batch), kept, dtype=np.int32),
        matched=80,
        mismatched=20,
        entropies=np.array([0.1, 0.3, 0.5, 0.7], dtype=np.float32),
    )


def of_loss(high: float, **changes: object) -> LossyRun:
    """Return a run whose loss may be as much."""
    quality = replace(QUALITY, loss=min(QUALITY.loss, high), low=min(QUALITY.low, high), high=high)
    return replace(made_run(), quality=quality, **changes)  # type: ignore[arg-type]
