"""How forwards run: uncaptured, replayed from CUDA graphs, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...errors import MeasurementError
from ...profiler.records.role import CAPTURED
from .block import RoundHead
from .exit import ExitModel
from .forward import CausalModel, ForwardInput
from .graphed import GraphedModel
from .kv_cache import KeyValueCache
from .lean import LeanModel


def decoding_regime(priced: str, device_kind: str) -> str:
    """Return how a plan priced in a regime decodes: from CUDA graphs if it was so priced, and on a GPU."""
    return CAPTURED if priced == CAPTURED and device_kind == "cuda" else "eager"


def plain_regime(model: CausalModel) -> str:
    """Return how a model decodes without a plan: from CUDA graphs where our kernels read trees.

    One graph then serves every context. Others would need a capture every `GRAPH_STEP` tokens and for every number of
    texts; whether that pays is not measured.
    """
    return CAPTURED if model.device.type == "cuda" and getattr(model, "reads_trees", False) else "eager"


def in_regime(model: CausalModel, regime: str) -> CausalModel:
    """Return the model with its forwards run in a regime; itself where they already do.

    "eager" leaves transformers' own forwards. Exits and block drafters run uncaptured, beside captured targets too.
    MeasurementError where this model cannot run so, or the regime is not one of this process; DeviceError: CUDA graphs
    for a model that is not on a GPU.
    """
    if model.regime == regime or (regime == "eager" and model.regime == "eager-transformers"):
        return model
    runs_as_it_comes = isinstance(model, RoundHead | ExitModel)
    if regime == CAPTURED:
        return model if runs_as_it_comes else GraphedModel(model)
    if regime == "compiled" and isinstance(model, LeanModel) and not runs_as_it_comes:
        return CompiledModel(model)
    if regime == "compiled":
        raise MeasurementError(
            "only the lean forward itself can be compiled: not transformers' own, nor one whose tokens are made to fit "
            "its target's, nor what reads hidden states of that; use eager or cuda-graph"
        )
    raise MeasurementError(f"a forward of regime {model.regime} cannot run as {regime!r}; use the model as loaded")


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
