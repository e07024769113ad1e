"""States from which a verification continues: an exit's layers, which are the target's own first ones, left them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from ...errors import ModelError
from ...planner.records.draft import DraftBatch
from ...planner.strategies.naming import name_of
from ..batch.faults import Fault, is_out_of_memory, reason_of
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..drafters.base import Drafter
from ..models.forward import CausalModel, LeftStates, Resuming


class ExitStates:
    """What drafters leave to a target; a fault where it is wrong, and the target reads the drafts by itself."""

    def __init__(self, target: CausalModel, drafters: Mapping[str, Drafter], faults: list[Fault]) -> None:
        self._target, self._drafters, self._faults = target, drafters, faults

    def left(self, batch: Many[Sequence], draft: DraftBatch, fed: int, config: StepConfig) -> LeftStates | None:
        """Return the states from which a verification continues; None where all layers read all nodes."""
        if config.policy.kind != "resumed" or not draft.widths:
            return None
        try:
            return states_left(self._target, self._drafters[config.drafter or ""], batch, draft, fed)
        except Exception as error:  # whatever is wrong with an exit, the target reads its drafts by itself
            reason = f"{name_of(config.policy.code, config.drafter)} is verified by all layers: {reason_of(error)}"
            self._faults.append(Fault(drafter=config.drafter, reason=reason, is_memory=is_out_of_memory(error)))
        return None


def states_left(
    target: CausalModel, drafter: Drafter, sequences: Many[Sequence], draft: DraftBatch, fed: int
) -> LeftStates:
    """Return the states from which a verification continues; ModelError unless the drafter is this target's exit."""
    if not isinstance(target, Resuming):
        raise ModelError(f"a target that runs as {target.regime} reads by all its layers; run it as eager")
    left = drafter.left(sequences, draft, fed)
    if left is None:
        raise ModelError("the drafter is no exit of its target; draft with one")
    if not target.can_resume(left):
        raise ModelError(
            f"the {left.layers} layers of the exit are not this target's first; draft with an exit of this target"
        )
    return left
