"""A recorded drafter: the same answers the model gave, looked up instead of computed.

Positions of all texts are numbered through. Position t of text p is row starts[p] + t; one row more per text, its end,
stands for "finished".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from ...profiler.records.calibration import SurvivalCurve
from ..kernels.expansions import Expansions
from .draft import Bools, Children, Ints, Scores

Floats = NDArray[np.float64]
UNKNOWN = -1  # which child the target's path takes cannot be told
MOST_SURVIVED = 3  # tables of survivals kept with a recording; each takes twice the memory of its scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One prompt and what the target continued it with, at least 2 tokens."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt or len(self.continuation) < 2:
            raise PlanError(
                f"a text needs a prompt and 2 continuation tokens, got {len(self.prompt)} and "
                f"{len(self.continuation)}; record longer ones"
            )

    @property
    def positions(self) -> int:
        """Positions a round can start at: one fewer than continuation tokens."""
        return len(self.continuation) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Where the positions of several texts lie."""

    starts: Ints  # (texts,), row of each text's first position
    ends: Ints  # (texts,), row that stands for "finished"
    text_of: Ints  # (rows,), the text each row belongs to
    contexts: Ints  # (rows,), tokens in the target's cache before a round there: len(prompt) + t
    left: Ints  # (rows,), tokens still to come; 0 at the end


def rows_of(texts: Sequence[Text]) -> Rows:
    """Return the numbering of the texts' positions."""
    positions = np.array([text.positions for text in texts], dtype=np.int64)
    ends = np.cumsum(positions + 1) - 1
    text_of = np.repeat(np.arange(len(texts)), positions + 1)
    left = ends[text_of] - np.arange(ends[-1] + 1)
    prompts = np.array([len(text.prompt) for text in texts], dtype=np.int64)
    return Rows(
        starts=ends - positions,
        ends=ends,
        text_of=text_of,
        contexts=prompts[text_of] + positions[text_of] - left,
        left=left,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """All expansions of a trace, numbered through; the last one, `missing`, means "not recorded"."""

    texts: tuple[Text, ...]
    rows: Rows
    next_rank: Ints  # (rows,), the drafter's rank of the token that follows; MISS if beyond or at an end
    roots: Ints  # (rows,), expansion of the committed text
    bounds: Ints  # (rows + 1,), a position's own expansions are bounds[row]:bounds[row + 1]; an end has none
    child: NDArray[np.int32]  # (expansions, children), expansion of each child; `missing` where none was recorded
    log_probs: Scores  # (expansions, children); -inf at `missing`
    scores: Scores  # (expansions, children), path log-probability of each child, summed in float32 from the root down
    depths: Ints  # (expansions,), edges between the root and the node that was expanded
    hit_rank: Ints  # (expansions,), which child is the target's token on the target's own path, or MISS
    is_prefix_exact: bool  # next_rank alone replays chains and static trees
    is_ordered: bool  # no recorded child scores above its parent, and each is possible: the kernels rely on it
    survived: dict[tuple[SurvivalCurve, ...], Floats] = field(default_factory=dict, repr=False)  # of `survivals`

    @property
    def children(self) -> int:
        """Best next tokens recorded per expansion."""
        return int(self.child.shape[1])

    @property
    def layers(self) -> int:
        """Most drafted tokens on one recorded path; of a block drafter, all that it can draft."""
        return int(self.depths[self.scores[:, 0] > -np.inf].max(initial=-1)) + 1

    @property
    def missing(self) -> int:
        """The expansion for all that were not recorded."""
        return len(self.child) - 1

    @property
    def expansions(self) -> Expansions:
        """What kernels read."""
        return Expansions(self.bounds, self.child, self.scores, self.scores.view(np.int32), self.hit_rank)

    def survivals(self, curves: tuple[SurvivalCurve, ...] = ()) -> Floats:
        """Return (expansions, children), cached: the probability that each child is on the target's own path.

        The very numbers that `cast_growth.survivals` gives each candidate of a growing tree. `curves` are by depth, the
        last one for all deeper; without any it is the drafter's own path probability.
        """
        if curves not in self.survived:
            if len(self.survived) == MOST_SURVIVED:
                self.survived.pop(next(iter(self.survived)))
            self.survived[curves] = self._survivals(curves)
        return self.survived[curves]

    def _survivals(self, curves: tuple[SurvivalCurve, ...]) -> Floats:
        found: Floats = np.exp(self.scores, dtype=np.float64)
        for depth in range(int(self.depths.max()) + 1 if curves else 0):
            is_there = (self.depths == depth) & (self.scores[:, 0] > -np.inf)
            curve = curves[min(depth, len(curves) - 1)]
            found[is_there] = curve.at(self.scores[is_there].astype(np.float64))
        return found

    def require_children(self, children: int) -> None:
        """Raise PlanError for a policy that takes more children of a node than were recorded."""
        if children > self.children:
            raise PlanError(
                f"the trace records {self.children} children per node and the policy takes {children}; "
                "record more children or take a narrower policy"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """What a strategy replays from: texts, the numbering of their positions, and a drafter's recording over them."""

    texts: tuple[Text, ...]
    rows: Rows
    recording: Recording | None = None  # None where no model drafts

    @classmethod
    def by(cls, recording: Recording) -> Recorded:
        """Return what a drafter's recording says."""
        return cls(texts=recording.texts, rows=recording.rows, recording=recording)

    @property
    def drafted(self) -> Recording:
        """The drafter's recording; PlanError where no model drafts."""
        if self.recording is None:
            raise PlanError("a model's strategy is replayed without its drafter; pass the drafter's recording")
        return self.recording


def path_ranks(recording: Recording, depths: int) -> Ints:
    """Return (rows, depths): which child of its tree the target's own path takes at depth 1, 2, ... from each row on.

    MISS where no recorded child is on it; UNKNOWN behind that, a missing expansion, or the text's end.
    """
    found = np.full((len(recording.rows.left), depths), UNKNOWN)
    nodes, rows = recording.roots, np.arange(len(found))
    for depth in range(depths):
        is_inside = recording.rows.left > depth
        if recording.is_prefix_exact:
            later = np.minimum(rows + depth, len(rows) - 1)
            found[:, depth] = np.where(is_inside, recording.next_rank[later], UNKNOWN)
            continue
        is_told = is_inside & (nodes != recording.missing)
        ranks = recording.hit_rank[nodes]
        found[:, depth] = np.where(is_told, ranks, UNKNOWN)
        is_hit = is_told & (ranks < recording.children)
        below = recording.child[nodes, np.where(is_hit, ranks, 0)].astype(np.int64)
        nodes = np.where(is_hit, below, recording.missing)
    return found


def texts_of(trace: AcceptanceTrace) -> tuple[Text, ...]:
    """Return the texts a trace was recorded on."""
    return tuple(Text(prompt=prompt.prompt, continuation=prompt.continuation) for prompt in trace.prompts)


def ends_of(texts: Sequence[Text]) -> tuple[int, int]:
    """Return the tokens of the shortest prompt, and of the longest text with its continuation."""
    first = min(len(text.prompt) for text in texts)
    return first, max(len(text.prompt) + len(text.continuation) for text in texts)


def recording_of(trace: AcceptanceTrace) -> Recording:
    """Return the trace laid out for lookup; O(expansions * children) memory."""
    texts = texts_of(trace)
    rows = rows_of(texts)
    firsts = np.cumsum([0, *(len(prompt.parent) for prompt in trace.prompts)])
    missing = int(firsts[-1])
    roots = np.full(len(rows.left), missing, dtype=np.int64)
    next_rank = np.full(len(rows.left), MISS, dtype=np.int64)
    child = np.full((missing + 1, trace.children), missing, dtype=np.int32)
    for prompt, first, start in zip(trace.prompts, firsts.tolist(), rows.starts.tolist(), strict=False):
        roots[start : start + prompt.positions] = first + prompt.offsets[:-1]
        next_rank[start : start + prompt.positions] = prompt.next_rank
        _enter_children(child, prompt, first)
    nothing = np.full((1, trace.children), -np.inf, dtype=np.float32)
    log_probs = np.concatenate([*(prompt.log_probs for prompt in trace.prompts), nothing])
    scores, depths = _along_paths(roots, child, log_probs)
    return Recording(
        texts=texts,
        rows=rows,
        next_rank=next_rank,
        roots=roots,
        bounds=np.minimum.accumulate(np.append(roots, missing)[::-1])[::-1].copy(),
        child=child,
        log_probs=log_probs,
        scores=scores,
        depths=depths,
        hit_rank=np.concatenate([*(prompt.hit_rank for prompt in trace.prompts), [MISS]]).astype(np.int64),
        is_prefix_exact=trace.prefix_exact,
        is_ordered=bool((log_probs[:missing] <= 0.0).all() and (log_probs[:missing] > -np.inf).all()),
    )


def _along_paths(roots: Ints, child: NDArray[np.int32], log_probs: Scores) -> tuple[Scores, Ints]:
    scores, depths = log_probs.copy(), np.zeros(len(child), dtype=np.int64)
    missing = len(child) - 1
    layer, depth = roots[roots != missing], 0
    while len(layer):
        depth += 1
        slots, ranks = np.nonzero(child[layer] != missing)
        parents = layer[slots]
        layer = child[parents, ranks].astype(np.int64)
        scores[layer] = scores[parents, ranks][:, None] + log_probs[layer]
        depths[layer] = depth
    return scores, depths


def _enter_children(child: NDArray[np.int32], prompt: PromptTrace, first: int) -> None:
    inner = np.flatnonzero(prompt.parent >= 0)
    own = np.repeat(prompt.offsets[:-1], np.diff(prompt.offsets))
    child[first + own[inner] + prompt.parent[inner], prompt.rank[inner]] = first + inner


class RecordedScorer:
    """The replay's LayerScorer: many positions at once, one row each.

    Its `tokens` are 1 for the child the target takes on its own path and 0 for others, so a tree's accepted nodes are
    the sum over its real nodes. Children of an expansion that was not recorded have log-probability -inf and are no
    hits.

    `absent` (batch, width): nodes of the layer just expanded that were not recorded; `censored` (batch,): rows with any
    so far.
    """

    def __init__(self, recording: Recording, rows: Ints) -> None:
        """Start a round at each of the rows (batch,)."""
        self._recording = recording
        self._nodes = recording.roots[rows][:, None]
        self._places = np.arange(len(rows))[:, None]
        self.absent: Bools = np.zeros((len(rows), 1), dtype=np.bool_)
        self.censored: Bools = np.zeros(len(rows), dtype=np.bool_)

    def root(self, children: int) -> Children:
        """Return the recorded children of the committed texts."""
        return self._answer(self._nodes, np.zeros(self._nodes.shape, dtype=np.bool_), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the recorded children of the next layer's nodes."""
        nodes = self._recording.child[self._nodes[self._places, parents], ranks].astype(np.int64)
        return self._answer(nodes, parents < 0, children)

    def _answer(self, nodes: Ints, is_padding: Bools, children: int) -> Children:
        recording = self._recording
        recording.require_children(children)
        self._nodes = np.where(is_padding, recording.missing, nodes)
        self.absent = (self._nodes == recording.missing) & ~is_padding
        self.censored |= self.absent.any(axis=1)
        hits = recording.hit_rank[self._nodes][:, :, None] == np.arange(children)
        return Children(tokens=hits.astype(np.int64), log_probs=recording.log_probs[self._nodes, :children])
