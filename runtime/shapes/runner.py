"""Which runner times a model in a role and a regime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import MeasurementError
from ...planner.strategies.base import made
from ...profiler.protocols import ShapeRunner
from ...profiler.records.role import RESUME, require_role
from ..batch.faults import is_out_of_memory
from ..batch.sequence import Request, Sequence
from ..drafters.model import ModelDrafter
from ..models.exit import ExitModel
from ..models.forward import CausalModel, ForwardInput
from ..models.layout import PREFILL_TOKENS, lay_out_text
from ..models.lean import LeanModel
from ..models.regime import in_regime
from .forwards import ForwardShapes, ResumedShapes, Room, ShapeCaches, tree_layer


def runner_of(
    model: CausalModel,
    role: str,
    regime: str = "eager",
    *,
    identity: str,  # ModelIdentity.key of the model, of the head for "head"
    slots: int,  # largest batch; prefill needs one slot whatever the batch
    capacity: int,  # cache positions per sequence, at least `room_of` every shape
    dtype: str | None = None,  # format of the weights; None: the computation's, bfloat16 for 4 bits
) -> ShapeRunner:
    """Return what runs a model's forwards in a role.

    The model is the target for "verify", "exit:K" and "prefill", a drafter for "draft" and "loop:D", an `EagleHead` for
    "head", an `ExitModel` for "resume"; loaded, or wrapped by `in_regime`: roles that share a wrapper share its graphs.

    Raises:
        MeasurementError: the role or regime is unknown, or this model cannot run so.
        ModelError: it has fewer layers than the exit.
        DeviceError: CUDA graphs for a model that is not on a GPU.
    """
    require_role(role)
    kind, _, number = role.partition(":")
    dtype = dtype or str(model.dtype).removeprefix("torch.")
    if kind == RESUME:
        own = _resumable(model, regime)
        return ResumedShapes(own, identity=identity, dtype=dtype, slots=slots, capacity=capacity)
    running = in_regime(_exit(model, int(number)) if kind == "exit" else model, regime)
    if kind == "prefill":
        return PrefillShapes(running, identity=identity, dtype=dtype, capacity=capacity)
    if kind == "loop":
        return LoopShapes(running, identity=identity, dtype=dtype, depth=int(number), slots=slots, capacity=capacity)
    return ForwardShapes(running, identity=identity, dtype=dtype, role=role, slots=slots, capacity=capacity)


def room_of(role: str, context_tokens: int, tokens: int) -> int:
    """Return the cache positions per sequence that a shape needs in a role; MeasurementError where that is unknown."""
    require_role(role)
    kind, _, number = role.partition(":")
    if kind in ("verify", "prefill", RESUME):
        return context_tokens + tokens
    if kind == "loop":
        return context_tokens + 1 + (int(number) - 1) * tokens
    return context_tokens + tree_layer(tokens).room


def _resumable(model: CausalModel, regime: str) -> ExitModel:
    if not isinstance(model, ExitModel) or regime != "eager":
        raise MeasurementError(
            f"a verification resumes from an exit's states only where both run as eager, got {type(model).__name__} as "
            f"{regime}; leave the role out"
        )
    return model


def _exit(model: CausalModel, layers: int) -> LeanModel:
    if not isinstance(model, LeanModel):
        raise MeasurementError(
            f"an early exit needs the lean forward of the Llama family as it was loaded, got {type(model).__name__}; "
            "leave the role out"
        )
    return model.prefix(layers)


class LoopShapes:
    """A drafter that draws trees of `depth` layers: the root's forward, then depth - 1 forwards of one width.

    The tree is EAGLE-2's beam, cut to its candidates' best 1 + depth * width; a width of 1 is a chain. It grows where
    it does in every round: see `ModelDrafter`.
    """

    def __init__(self, model: CausalModel, *, identity: str, dtype: str, depth: int, slots: int, capacity: int) -> None:
        """Try to allocate the drafter's cache, and let it read a random text that fills it."""
        self.identity, self.dtype, self.role = identity, dtype, f"loop:{depth}"
        self.regime, self.attention = model.regime, model.attention
        self._model, self._depth = model, depth
        self._room = Room(slots=slots, capacity=capacity, longest_context=model.longest_context)
        longest = min(capacity, model.longest_context)
        self._text = tuple(np.random.default_rng(0).integers(0, model.vocabulary, longest).tolist())
        self._whole: ModelDrafter | None = None
        try:
            self._whole = self._reading(slots, capacity)
        except Exception as error:
            if not is_out_of_memory(error):
                raise

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that drafts one tree after a context and its newest token, which is not read yet.

        MeasurementError where the trees do not fit into the cache or the model's positions; Exception where there is no
        memory for a cache of that size.
        """
        columns = context_tokens + 1 + (self._depth - 1) * tokens
        self._room.require(batch=batch, columns=columns, place=context_tokens)
        policy = made("eagle2", verify_tokens=1 + self._depth * tokens, depth=self._depth - 1, top_k=tokens)
        request = Request(prompt=self._text[: context_tokens + 1], max_new_tokens=1)
        sequences = [Sequence(request, 0)] * batch  # drafting reads them only
        drafter = self._whole or self._reading(batch, columns)

        def run() -> None:
            drafter.rewind([context_tokens] * batch)
            drafter.draft(sequences, policy)

        return run

    def _reading(self, slots: int, capacity: int) -> ModelDrafter:
        """Return a drafter whose slots hold as much of the text as fits."""
        drafter = ModelDrafter(self._model, slots=slots, capacity=capacity)
        text = self._text[:capacity]
        drafter.read_prefixes(text, [len(text)] * slots)
        return drafter


class PrefillShapes:
    """A model that reads `batch` prompts one after the other, each in pieces of at most `PREFILL_TOKENS`."""

    role = "prefill"

    def __init__(self, model: CausalModel, *, identity: str, dtype: str, capacity: int) -> None:
        self.identity, self.dtype = identity, dtype
        self.regime, self.attention = model.regime, model.attention
        self._model = model
        self._caches = ShapeCaches(model, slots=1, capacity=capacity)
        self._room = Room(slots=1, capacity=capacity, longest_context=model.longest_context)

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that reads the next `tokens` tokens of `batch` prompts after a context, 0 for whole prompts.

        MeasurementError where the prompt does not fit into the cache or the model's positions; Exception where there is
        no memory for a cache of that size.
        """
        end = context_tokens + tokens
        self._room.require(batch=1, columns=end, place=end - 1)
        cache = self._caches.holding(1, end)
        starts = range(context_tokens, end, PREFILL_TOKENS)
        steps = [self._step(start, min(PREFILL_TOKENS, end - start)) for start in starts]

        def run() -> None:
            for _ in range(batch):
                for step in steps:
                    self._model.forward(step, cache)

        return run

    def _step(self, start: int, count: int) -> ForwardInput:
        tokens = np.random.default_rng(start).integers(0, self._model.vocabulary, count).tolist()
        return lay_out_text(self._model, tokens, start, takes_last=True)
