"""The record of one round: what was drafted and accepted, what went wrong, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from ..batch.faults import Fault
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..sampling.acceptance import Accepted, Gates


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """The record of one round; row i of each list is the i-th sequence of the batch before the round.

    A round that ran ahead of the host (see `backends/rounds_ahead.py`) began before its step did. The device's own
    clock times its draft and forward, cut to the step's duration. Treat it as read-only: it is not frozen because
    setting so many frozen fields takes the host twice as long.
    """

    setup: StepConfig  # that it ran by
    instead_of: StepConfig | None = None  # that was asked for, where nobody drafts by it: it ran plainly
    context: int  # most cached tokens of any sequence, before the round
    sequences: list[int]  # index of each sequence
    kept: list[int]  # tokens emitted per sequence
    verify_tokens: int  # tokens per sequence fed to the target, padding included
    widths: tuple[int, ...]  # draft nodes per sequence of each drafter forward, the root's own first
    uncached: int  # most tokens of any sequence committed since the last draft, which the first of them reads
    finished: list[Sequence]
    joined: tuple[int, ...] = ()  # index of each sequence that has joined the batch since the round before
    left: int = 0  # sequences that have left the batch since the round before, finished or not
    temperature: float | None = 0.0  # of all sequences; None where they differ, or other settings matter too
    levels: tuple[int, ...] = ()  # of a stack, which of its models ran each forward, 0 being next to the target
    faults: tuple[Fault, ...] = ()  # what went wrong; the output is right all the same
    lossy: tuple[int, ...] = ()  # of a lossy round, tokens per sequence among the kept that are not the target's own
    gates: tuple[Gates, ...] = ()  # of a lossy round, what its rule met along each sequence's chain
    is_ahead: bool = False  # whether a device ran it ahead of the host
    is_behind: bool = False  # whether its time may hold the reading of a prompt, by a device before it or its drafter
    draft_ms: float = 0.0  # drafting, the growing of trees included; what is left of it where it began a round before
    verify_ms: float = 0.0  # the target's forward, with the drawing behind it on a GPU or where one call does both
    round_ms: float = 0.0  # everything, by the host's clock: from the beginning of the step to its end


@dataclass(slots=True, kw_only=True)
class RoundResult:
    """What a round has accepted, before its tokens are committed."""

    accepted: Accepted
    num_tokens: int  # per sequence, to the target
    widths: tuple[int, ...] = ()  # of the draft, as a `DraftBatch` has them
    levels: tuple[int, ...] = ()
    uncached: int = 0  # tokens that the drafter had to read first
    is_ahead: bool = False  # of the host
    draft_ms: float = 0.0
    verify_ms: float = 0.0
