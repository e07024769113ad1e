"""Policies replayed on the inputs' texts, with every drafter's recording laid out once and every replay made once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..inputs import PlanInputs
from ..lockstep import Replay, replay_results
from ..records.draft import Bools, DraftBatch, Ints
from ..records.recording import Recorded, RecordedScorer, Recording, Rows, Text, recording_of, rows_of
from ..records.results import PositionResults
from ..records.tree import ShapeFacts, TokenTree
from ..strategies.base import Strategy, grow
from ..strategies.delegating import DelegatingPolicy
from ..strategies.stack import model_of
from ..strategies.text import TextPolicy, batch_of
from ..strategies.texts import TextState

Staged = tuple[Strategy, str | None]


@dataclass(slots=True, eq=False)
class Rehearsal:
    """Replays and caches policies by name, but not CAST, whose cost tables belong to one cell."""

    inputs: PlanInputs
    _recordings: dict[str, Recording] = field(default_factory=dict)
    _results: dict[Staged, PositionResults] = field(default_factory=dict)
    _replays: dict[tuple[Staged, int], Replay] = field(default_factory=dict)
    _shapes: dict[tuple[Staged, int], ShapeFacts] = field(default_factory=dict)
    _rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        """The numbering of the texts' positions."""
        if self._rows is None:
            self._rows = rows_of(self.inputs.texts)
        return self._rows

    def recording(self, drafter: str) -> Recording:
        """Return a drafter's recording; PlanError where the inputs have no such drafter."""
        if drafter not in self._recordings:
            self._recordings[drafter] = recording_of(self.inputs.drafter(drafter).trace)
        return self._recordings[drafter]

    def replay(self, policy: Strategy, drafter: str | None, batch: int, *, is_kept: bool = True) -> Replay:
        """Return the rounds of a policy, cached if `is_kept`; `drafter` may be LOOKUP, and None where no model drafts.

        PlanError if there is no such drafter, slots outnumber texts, or too few children were recorded.
        """
        if not is_kept or policy.is_of_one_cell:
            return policy.replay(self.recorded(policy, drafter), batch)
        staged = (policy, drafter)
        if (staged, batch) not in self._replays:
            self._replays[staged, batch] = replay_results(self.results(policy, drafter), self.rows, batch)
        return self._replays[staged, batch]

    def shape(self, policy: Strategy, drafter: str | None, batch: int) -> ShapeFacts | None:
        """Return the shape of a policy's trees on the texts: verified and accepted nodes by depth.

        None for a stack, whose chains depend on its lower models, for a hybrid, which drafts two ways, and for lossy
        ways, whose texts differ.
        """
        if not policy.has_shape:
            return None
        model = model_of(drafter)
        recording = None if model is None else self.recording(model)
        staged = (policy, drafter)
        if (staged, batch) not in self._shapes:
            self._shapes[staged, batch] = shape_of(policy, batch, texts=self.inputs.texts, recording=recording)
        return self._shapes[staged, batch]

    def results(self, policy: Strategy, drafter: str | None) -> PositionResults:
        """Return what a policy does at every position of the texts.

        PlanError if it is coupled or a stack, there is no such drafter, or too few children were recorded.
        """
        if (policy, drafter) not in self._results:
            self._results[policy, drafter] = policy.results(self.recorded(policy, drafter))
        return self._results[policy, drafter]

    def recorded(self, policy: Strategy, drafter: str | None) -> Recorded:
        """Return what a policy replays from."""
        recording = self.recording(_named(policy, drafter)) if policy.is_recorded else None
        return Recorded(texts=self.inputs.texts, rows=self.rows, recording=recording)


def _named(policy: Strategy, drafter: str | None) -> str:
    model = model_of(drafter)
    if model is None:
        raise PlanError(f"a {policy.label} needs a drafter; name one of the inputs' drafters")
    return model


def shape_of(policy: Strategy, batch: int, *, texts: Sequence[Text], recording: Recording | None = None) -> ShapeFacts:
    """Return the shape of a policy's trees, and how deep they are accepted, along the recorded texts.

    Every text is decoded once from its start. Where sequences influence each other's trees, `batch` texts run together
    until the first of them ends, then the next ones. `recording` is of the same texts; None for plain decoding and what
    drafts from the text. PlanError if it is missing or too poor for the policy, or if that is a StackPolicy.
    """
    if policy.source == "none":
        return ShapeFacts(verified=(), reached=())
    if isinstance(policy, TextPolicy):
        return _of_text(policy, texts)
    if isinstance(policy, DelegatingPolicy) and policy.has_shape:
        return shape_of(policy.draft, batch, texts=texts, recording=recording)
    if not policy.has_shape:
        raise PlanError(f"the shape of a {policy.label} is not counted; replay it with stack_replay")
    if recording is None:
        raise PlanError(f"a {policy.label} is drafted by a model; pass the recording of its drafter")
    tree = policy.fixed_tree
    if tree is not None and recording.is_prefix_exact:
        return _of_tree(tree, recording)
    counts = _Counts.of(policy.draft_forwards, 0 if tree is None else tree.size)
    for draft in _rounds(policy, batch, recording):
        counts.add(draft)
    return counts.facts()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counts:
    rounds: NDArray[np.int64]  # one number
    verified: Ints  # (depths + 1,)
    taken_at: Ints  # (depths + 1,)
    taken: Ints  # (nodes,), of a tree that is the same in every round

    @classmethod
    def of(cls, depths: int, nodes: int) -> _Counts:
        none = np.zeros
        return cls(
            rounds=none(1, np.int64),
            verified=none(depths + 1, np.int64),
            taken_at=none(depths + 1, np.int64),
            taken=none(nodes, np.int64),
        )

    def add(self, draft: DraftBatch) -> None:
        """Count a batch of trees whose tokens are 1 where the target takes them, else 0; -1 at the root and padding."""
        deepest = len(self.verified)
        self.rounds[0] += len(draft.tokens)
        self.verified[:] += np.bincount(draft.depths[draft.tokens >= 0], minlength=deepest)
        self.taken_at[:] += np.bincount(draft.depths[draft.tokens == 1], minlength=deepest)
        if len(self.taken):
            self.taken[:] += (draft.tokens == 1).sum(axis=0)

    def facts(self) -> ShapeFacts:
        rounds = int(self.rounds[0])
        taken = (1.0, *(self.taken[1:] / rounds).tolist()) if len(self.taken) else ()
        depths = int(np.flatnonzero(self.verified).max(initial=0))
        return ShapeFacts(
            verified=tuple((self.verified[1 : depths + 1] / rounds).tolist()),
            reached=tuple((self.taken_at[1 : depths + 1] / rounds).tolist()),
            taken=taken,
        )


def _rounds(policy: Strategy, batch: int, recording: Recording) -> Iterator[DraftBatch]:
    starts, left = recording.rows.starts, recording.rows.left
    together = batch if policy.is_coupled(batch) else len(starts)
    least = together if policy.is_coupled(batch) else 1
    for first in range(0, len(starts) - together + 1, together):
        at = starts[first : first + together]
        while len(at) >= least:
            draft = grow(policy, RecordedScorer(recording, at), len(at))
            yield draft
            at = at + np.minimum((draft.tokens == 1).sum(axis=1) + 1, left[at])
            at = at[left[at] > 0]


def _of_tree(tree: TokenTree, recording: Recording) -> ShapeFacts:
    """Return the shape of a fixed tree: the rank of the token that follows each position decides it."""
    hits = _node_hits(tree, recording.next_rank)
    kept = np.minimum(hits.sum(axis=1), recording.rows.left)  # the root stands for the target's own token
    visited = _visited(kept, recording.rows.starts, recording.rows.ends)
    taken = hits[visited].mean(axis=0)
    depths = np.array(tree.depths)
    levels = range(1, tree.depth + 1)
    return ShapeFacts(
        verified=tuple(float((depths == depth).sum()) for depth in levels),
        reached=tuple(float(taken[depths == depth].sum()) for depth in levels),
        taken=tuple(taken.tolist()),
    )


def _node_hits(tree: TokenTree, next_rank: Ints) -> Bools:
    """Return (rows, nodes): whether the target's own path from each row on goes through each node."""
    depths = tree.depths
    hits = np.ones((len(next_rank), tree.size), dtype=np.bool_)
    ahead = np.concatenate([next_rank, np.full(tree.depth, -1)])  # no child has rank -1
    for node in range(1, tree.size):
        there = ahead[depths[node] - 1 :][: len(next_rank)] == tree.ranks[node]
        hits[:, node] = hits[:, tree.parents[node]] & there
    return hits


def _visited(kept: Ints, starts: Ints, ends: Ints) -> list[int]:
    steps, visited = kept.tolist(), []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        row = start
        while row < end:
            visited.append(row)
            row += steps[row]
    return visited


def _of_text(policy: TextPolicy, texts: Sequence[Text]) -> ShapeFacts:
    counts = _Counts.of(policy.bounds.depth, 0)
    for text in texts:
        tokens, state = text.prompt + text.continuation, TextState()
        now = len(text.prompt) + 1
        while now < len(tokens):
            draft = batch_of([state.draft(tokens[:now], policy)])
            draft.tokens[0] = _is_right(draft, tokens[now:])
            counts.add(draft)
            now += int((draft.tokens == 1).sum()) + 1
    return counts.facts()


def _is_right(draft: DraftBatch, truth: Sequence[int]) -> list[int]:
    """Return, per node of the first tree, 1 where it is on the target's own path, 0 where not, -1 for the root."""
    is_right = [-1]
    for token, parent, depth in zip(draft.tokens[0], draft.parents[0], draft.depths[0], strict=True):
        if parent >= 0:
            is_reached = parent == 0 or is_right[parent] == 1
            is_right.append(int(is_reached and depth <= len(truth) and truth[depth - 1] == token))
    return is_right
