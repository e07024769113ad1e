"""A recorded drafter: the same answers the model gave, looked up instead of computed.

Positions of all texts are numbered through. Position t of text p is row starts[p] + t; one row
more per text, its end, stands for "finished".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from .draft import Bools, Children, Ints, Scores


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
    """Where the positions of several texts lie.

    Attributes:
        starts: (texts,), row of each text's first position.
        ends: (texts,), row that stands for "finished".
        text_of: (rows,), the text each row belongs to.
        contexts: (rows,), tokens in the target's cache before a round there: len(prompt) + t.
        left: (rows,), tokens still to come; 0 at the end.
    """

    starts: Ints
    ends: Ints
    text_of: Ints
    contexts: Ints
    left: Ints


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
    """All expansions of a trace, numbered through; the last one, `missing`, stands for "not recorded".

    Attributes:
        texts: what was decoded.
        rows: the numbering of its positions.
        next_rank: (rows,), the drafter's rank of the token that follows; MISS if beyond or at an end.
        roots: (rows,), expansion of the committed text.
        child: (expansions, children), expansion of each child; `missing` where none was recorded.
        log_probs: (expansions, children); -inf at `missing`.
        hit_rank: (expansions,), which child is the target's token on the target's own path, or MISS.
        is_prefix_exact: next_rank alone replays chains and static trees.
    """

    texts: tuple[Text, ...]
    rows: Rows
    next_rank: Ints
    roots: Ints
    child: NDArray[np.int32]
    log_probs: Scores
    hit_rank: Ints
    is_prefix_exact: bool

    @property
    def children(self) -> int:
        """Best next tokens recorded per expansion."""
        return int(self.child.shape[1])

    @property
    def missing(self) -> int:
        """The expansion that stands for all that were not recorded."""
        return len(self.child) - 1


def texts_of(trace: AcceptanceTrace) -> tuple[Text, ...]:
    """Return the texts a trace was recorded on."""
    return tuple(Text(prompt=prompt.prompt, continuation=prompt.continuation) for prompt in trace.prompts)


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
    return Recording(
        texts=texts,
        rows=rows,
        next_rank=next_rank,
        roots=roots,
        child=child,
        log_probs=np.concatenate([*(prompt.log_probs for prompt in trace.prompts), nothing]),
        hit_rank=np.concatenate([*(prompt.hit_rank for prompt in trace.prompts), [MISS]]).astype(np.int64),
        is_prefix_exact=trace.prefix_exact,
    )


def _enter_children(child: NDArray[np.int32], prompt: PromptTrace, first: int) -> None:
    """Write where the expansions of one prompt, numbered from `first`, are found from their parents."""
    inner = np.flatnonzero(prompt.parent >= 0)
    own = np.repeat(prompt.offsets[:-1], np.diff(prompt.offsets))
    child[first + own[inner] + prompt.parent[inner], prompt.rank[inner]] = first + inner


class RecordedScorer:
    """The replay's LayerScorer: many positions at once, one row each.

    As `tokens` it answers 1 for the child the target takes on its own path and 0 for every other,
    so the accepted nodes of a tree are the sum over its real nodes. Children of an expansion that
    was not recorded have log-probability -inf and are no hits.

    Attributes:
        absent: (batch, width), which nodes of the layer just asked for were not recorded.
        censored: (batch,), rows in which any node asked for so far was not recorded.
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
        if children > recording.children:
            raise PlanError(
                f"the trace records {recording.children} children per node and the policy takes {children}; "
                "record more children or take a narrower policy"
            )
        self._nodes = np.where(is_padding, recording.missing, nodes)
        self.absent = (self._nodes == recording.missing) & ~is_padding
        self.censored |= self.absent.any(axis=1)
        hits = recording.hit_rank[self._nodes][:, :, None] == np.arange(children)
        return Children(tokens=hits.astype(np.int64), log_probs=recording.log_probs[self._nodes, :children])
