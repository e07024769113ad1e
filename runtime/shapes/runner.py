"""Which runner times a model in a role and a regime."""

from __future__ import annotations

from ...errors import MeasurementError
from ...profiler.protocols import ShapeRunner
from ...profiler.records.role import RESUME, require_role
from ..models.exit import ExitModel
from ..models.forward import CausalModel
from ..models.lean import LeanModel
from ..models.regime import in_regime
from .forwards import ForwardShapes
from .loop import LoopShapes
from .piece import tree_layer
from .prefill import PrefillShapes
from .resumed import ResumedShapes


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
