"""Verifications that continue from the states of an exit: which can, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence as Many

from torch import Tensor

from ..errors import ModelError
from ..planner.records.draft import DraftBatch
from .cache import KeyValueCache
from .drafters.protocol import Drafter, LeavesStates
from .models.forward import CausalModel, ForwardInput, LeftStates, Resuming
from .requests import Sequence


def states_left(
    target: CausalModel, drafter: Drafter, sequences: Many[Sequence], draft: DraftBatch, fed: int
) -> LeftStates:
    """Return the states from which a verification continues; ModelError unless the drafter is this target's exit."""
    if not isinstance(target, Resuming):
        raise ModelError(f"a target that runs as {target.regime} reads by all its layers; run it as eager")
    left = drafter.left(sequences, draft, fed) if isinstance(drafter, LeavesStates) else None
    if left is None:
        raise ModelError("the drafter is no exit of its target; draft with one")
    if not target.can_resume(left):
        raise ModelError(
            f"the {left.layers} layers of the exit are not this target's first; draft with an exit of this target"
        )
    return left


def logits_of(target: CausalModel, step: ForwardInput, cache: KeyValueCache, left: LeftStates | None) -> Tensor:
    """Return a target's logits (batch, n, vocabulary) behind the nodes of a tree; by all its layers without `left`."""
    if left is None:
        return target.forward(step, cache)
    assert isinstance(target, Resuming), "states_left has refused every other"
    return target.resume(step, cache, left)
