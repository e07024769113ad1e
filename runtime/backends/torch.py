"""Rounds by torch's own calls on a GPU, launched one by one as they come."""

from __future__ import annotations

from typing import ClassVar

from ..batch.stopwatch import VERIFIED
from ..sampling.acceptance import Accepted
from .base import Backend, VerifyCall, accepted_by_tokens
from .names import Name


class TorchBackend(Backend):
    """Draws behind all nodes; a forward ends behind its call, and the tokens on the host tell that it has."""

    name: ClassVar[Name] = "torch"

    def verify(self, call: VerifyCall) -> Accepted:
        """Forward, draw behind every node, and accept."""
        logits = self.logits(call)
        return accepted_by_tokens(call, logits, done=lambda: self._watch.mark(VERIFIED))
