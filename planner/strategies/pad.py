"""A chain accepted by PAD's rule, which asks a trained classifier: LOSSY."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...profiler.records.model import ModelIdentity
from ..records.pad_rule import PadRule
from .lossy import LossyPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PadPolicy(LossyPolicy):
    """Draft a chain, and let a pivot classifier decide which of its tokens stay: the output is not the target's own.

    Attributes:
        rule: of acceptance.
        classifier: that is asked: its name, the hash of its weights, and where they lay. Whoever runs the policy needs
            these weights; without them nothing is let be.

    Source: Ziashahabi et al. 2025, arXiv:2511.00351.
    """

    rule: PadRule
    classifier: ModelIdentity
    kind: Literal["lossy-pad"] = "lossy-pad"

    @property
    def code(self) -> str:
        return f"LOSSY {self.draft.code} by {self.rule.label}, classifier {self.classifier.name}"

    @property
    def judge(self) -> ModelIdentity:
        """The classifier."""
        return self.classifier
