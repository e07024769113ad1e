"""Forwards as CUDA graphs: captured once per shape, then replayed with one launch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from ...errors import DeviceError
from ...planner.kernels.arrays import Ints
from ...profiler.records.role import CAPTURED
from ..batch.faults import MOST_FAULTS, is_out_of_memory
from ..batch.transfer import Landing, host_memory, wait_for
from .capturing import capturing
from .forward import TREE_ATTENTION, CausalModel, ForwardInput
from .kernels.best_tokens import best_of
from .kernels.jitted import launch_errors
from .kv_cache import KeyValueCache
from .layout import Arena
from .static_input import StaticInput

LOGITS, BEST = range(2)  # what is wanted of a forward
WARM_UPS = 2  # forwards before a capture: libraries set themselves up in the first
UNCAPTURED = "work cannot be captured as a CUDA graph and runs slowly, as it comes; profile with --regime eager"


class Replayed(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Repeat the work in the same memory."""


class Drawing(Protocol):
    """How captured work draws tokens; a part of the key of a graph."""

    def behind(self, logits: Tensor, step: ForwardInput) -> Tensor:
        """Return the drawn token (batch, n) after every node, from a forward's logits and input."""


class GraphRecorder(Protocol):
    """Captures work."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        """Return the captured work of a run, and the tensor it returned, which every replay overwrites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapturedForward:
    input: StaticInput
    graph: Replayed
    result: Tensor  # logits, or what is best on the host


class _Uncaptured:
    """Work that could not be captured, and runs at each replay; the first run makes the result's memory."""

    def __init__(self, run: Callable[[], Tensor], device: torch.device) -> None:
        self._run, self._device = run, device
        with self._here():
            self.found = run()

    def replay(self) -> None:
        """Run it; a result in other memory is copied, one sent to the host arrives where it did before."""
        with self._here():
            found = self._run()
            if found.data_ptr() != self.found.data_ptr():
                self.found.copy_(found)

    def _here(self) -> AbstractContextManager[object]:
        """Make the work's GPU the current one, as our kernels launch there."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


class GraphedModel:
    """A model whose forwards are replayed from CUDA graphs.

    A shape with a tree mask is captured when it is first met, which takes a few forwards. Others run uncaptured,
    prompts above all: hardly two have one shape. So does what cannot be captured, with one warning; after `MOST_FAULTS`
    such shapes in a row no other is tried. All graphs share one memory pool, and one for logits, valid until the next
    forward.

    Source: NVIDIA CUDA programming guide, "CUDA graphs"; torch.cuda.graph.
    """

    regime = CAPTURED

    def __init__(self, model: CausalModel, recorder: GraphRecorder | None = None) -> None:
        """Wrap a model; `recorder` captures its work, by default on its GPU. DeviceError where it is elsewhere."""
        if recorder is None and model.device.type != "cuda":
            raise DeviceError(f"CUDA graphs need a model on a GPU and this one is on {model.device}; use regime eager")
        self.dtype, self.device = model.dtype, model.device
        self.attention = TREE_ATTENTION if getattr(model, "reads_trees", False) else model.attention
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self.gallery = model.gallery
        self.model = model  # whose forwards these are, run as they come
        self._graphs: WeakKeyDictionary[KeyValueCache, dict[tuple[object, ...], _CapturedForward]] = WeakKeyDictionary()
        self._logits = Arena(self.dtype, self.device)
        self._recorder = recorder or CudaRecorder(self.device)
        self._keeping: dict[tuple[int, ...], GraphedModel] = {}
        self._failed = 0  # captures in a row, of work that is done as it comes
        self._recorded = 0

    @property
    def recorded(self) -> int:
        """How many captures were made or tried, those of `keeping` models included."""
        return self._recorded + sum(model.recorded for model in self._keeping.values())

    def keeping(self, after: tuple[int, ...], tap: Callable[[], CausalModel]) -> GraphedModel:
        """Return the model, made by `tap`, that stores hidden states after `after` layers, in the same memory pool."""
        if after not in self._keeping:
            self._keeping[after] = GraphedModel(tap(), self._recorder)
        return self._keeping[after]

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self.model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's, valid until the next forward; writes the cache."""
        if step.tree is None:
            return self.model.forward(step, cache)
        return self._replayed(LOGITS, step, cache)

    @torch.inference_mode()
    def forward_by(self, forward: Callable[[ForwardInput], Tensor], step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Do `forward` by another function, the same for a cache until `forget`, which must not refer to the cache."""
        return forward(step) if step.tree is None else self._replayed(LOGITS, step, cache, forward)

    def forget(self, cache: KeyValueCache) -> None:
        """Drop all graphs over a cache."""
        self._graphs.pop(cache, None)

    @torch.inference_mode()
    def best(self, step: ForwardInput, cache: KeyValueCache, drawing: Drawing | None = None) -> Ints:
        """Return the best or drawn token after every node of a tree, (batch, n), on the host; writes the cache."""
        found = self._replayed(BEST, step, cache, drawing=drawing)
        wait_for(self.device)
        best: Ints = found.numpy()
        return best

    def _replayed(
        self,
        wanted: int,
        step: ForwardInput,
        cache: KeyValueCache,
        forward: Callable[[ForwardInput], Tensor] | None = None,
        drawing: Drawing | None = None,
    ) -> Tensor:
        """Run a forward from its graph, captured first where it is new; return where its result will be."""
        graphs = self._graphs.setdefault(cache, {})
        key = (wanted, forward is not None, drawing, step.packed is not None, *step.signature)
        captured = graphs.get(key)
        if captured is None:
            result = _best_on_host(drawing) if wanted == BEST else self._kept
            captured = graphs[key] = self._capture(step, cache, result, forward)
        captured.input.load(step)
        captured.graph.replay()
        return captured.result

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        """Return the graph of some work of this model and its result, which every replay overwrites.

        Where it cannot be captured, a replay runs it uncaptured; where that fails too, no capture is blamed.
        RuntimeError: memory is short (`is_out_of_memory`); the same may be captured once there is more.
        """
        self._recorded += 1
        if self._failed == MOST_FAULTS:
            again = _Uncaptured(run, self.device)
            return again, again.found
        try:
            recorded = self._recorder.record(run)
        except launch_errors() as error:
            if is_out_of_memory(error):
                raise
            again = _Uncaptured(run, self.device)
            self._failed += 1
            first_line = str(error).strip().partition("\n")[0]
            warnings.warn(f"{UNCAPTURED} ({first_line})", RuntimeWarning, stacklevel=2)
            return again, again.found
        self._failed = 0
        return recorded

    def _kept(self, logits: Tensor, _: ForwardInput) -> Tensor:
        """Return logits in the memory that all forwards share for them."""
        return self._logits.view(logits.shape).copy_(logits)

    def _capture(
        self,
        step: ForwardInput,
        cache: KeyValueCache,
        result: Callable[[Tensor, ForwardInput], Tensor],
        forward: Callable[[ForwardInput], Tensor] | None,
    ) -> _CapturedForward:
        """Capture a forward, which writes the same keys every time, and `result` of its logits."""
        placed, held = StaticInput(step, self.device), ref(cache)  # work that is kept must not keep its cache

        def run() -> Tensor:
            placed.arrive()
            own = held()
            assert own is not None, "whoever runs a forward holds its cache"
            logits = self.model.forward(placed.step, own) if forward is None else forward(placed.step)
            return result(logits, placed.step)

        graph, found = self.record(run)
        return _CapturedForward(input=placed, graph=graph, result=found)


def as_loaded(model: CausalModel) -> CausalModel:
    """Return the uncaptured model of one whose forwards may be captured."""
    return model.model if isinstance(model, GraphedModel) else model


def _best_on_host(drawing: Drawing | None) -> Callable[[Tensor, ForwardInput], Tensor]:
    """Return what copies the best or drawn token of every node to the host, always to the same place."""
    landing = Landing(host_memory)
    return lambda logits, step: landing(best_of(logits) if drawing is None else drawing.behind(logits, step))


class CudaRecorder:
    """Captures work as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._renew()

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        """Warm up and capture on a separate stream; return the graph and the run's result."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UPS):
                        run()
            finally:  # where memory is short, what was launched still writes: the next forward comes behind it
                current.wait_stream(self._stream)
            graph: Any = torch.cuda.CUDAGraph()
            try:
                with capturing(graph, self._stream, self._pool):
                    found = run()
            except launch_errors():
                self._renew()
                raise
        return graph, found

    def _renew(self) -> None:
        """Take another stream and pool: those of a failed capture may be unusable."""
        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        self._stream, self._pool = cuda.Stream(self._device), cuda.graph_pool_handle()
