"""A chain accepted by PAD's rule, which uses a trained classifier: LOSSY."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...profiler.records.model import ModelIdentity
from ..records.pad_rule import PadRule
from .lossy import LossyPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PadPolicy(LossyPolicy):
    """Draft a chain; a pivot classifier decides which of its tokens stay: the output is not the target's own.

    The weights of `classifier` are needed to run it. Source: Ziashahabi et al. 2025, arXiv:2511.00351.
    """

    rule: PadRule
    classifier: ModelIdentity
    kind: Literal["lossy-pad"] = "lossy-pad"

    @property
    def code(self) -> str:
        return f"LOSSY {self.draft.code} by {self.rule.label}, classifier {self.classifier.name}"

    @property
    def judge(self) -> ModelIdentity:
        return self.classifier
