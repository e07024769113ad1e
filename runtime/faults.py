"""What may go wrong beside the target: a drafter's fault costs drafts, never the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..errors import ModelError
from ..planner.growth.draft import DraftBatch
from .reason import reason_of as reason_of  # what this module is asked for besides

MOST_FAULTS = 3  # of one drafter in a row, after which it is not asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong in a round."""

    drafter: str | None  # None where the target's own verification did not fit into memory
    reason: str


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed: torch on a CPU says so in a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def require_sound(draft: DraftBatch, batch: int, vocabulary: int) -> None:
    """Raise ModelError unless a draft is a tree of known tokens for every sequence of the batch."""
    shape = draft.tokens.shape  # that of parents and depths, too: see DraftBatch
    if shape[0] != batch:
        raise ModelError(f"a draft for {batch} sequences has {shape[0]} trees; repair the drafter")
    if draft.sizes.min() < 1 or draft.sizes.max() > shape[1]:
        raise ModelError(f"a draft of {shape[1]} nodes says that it has {draft.sizes.tolist()}; repair the drafter")
    places = np.arange(shape[1])
    nodes, before = places[1:], places[:-1]
    parents, tokens, depths = draft.parents[:, 1:], draft.tokens[:, 1:], draft.depths
    is_chain = bool((parents == before).all())
    if not is_chain and ((parents < 0).any() or (parents >= nodes).any()):
        raise ModelError("a draft has a node before its parent; repair the drafter")
    is_foreign = (tokens < 0) | (tokens >= vocabulary)
    if is_foreign.any() and (is_foreign & (nodes < draft.sizes[:, None])).any():
        raise ModelError(f"a draft has tokens outside the target's vocabulary of {vocabulary}; repair the drafter")
    above = depths[:, :-1] if is_chain else np.take_along_axis(depths, parents, axis=1)
    if (depths[:, 1:] != above + 1).any():
        raise ModelError("a draft has a node that is not one deeper than its parent; repair the drafter")
