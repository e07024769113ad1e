"""Forwards through torch.compile: one whole graph per shape, nothing left dynamic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...errors import MeasurementError
from ..cache import KeyValueCache
from .forward import ForwardInput
from .lean import LeanModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """The memory of a cache as one tensor per layer, made separate by DLPack, which the compiler writes in place.

    To write into several views of one tensor, it would copy all of it.
    """

    states: tuple[Tensor, ...]
    capacity: int


Forward = Callable[[ForwardInput, _Layers], Tensor]


class CompiledModel:
    """A lean model that compiles each shape's forward at its first use: seconds to a minute each."""

    regime = "compiled"

    def __init__(self, model: LeanModel) -> None:
        """Wrap a model, uncompiled yet; MeasurementError where its weights lie in a layout the compiler cannot read."""
        if model.device.type == "cpu" and model.dtype == torch.bfloat16:
            raise MeasurementError(
                "bfloat16 weights on a CPU lie in an order of their own, which torch.compile cannot read; "
                "compile float32, or use regime eager"
            )
        self.dtype, self.device, self.attention = model.dtype, model.device, model.attention
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self.gallery = model.gallery
        self._model = model
        self._compiled: dict[tuple[int, ...], Forward] = {}
        self._layers: WeakKeyDictionary[KeyValueCache, _Layers] = WeakKeyDictionary()

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's; MeasurementError without a compiler, or if it cannot compile this forward."""
        layers = self._layers.get(cache)
        if layers is None:
            layers = self._layers[cache] = _layers_of(cache)
        key = (*step.signature, cache.slots, cache.capacity)
        compiled = self._compiled.get(key)
        with torch.no_grad():
            return self._first(key, step, layers) if compiled is None else compiled(step, layers)

    def _first(self, key: tuple[int, ...], step: ForwardInput, layers: _Layers) -> Tensor:
        compiled: Forward = torch.compile(self._alone(), fullgraph=True, dynamic=False)
        try:
            logits = compiled(step, layers)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what the compilers raise derives from it
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise MeasurementError(
                f"torch.compile failed on {self.device}: {reason}; use regime eager, or install what it needs: "
                "a C++ compiler for a CPU, triton for a GPU"
            ) from error
        self._compiled[key] = compiled
        return logits

    def _alone(self) -> Forward:
        """Return the forward with a code object of its own: torch holds few compiled forms per code object."""

        def run(step: ForwardInput, layers: _Layers) -> Tensor:
            return self._model.compute(step, layers)

        return FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _layers_of(cache: KeyValueCache) -> _Layers:
    return _Layers(states=tuple(from_dlpack(states) for states in cache.states), capacity=cache.capacity)
