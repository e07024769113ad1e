"""The accepted tokens of a round, and their commit to its sequences."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ..batch.faults import Fault
from ..batch.sequence import Sequence
from ..batch.step_config import RoundSetup
from ..kernels.trees import walk, whole
from ..models.forward import Draws
from ..models.kernels.host_draws import follow
from ..models.kv_cache import Kept
from .acceptance import Acceptance, accept
from .fly import Gates
from .lossy_rule import LossyRound


@dataclass(slots=True)
class Accepted:
    """The longest accepted path of every sequence's tree, not yet committed."""

    paths: list[Acceptance]
    gates: list[Gates]  # what a lossy rule met, of each sequence; empty in a lossless round

    def moves(self, batch: Many[Sequence]) -> list[Kept]:
        """Return which keys of the target's cache to move together."""
        return [
            (slot, sequence.context, path.nodes)
            for slot, (sequence, path) in enumerate(zip(batch, self.paths, strict=True))
        ]


@dataclass(slots=True, kw_only=True)
class Committed:
    """The draft of a round and how many tokens each sequence emitted."""

    widths: tuple[int, ...]  # of the draft, as a `DraftBatch` has them
    levels: tuple[int, ...]
    fed: int  # tokens per sequence, to the target
    kept: list[int]
    fresh: int = 0  # tokens that the drafter had to read first
    lossy: Many[int] = ()  # of what was kept, by a lossy round's rule
    gates: Many[Gates] = ()
    is_ahead: bool = False  # of the host
    draft_ms: float = 0.0
    verify_ms: float = 0.0


def accepted(
    batch: Many[Sequence], draft: DraftBatch, draws: Many[list[int]], loosely: LossyRound | None = None
) -> Accepted:
    """Return every sequence's path; `draws` is the target's draw behind each node, `loosely` a lossy round's rule."""
    tokens, parents, sizes = draft.tokens.tolist(), draft.parents.tolist(), draft.sizes.tolist()
    found = Accepted(paths=[], gates=[])
    for slot, sequence in enumerate(batch):
        drafted = (tokens[slot], parents[slot], sizes[slot], draws[slot])
        if loosely is None:
            found.paths.append(accept(*drafted))
            continue
        path, gates = loosely.accept(slot, *drafted, stop=sequence.request.stop)
        found.paths.append(path)
        found.gates.append(gates)
    return found


def accepted_by(scores: NDArray[Any], draws: Draws, draft: DraftBatch) -> Accepted:
    """Return what `accepted` does, drawing behind accepted nodes only; `scores` are bits, see `bits_for_kernels`."""
    batch, nodes = draft.tokens.shape
    paths = np.empty((batch, 2, nodes + 1), dtype=np.int64)
    follow(scores, whole(draft.tokens), whole(draft.parents), whole(draft.sizes), *draws, paths)
    return _accepted_along(paths)


def accepted_of(draws: Ints, draft: DraftBatch) -> Accepted:
    """Return what `accepted` does for draws (batch, at least nodes), by a compiled call."""
    batch, nodes = draft.tokens.shape
    paths = np.empty((batch, 2, nodes + 1), dtype=np.int64)
    walk(np.ascontiguousarray(draws), whole(draft.tokens), whole(draft.parents), whole(draft.sizes), paths)
    return _accepted_along(paths)


def _accepted_along(paths: Ints) -> Accepted:
    """Return paths that kernels wrote, (batch, 2, nodes + 1): length and nodes, then the tokens drawn."""
    found = [Acceptance(nodes=path[1 : path[0] + 1], drawn=drawn[: path[0]]) for path, drawn in paths.tolist()]
    return Accepted(paths=found, gates=[])


def commit_drawn(batch: Many[Sequence], widths: tuple[int, ...], drawn: Ints, fed: int) -> Committed:
    """Emit each row's first `drawn[:, 0]` tokens of the rest, (batch, any); their keys have moved already."""
    emitted = zip(batch, drawn.tolist(), strict=True)
    kept = [sequence.commit(tokens[1 : 1 + tokens[0]]) for sequence, tokens in emitted]
    return Committed(widths=widths, levels=(), fed=fed, kept=kept)


def commit(batch: Many[Sequence], draft: DraftBatch, stands: Accepted, fed: int) -> Committed:
    """Emit the accepted tokens of every sequence; return the round's counts."""
    kept = [sequence.commit(path.drawn, path.lossy) for sequence, path in zip(batch, stands.paths, strict=True)]
    if not stands.gates:
        return Committed(widths=draft.widths, levels=draft.levels, fed=fed, kept=kept)
    lossy = [sum(place < most for place in path.lossy) for path, most in zip(stands.paths, kept, strict=True)]
    return Committed(widths=draft.widths, levels=draft.levels, fed=fed, kept=kept, lossy=lossy, gates=stands.gates)


@dataclass(slots=True, kw_only=True)
class Round:
    """The record of one round; row i of each list is the i-th sequence of the batch before the round.

    A round that ran ahead of the host (see `ahead/`) began before its step did. The device's own clock times its draft
    and forward, cut to the step's duration. Treat it as read-only: it is not frozen because setting so many frozen
    fields takes the host twice as long.
    """

    setup: RoundSetup  # that it ran by
    instead_of: RoundSetup | None = None  # that was asked for, where nobody drafts by it: it ran plainly
    context: int  # most cached tokens of any sequence, before the round
    sequences: list[int]  # index of each sequence
    kept: list[int]  # tokens emitted per sequence
    verify_tokens: int  # tokens per sequence fed to the target, padding included
    widths: tuple[int, ...]  # draft nodes per sequence of each drafter forward, the root's own first
    fresh: int  # most tokens of any sequence committed since the last draft, which the first of them reads
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
