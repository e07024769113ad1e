"""The accepted tokens of a round, and their commit to its sequences."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..planner.kernels.arrays import Ints
from ..planner.records.draft import DraftBatch
from .cache import Kept
from .kernels.trees import walk, whole
from .lossy import Gates
from .lossy_round import LossyRound
from .models.forward import Draws
from .models.kernels.host_draws import follow
from .requests import Sequence
from .walk import Acceptance, accept


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
