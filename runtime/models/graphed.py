"""Forwards as CUDA graphs: captured once per shape, replayed with one launch ever after."""

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
from ..cache import KeyValueCache
from ..faults import MOST_FAULTS, is_out_of_memory
from ..transfer import Landing, host_memory, wait_for
from .arena import Arena
from .capturing import capturing
from .forward import TREE_ATTENTION, CausalModel, ForwardInput
from .kernels.best_tokens import best_of
from .kernels.jitted import launch_errors
from .static_input import StaticInput

LOGITS, BEST = range(2)  # what is wanted of a forward
WARM_UPS = 2  # forwards before a capture: libraries set themselves up in the first
UNCAPTURED = "work cannot be captured as a CUDA graph and runs slowly, as it comes; profile with --regime eager"


class Replayed(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Do it again, in the same memory."""


class Drawing(Protocol):
    """How captured work draws tokens; it is a part of the key by which that is found again."""

    def behind(self, logits: Tensor, step: ForwardInput) -> Tensor:
        """Return the token (batch, n) that is drawn behind every node, told the logits of a forward and its input."""


class Recorder(Protocol):
    """Captures work."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        """Return the work of a run and the tensor it returned, which every replay writes anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    """One forward of one shape over one cache, ready to be replayed."""

    input: StaticInput
    graph: Replayed
    result: Tensor  # logits, or what is best on the host


class _Uncaptured:
    """Work that could not be captured, and is done as it comes."""

    def __init__(self, run: Callable[[], Tensor], device: torch.device) -> None:
        """Do it once, for the memory of its result."""
        self._run, self._device = run, device
        with self._here():
            self.found = run()

    def replay(self) -> None:
        """Do all of it again; a result in other memory is copied, one on its way to the host lies where it did."""
        with self._here():
            found = self._run()
            if found.data_ptr() != self.found.data_ptr():
                self.found.copy_(found)

    def _here(self) -> AbstractContextManager[object]:
        """Return what makes the work's GPU the current one, on which kernels of ours are launched."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


class GraphedModel:
    """A model whose forwards are replayed from CUDA graphs.

    A shape whose input tells by a tree what its tokens see is captured when it is first met, which takes a few
    forwards; afterwards a forward copies its input into place and launches one graph. Others, prompts above all, run
    as they come: hardly any two are of one shape. So does what cannot be captured, which is told once; after
    `MOST_FAULTS` such shapes in a row no other is tried. All graphs share one memory pool and one memory for logits,
    which are valid until the next forward.

    Source: NVIDIA CUDA programming guide, "CUDA graphs"; torch.cuda.graph.
    """

    regime = CAPTURED

    def __init__(self, model: CausalModel, recorder: Recorder | None = None) -> None:
        """Wrap a model on a GPU; `recorder` captures its work, CUDA where None.

        Raises:
            DeviceError: the model is elsewhere.
        """
        if recorder is None and model.device.type != "cuda":
            raise DeviceError(f"CUDA graphs need a model on a GPU and this one is on {model.device}; use regime eager")
        self.dtype, self.device = model.dtype, model.device
        self.attention = TREE_ATTENTION if getattr(model, "reads_trees", False) else model.attention
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self.gallery = model.gallery
        self.model = model  # whose forwards these are, run as they come
        self._graphs: WeakKeyDictionary[KeyValueCache, dict[tuple[object, ...], _Captured]] = WeakKeyDictionary()
        self._logits = Arena(self.dtype, self.device)
        self._recorder = recorder or CudaRecorder(self.device)
        self._keeping: dict[tuple[int, ...], GraphedModel] = {}
        self._failed = 0  # captures in a row, of work that is done as it comes
        self._recorded = 0

    @property
    def recorded(self) -> int:
        """How often work was captured, or tried to be; of models that keep states besides, too."""
        return self._recorded + sum(model.recorded for model in self._keeping.values())

    def keeping(self, after: tuple[int, ...], tap: Callable[[], CausalModel]) -> GraphedModel:
        """Return the model that keeps hidden states after so many layers each, captured in the same pool of memory.

        Args:
            after: layers.
            tap: makes it, of this one's model.
        """
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
        """Return the logits of another forward than the model's own, as `forward` does.

        Args:
            forward: over the cache, which it must not hold; the same one for that cache until `forget`.
            step: what it reads.
            cache: of this model.
        """
        return forward(step) if step.tree is None else self._replayed(LOGITS, step, cache, forward)

    def forget(self, cache: KeyValueCache) -> None:
        """Forget all forwards over a cache."""
        self._graphs.pop(cache, None)

    @torch.inference_mode()
    def best(self, step: ForwardInput, cache: KeyValueCache, drawing: Drawing | None = None) -> Ints:
        """Return the best token behind every node, (batch, n), on the host: one launch and one wait; writes the cache.

        They are valid until the next such forward.

        Args:
            step: one whose input tells by a tree what its tokens see.
            cache: of this model.
            drawing: how tokens are drawn instead.
        """
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
        """Run a forward from its graph, which is captured first where it is new; return where its result will be."""
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
        """Return the graph of some work of this model's and what it returned, which every replay writes anew.

        Where it cannot be captured, its replay does the work as it comes. Where it fails then, too, captures are not
        at fault, and nothing is said of them.

        Raises:
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
    ) -> _Captured:
        """Capture a forward, which writes the same keys every time, and what becomes of its logits."""
        placed, held = StaticInput(step, self.device), ref(cache)  # work that is kept must not keep its cache

        def run() -> Tensor:
            placed.arrive()
            own = held()
            assert own is not None, "whoever runs a forward holds its cache"
            logits = self.model.forward(placed.step, own) if forward is None else forward(placed.step)
            return result(logits, placed.step)

        graph, found = self.record(run)
        return _Captured(input=placed, graph=graph, result=found)


def as_loaded(model: CausalModel) -> CausalModel:
    """Return the model whose forwards run as they come, of one whose forwards may be captured."""
    return model.model if isinstance(model, GraphedModel) else model


def _best_on_host(drawing: Drawing | None) -> Callable[[Tensor, ForwardInput], Tensor]:
    """Return what brings the best token of every node to the host, or the drawn one, always to the same place."""
    landing = Landing(host_memory)
    return lambda logits, step: landing(best_of(logits) if drawing is None else drawing.behind(logits, step))


class CudaRecorder:
    """Captures work as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        """Hold nothing yet."""
        self._device = device
        self._renew()

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        """Warm up and capture on a stream of our own; return the graph and what the run returned while captured."""
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
        """Take another stream and pool: those of a capture that failed may be in no state to be used again."""
        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        self._stream, self._pool = cuda.Stream(self._device), cuda.graph_pool_handle()
