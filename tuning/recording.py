"""Record what a drafter would draw at every position of the target's own text.

At each position the union of several beams is expanded: every node that any of them would feed to
the drafter. A policy whose tree only expands recorded nodes then replays exactly. The drafter's
own code answers, so recording and decoding compute the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import MeasurementError
from ..planner.draft import Children, Ints, LayerScorer, Scores
from ..profiler.records.acceptance import MISS, PromptTrace
from ..runtime.drafters.model import DraftPass, ModelDrafter
from ..runtime.models.forward import CausalModel
from ..runtime.requests import Request
from ..runtime.requests import Sequence as Decoded

ROWS = 64  # positions recorded at once
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """Which beams are recorded: layers[w] is how many drafter forwards the beam of width w may run."""

    children: int = 10
    layers: tuple[tuple[int, int], ...] = ((1, 8), (2, 5), (3, 4), (4, 4), (6, 3), (8, 3), (10, 8))

    def __post_init__(self) -> None:
        if not self.layers or any(not 1 <= width <= self.children or depth < 1 for width, depth in self.layers):
            raise MeasurementError(f"beams need widths in 1..{self.children} and layers >= 1, got {self.layers}")

    @property
    def most_layers(self) -> int:
        """Drafter forwards of the deepest beam, the root's own included."""
        return max(depth for _, depth in self.layers)

    @property
    def most_nodes(self) -> int:
        """Upper bound of nodes expanded at one position, root included."""
        return 1 + sum(width * (depth - 1) for width, depth in self.layers)


ROOTS_ONLY = Beams(layers=((1, 1),))


class Recorder:
    """Records one drafter, prompt by prompt."""

    def __init__(self, drafter: CausalModel, beams: Beams, *, longest: int, rows: int = ROWS) -> None:
        """Allocate for texts of up to `longest` tokens."""
        self._beams, self._rows = beams, rows
        self._drafter = ModelDrafter(drafter, slots=rows, capacity=longest + beams.most_nodes + 1)

    def record(
        self, request: Request, continuation: Sequence[int], positions: Sequence[int] | None = None
    ) -> PromptTrace:
        """Return the trace of one prompt and the target's own continuation of it.

        Args:
            request: the prompt, and the temperature of the continuation.
            continuation: the target's own tokens, at least 2.
            positions: where trees are recorded, ascending; elsewhere only the root's children are. All where None.
        """
        everywhere = range(len(continuation) - 1)
        wanted = list(everywhere if positions is None else positions)
        roots = sorted(set(everywhere) - set(wanted))
        layers: list[_Layer] = []
        for chosen, beams in ((wanted, self._beams), (roots, Beams(children=self._beams.children, layers=((1, 1),)))):
            for start in range(0, len(chosen), self._rows):
                layers.extend(self._record_rows(request, continuation, chosen[start : start + self._rows], beams))
        return _assembled(request.prompt, tuple(continuation), layers)

    def _record_rows(
        self, request: Request, continuation: Sequence[int], positions: list[int], beams: Beams
    ) -> list[_Layer]:
        """Expand the trees at some positions of one text."""
        text = [*request.prompt, *continuation]
        ends = [len(request.prompt) + t + 1 for t in positions]
        self._drafter.read_prefixes(text[: ends[-1]], [end - 1 for end in ends])
        sequences = [Decoded(request, 0) for _ in ends]
        for sequence, end in zip(sequences, ends, strict=True):
            sequence.tokens = text[:end]
        depths = beams.most_layers
        truth = np.full((len(ends), depths), -1, dtype=np.int64)
        for row, end in enumerate(ends):
            known = text[end : end + depths]
            truth[row, : len(known)] = known
        return record_union(DraftPass(self._drafter, sequences), truth, beams, np.array(positions, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Expanded nodes of one depth, row after row: all fields (nodes,) but log_probs (nodes, children)."""

    rows: Ints
    parents: Ints  # index within the row's position
    ranks: Ints
    log_probs: Scores
    hit_ranks: Ints


@dataclass(slots=True)
class _Beam:
    """One beam on its way down: its nodes as slots of the union's layer, best first."""

    width: int
    layers: int
    slots: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))  # (rows, nodes)
    scores: Scores = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))  # (rows, nodes)

    def choose(self, below: Children) -> Ints:
        """Return (rows, nodes): the next layer's nodes as slot * children + rank, and keep their scores."""
        count = below.tokens.shape[2]
        wide = min(self.width, count)
        rows = np.arange(len(self.slots))[:, None]
        scores = self.scores[:, :, None] + below.log_probs[rows, self.slots, :wide]
        flat = scores.reshape(len(scores), -1)
        best = np.argsort(-flat, axis=1, kind="stable")[:, : self.width]
        self.scores = flat[rows, best]
        chosen: Ints = self.slots[rows, best // wide] * count + best % wide
        return chosen


def record_union(scorer: LayerScorer, truth: Ints, beams: Beams, positions: Ints) -> list[_Layer]:
    """Expand the union of the beams; return its layers, the roots first.

    Args:
        scorer: a fresh round of the drafter, one row per position.
        truth: (rows, depths), the target's tokens behind each position, -1 beyond the end.
        beams: what to expand.
        positions: (rows,), the position each row stands at.
    """
    rows = len(truth)
    below = scorer.root(beams.children)
    union = _Union(positions, truth)
    layers = [union.enter_roots(below)]
    zeros = np.zeros((rows, 1), dtype=np.int64)
    active = [_Beam(width, depth, zeros, np.zeros((rows, 1), dtype=np.float32)) for width, depth in beams.layers]
    for depth in range(1, beams.most_layers):
        active = [beam for beam in active if beam.layers > depth]
        choices = [beam.choose(below) for beam in active]
        parents, ranks, places = _united(choices, below.tokens.shape[1] * below.tokens.shape[2], below.tokens.shape[2])
        below = scorer.expand(parents.slots, ranks, beams.children)
        layers.append(union.enter(below, parents, ranks))
        for beam, chosen in zip(active, choices, strict=True):
            beam.slots = places[np.arange(rows)[:, None], chosen]
    return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Slots of parents (rows, width), and which of them are real (the others repeat a real one)."""

    slots: Ints
    is_real: Bools


def _united(choices: list[Ints], candidates: int, children: int) -> tuple[_Chosen, Ints, Ints]:
    """Return parents and ranks (rows, width) of all chosen candidates, and each candidate's new slot."""
    rows = np.arange(len(choices[0]))[:, None]
    wanted = np.zeros((len(rows), candidates), dtype=np.bool_)
    for chosen in choices:
        wanted[rows, chosen] = True
    counts = wanted.sum(axis=1, keepdims=True)
    order = np.argsort(~wanted, axis=1, kind="stable")[:, : int(counts.max())]
    is_real = np.arange(order.shape[1]) < counts
    order = np.where(is_real, order, order[:, :1])
    places = np.cumsum(wanted, axis=1) - 1
    return _Chosen(slots=order // children, is_real=is_real), order % children, places


class _Union:
    """Numbers the expanded nodes of every row and follows the target's own path down."""

    def __init__(self, positions: Ints, truth: Ints) -> None:
        self._positions, self._truth = positions, truth
        rows = len(positions)
        self._depth = 0
        self._entered = np.zeros((rows, 1), dtype=np.int64)  # nodes so far
        self._index = np.zeros((rows, 0), dtype=np.int64)  # of the last layer's slots
        self._hits = np.zeros((rows, 0), dtype=np.int64)  # hit ranks of the last layer's slots

    def enter_roots(self, below: Children) -> _Layer:
        """Take the roots' own expansions."""
        rows = len(below.tokens)
        minus = np.full((rows, 1), -1, dtype=np.int64)
        real, on_path = np.ones((rows, 1), dtype=np.bool_), np.ones((rows, 1), dtype=np.bool_)
        return self._enter(below, minus, np.zeros((rows, 1), dtype=np.int64), real, on_path)

    def enter(self, below: Children, parents: _Chosen, ranks: Ints) -> _Layer:
        """Take the next layer's expansions."""
        rows = np.arange(len(ranks))[:, None]
        on_path = self._hits[rows, parents.slots] == ranks
        return self._enter(below, self._index[rows, parents.slots], ranks, parents.is_real, on_path)

    def _enter(self, below: Children, parents: Ints, ranks: Ints, is_real: Bools, on_path: Bools) -> _Layer:
        matches = below.tokens == self._truth[:, self._depth][:, None, None]
        hits = np.where(on_path & matches.any(axis=2), matches.argmax(axis=2), MISS)
        self._index = self._entered + np.arange(ranks.shape[1])
        self._hits = np.where(is_real, hits, MISS)
        self._entered = self._entered + is_real.sum(axis=1, keepdims=True)
        self._depth += 1
        rows = np.broadcast_to(self._positions[:, None], ranks.shape)
        return _Layer(
            rows=rows[is_real],
            parents=parents[is_real],
            ranks=ranks[is_real],
            log_probs=below.log_probs[is_real],
            hit_ranks=hits[is_real],
        )


def _assembled(prompt: tuple[int, ...], continuation: tuple[int, ...], layers: list[_Layer]) -> PromptTrace:
    rows = np.concatenate([layer.rows for layer in layers])
    order = np.argsort(rows, kind="stable")  # position by position, layers top down

    def together(name: str) -> NDArray[np.generic]:
        joined: NDArray[np.generic] = np.concatenate([getattr(layer, name) for layer in layers])[order]
        return joined

    counts = np.bincount(rows, minlength=len(continuation) - 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    hits = together("hit_ranks").astype(np.uint8)
    return PromptTrace(
        prompt=prompt,
        continuation=continuation,
        next_rank=hits[offsets[:-1]],
        offsets=offsets,
        parent=together("parents").astype(np.int16),
        rank=together("ranks").astype(np.uint8),
        log_probs=together("log_probs").astype(np.float32),
        hit_rank=hits,
    )
