"""Forwards as CUDA graphs: captured once per shape, replayed with one launch ever after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...errors import DeviceError
from ..cache import KeyValueCache
from .arena import Arena
from .forward import CausalModel, ForwardInput
from .static_input import StaticInput

WARM_UPS = 2  # forwards before a capture: libraries set themselves up in the first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    """One forward of one shape over one cache, ready to be replayed."""

    input: StaticInput
    graph: Any  # torch.cuda.CUDAGraph, which torch leaves untyped
    logits: Tensor


class GraphedModel:
    """A model whose forwards are replayed from CUDA graphs.

    A shape is captured when it is first met, which takes a few forwards; afterwards a forward copies
    its input into place and launches one graph. All graphs share one memory pool, one memory for
    masks and one for logits: logits are valid until the next forward.

    Source: NVIDIA CUDA programming guide, "CUDA graphs"; torch.cuda.graph.
    """

    regime = "cuda-graph"

    def __init__(self, model: CausalModel) -> None:
        """Wrap a model on a GPU.

        Raises:
            DeviceError: the model is elsewhere.
        """
        if model.device.type != "cuda":
            raise DeviceError(f"CUDA graphs need a model on a GPU and this one is on {model.device}; use regime eager")
        self.dtype, self.device, self.attention = model.dtype, model.device, model.attention
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self._model = model
        self._graphs: WeakKeyDictionary[KeyValueCache, dict[tuple[int, ...], _Captured]] = WeakKeyDictionary()
        self._masks, self._logits = Arena(self.dtype, self.device), Arena(self.dtype, self.device)
        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        self._stream, self._pool = cuda.Stream(self.device), cuda.graph_pool_handle()

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's, valid until the next forward; writes the cache."""
        graphs = self._graphs.setdefault(cache, {})
        captured = graphs.get(step.signature)
        if captured is None:
            captured = graphs[step.signature] = self._capture(step, cache)
        captured.input.load(step)
        captured.graph.replay()
        return captured.logits

    def _capture(self, step: ForwardInput, cache: KeyValueCache) -> _Captured:
        """Warm up and capture on a stream of our own; the forward writes the same keys every time."""
        with torch.cuda.device(self.device):
            placed = StaticInput(step, self._masks)
            logits = self._warm_up(placed.step, cache)
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                logits.copy_(self._model.forward(placed.step, cache))
        return _Captured(input=placed, graph=graph, logits=logits)

    def _warm_up(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Run the forward a few times; return the place for its logits."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            shapes = [self._model.forward(step, cache).shape for _ in range(WARM_UPS)]
        current.wait_stream(self._stream)
        return self._logits.view(shapes[0])
