"""Faults beside the target: a drafter's fault costs drafts, never the output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ...errors import ModelError, NoRoomError
from ...planner.records.draft import DraftBatch
from ..kernels.trees import ASKEW, EARLY, FOREIGN, SOUND, flaw_of, whole
from .reason import reason_of as reason_of  # what this module is asked for besides

MOST_FAULTS = 3  # of one drafter in a row, after which it is not asked again
PATIENCE = 16  # calls, or texts of a session, before a drafter that found no memory is tried again
OUT_OF_MEMORY = ("allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
FLAWS = {
    EARLY: "a node before its parent",
    ASKEW: "a node that is not one deeper than its parent",
    FOREIGN: "tokens outside the target's vocabulary of {vocabulary}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong in a round."""

    drafter: str | None  # None where the target's own verification did not fit into memory
    reason: str
    is_last: bool = False  # the drafter is not asked again
    is_memory: bool = False  # an allocation failed


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed: torch on a CPU raises a plain RuntimeError, as CUDA's libraries do."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into a NoRoomError, which holds the block's memory until its handler ends."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise NoRoomError(f"memory has no room for {what} ({reason_of(error)}); {remedy}") from error


def require_sound(draft: DraftBatch, batch: int, vocabulary: int, most: int) -> None:
    """Raise ModelError unless a draft has a tree of at most `most` known tokens for every sequence."""
    shape = draft.tokens.shape  # that of parents and depths, too: see DraftBatch
    if shape[0] != batch:
        raise ModelError(f"a draft for {batch} sequences has {shape[0]} trees; repair the drafter")
    sizes = draft.sizes.tolist()
    if min(sizes) < 1 or max(sizes) > shape[1]:
        raise ModelError(f"a draft of {shape[1]} nodes says that it has {sizes}; repair the drafter")
    if max(sizes) > most:
        raise ModelError(f"a draft has {max(sizes)} nodes where its policy has {most} at most; repair the drafter")
    if shape[1] == 1 or draft.is_sound:
        return
    tokens, parents, depths = whole(draft.tokens), whole(draft.parents), whole(draft.depths)
    flaw = flaw_of(tokens, parents, depths, whole(draft.sizes), vocabulary)
    if flaw != SOUND:
        raise ModelError(f"a draft has {FLAWS[flaw].format(vocabulary=vocabulary)}; repair the drafter")
