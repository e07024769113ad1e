"""A chain accepted by FLy's rule: LOSSY. Source: Li et al. 2025, arXiv:2511.22972."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..records.fly_rule import FlyRule
from .lossy import LossyPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class FlyPolicy(LossyPolicy):
    """Draft a chain; FLy's `rule` decides which of its tokens stay: the output is not the target's own.

    A stack of one model over "lookup" is FLy's drafter that the text accelerates.
    """

    rule: FlyRule
    kind: Literal["lossy-fly"] = "lossy-fly"

    @property
    def code(self) -> str:
        return f"LOSSY {self.draft.code} by {self.rule.label}"
