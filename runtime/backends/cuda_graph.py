"""Rounds as CUDA graphs: one launch forwards and draws, and rounds run ahead of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..batch.faults import Fault
from ..batch.stopwatch import VERIFIED, Stopwatch
from ..models.forward import CausalModel
from ..models.graphed import GraphedModel
from ..models.kv_cache import KeyValueCache
from ..sampling.acceptance import Accepted, accepted_of
from ..sampling.captured_sampler import TreeSamplers
from .base import VerifyCall
from .names import Name
from .rounds_ahead import RoundsAhead
from .torch import TorchBackend


class CudaGraphBackend(TorchBackend):
    """Replays what was captured for a shape; a lossy round, or one with a penalty, draws as torch does."""

    name: ClassVar[Name] = "cuda_graph"

    def __init__(self, target: CausalModel, cache: KeyValueCache, watch: Stopwatch) -> None:
        """Use a target whose forwards are captured."""
        super().__init__(target, cache, watch)
        assert isinstance(target, GraphedModel), "chosen for a captured target alone"
        self._graphs, self._samplers = target, TreeSamplers(target.device)

    def verify(self, call: VerifyCall) -> Accepted:
        """Forward and draw by one launch, and accept."""
        if not call.needs_logits_alone:
            return super().verify(call)
        draft, num_tokens = call.draft, call.trees.num_tokens
        sampler = self._samplers.of(call.requests, draft, num_tokens, call.depth)
        tokens = self._graphs.best(call.inputs, self._cache, sampler)
        self._watch.mark(VERIFIED)
        return accepted_of(tokens, draft)

    def rounds_ahead(self, seen_in: Callable[[int], int] | None, faults: list[Fault]) -> RoundsAhead | None:
        """Return rounds that run one ahead of the host."""
        assert seen_in is not None, "a captured forward has a number of positions in sight"
        return RoundsAhead(self._graphs, self._cache, seen_in=seen_in, faults=faults)
