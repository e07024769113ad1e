"""A training run on given texts, as if a target had written them."""

from __future__ import annotations

from pathlib import Path

from spectune.profiler.records.model import ModelIdentity
from spectune.runtime.batch.sequence import Request
from spectune.training.own_text import Ids
from spectune.training.prompts import OwnPrompts
from spectune.training.run import LearningRequest, Run

from .synthetic import TARGET


def run_of(request: LearningRequest, texts: Ids, folder: Path, target: ModelIdentity = TARGET) -> Run:
    """Return a run in a folder, whose texts have no images."""
    asked = OwnPrompts(begins=(), learned=(Request(prompt=(1,), max_new_tokens=1),) * len(texts), judged=())
    return Run(
        request=request, target=target, asked=asked, texts=texts, partial=folder, kept=folder, began=0.0,
        progress=lambda *_: None,
    )  # fmt: skip
