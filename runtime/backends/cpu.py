"""Rounds on a CPU: a forward has ended when its call returns, and a compiled call draws behind accepted nodes alone."""

from __future__ import annotations

from typing import ClassVar

from ..batch.stopwatch import VERIFIED
from ..models.bits import bits_for_kernels
from ..sampling.acceptance import Accepted, accepted_by
from ..sampling.sampler import draws_of
from .base import Backend, VerifyCall, accepted_by_tokens
from .names import Name


class CpuBackend(Backend):
    """Draws and accepts in one call where neither a penalty nor a lossy rule needs the tokens of all nodes."""

    name: ClassVar[Name] = "cpu"

    def verify(self, call: VerifyCall) -> Accepted:
        """Forward, then draw and accept."""
        logits = self.logits(call)
        self._watch.mark(VERIFIED)
        numbers = bits_for_kernels(logits) if call.needs_logits_alone else None
        if numbers is None:
            return accepted_by_tokens(call, logits)
        return accepted_by(numbers, draws_of(call.batch), call.draft)
