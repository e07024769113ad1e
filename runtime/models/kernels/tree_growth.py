"""The work between the forwards of a tree that grows by its candidates' scores: a launch per layer, and one at the end.

It is `growth.candidates` and `growth.layout` for trees whose shapes do not depend on scores, one program a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two
from .order import best_first, number_of, order_of, reached_by

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

WORD = 64  # nodes per word of `bits`
MOST_CANDIDATES = 4096  # of a tree, that one program looks at
CANDIDATES_PER_WARP = 512
FEW_NODES, FEW_CHILDREN, FEW_CANDIDATES = 8, 64, 256  # of a layer fed and recorded, of all: no code is made for fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBuffer:
    """Room for all candidates of all layers, in recorded order."""

    told: Tensor  # (batch, 3, candidates) int64: tokens (-1: NaN), parents (-1: root), depths
    scores: Tensor  # (batch, candidates) float32, path log-probabilities

    @classmethod
    def room(cls, batch: int, candidates: int, device: torch.device) -> CandidateBuffer:
        """Return room for so many."""
        told = torch.empty((batch, 3, candidates), dtype=torch.int64, device=device)
        return cls(told=told, scores=torch.empty((batch, candidates), dtype=torch.float32, device=device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The expanded candidates of one layer, best first, laid out for a forward after the committed text."""

    tokens: Tensor  # (batch, width) int64
    positions: Tensor  # (batch, width) int64, in the text
    columns: Tensor  # (batch, width) int64, in the cache
    starts: Tensor  # (batch,) int64, tokens of each row's text
    bits: Tensor  # (batch, width, words) int64, see `TreeMask`
    candidates: Tensor  # (batch, width) int64, among all candidates
    scores: Tensor  # (batch, width) float32, path log-probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChildren:
    """All children of a frontier; candidate = slot * children + rank."""

    tokens: Tensor  # (batch, candidates) int64, contiguous
    log_probs: Tensor  # (batch, candidates) float32, contiguous, conditional on the slot's node
    children: int  # of every node
    above: Frontier | None  # None: the root alone
    start: int  # index of the first among all candidates of all layers
    depth: int  # 1 for the root's children

    @property
    def slots(self) -> int:
        """Nodes of the frontier."""
        return self.tokens.shape[1] // self.children

    @property
    def end(self) -> int:
        """Index after the last among all candidates of all layers."""
        return self.start + self.tokens.shape[1]


def extend(
    layer: LayerChildren, recorded: CandidateBuffer, starts: Tensor, take: Tensor, *, width: int, written: int
) -> Frontier:  # fmt: skip
    """Record a layer; return its best candidates, of equal ones the first recorded, as the next forward's nodes.

    `starts` and `take` are (batch,) int64, contiguous: tokens in the cache before the forward that read committed ones,
    and the last of those. The cache holds `written` drafted nodes of every row.
    """
    batch, words, above = len(layer.tokens), -(-(written + width) // WORD), layer.above
    assert layer.tokens.is_contiguous() and layer.log_probs.is_contiguous(), "rows that lie together"
    assert starts.is_contiguous() and take.is_contiguous(), "numbers that lie together"
    tokens, positions, columns, candidates = layer.tokens.new_empty((4, batch, width))
    frontier = Frontier(
        tokens=tokens,
        positions=positions,
        columns=columns,
        starts=torch.empty_like(starts),
        bits=layer.tokens.new_empty((batch, width, words)),
        candidates=candidates,
        scores=layer.log_probs.new_empty((batch, width)),
    )
    _extend[batch,](
        *_read_of(layer), recorded.told, recorded.scores, starts if above is None else above.bits, starts, take,
        tokens, positions, columns, frontier.starts, frontier.bits, candidates, frontier.scores,
        layer.start, recorded.scores.shape[1], layer.depth, written,
        1 if above is None else above.bits.shape[2], words, width, layer.children, layer.slots,
        width_padded=max(power_of_two(width), FEW_NODES), **_shape_of(layer), num_warps=1, **chained(tokens.device),
    )  # fmt: skip
    return frontier


def finish(layer: LayerChildren, recorded: CandidateBuffer, drafts: int) -> Tensor:
    """Record the last layer; return the trees of the `drafts` best candidates of all, as `DeviceDraft.numbers`.

    That is (batch, 3 * (drafts + 1) + 1) int64: tokens, parents, depths, in recorded order after the root, and sizes.
    """
    batch, total = recorded.scores.shape
    assert layer.end == total >= drafts and total <= MOST_CANDIDATES, "all candidates, and not too many"
    numbers = layer.tokens.new_empty((batch, 3 * drafts + 4))
    padded = max(power_of_two(total), FEW_CANDIDATES)
    _finish[batch,](
        *_read_of(layer), recorded.told, recorded.scores, torch.empty_like(recorded.scores, dtype=torch.int32),
        numbers, layer.start, total, layer.depth, drafts, layer.children, layer.slots,
        total_padded=padded, **_shape_of(layer), num_warps=max(1, padded // CANDIDATES_PER_WARP),
        **chained(numbers.device),
    )  # fmt: skip
    return numbers


def _read_of(layer: LayerChildren) -> tuple[Tensor, ...]:
    if layer.above is None:
        return layer.tokens, layer.log_probs, layer.tokens, layer.log_probs
    return layer.tokens, layer.log_probs, layer.above.candidates, layer.above.scores


def _shape_of(layer: LayerChildren) -> dict[str, int | bool]:
    return {"padded": max(power_of_two(layer.tokens.shape[1]), FEW_CHILDREN), "is_first": layer.above is None}


@on_device()
def _recorded(
    tokens: tl.tensor, log_probs: tl.tensor, parents: tl.tensor, above: tl.tensor, told: tl.tensor, scores: tl.tensor,
    row: tl.tensor, start: tl.tensor, total: tl.tensor, depth: tl.tensor, children: tl.tensor, slots: tl.tensor,
    padded: tl.constexpr, is_first: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Write one row's candidates of a layer; return the orders (padded,) of their scores."""
    place = tl.arange(0, padded)
    is_there, at = place < slots * children, row * (slots * children) + place
    log_prob = tl.load(log_probs + at, mask=is_there, other=0.0)
    token, parent, score = tl.load(tokens + at, mask=is_there, other=0), place.to(tl.int64) * 0 - 1, log_prob
    if not is_first:
        slot = row * slots + place // children
        parent = tl.load(parents + slot, mask=is_there, other=0)
        score += tl.load(above + slot, mask=is_there, other=0.0)
    out = told + row * 3 * total + start + place
    tl.store(out, tl.where(log_prob == log_prob, token, -1), mask=is_there)
    tl.store(out + total, parent, mask=is_there)
    tl.store(out + 2 * total, place.to(tl.int64) * 0 + depth, mask=is_there)
    tl.store(scores + row * total + start + place, score, mask=is_there)
    return order_of(score, is_there)


@on_device(
    "start", "total", "depth", "written", "words_above", "words", "width", "children", "slots",
    unaligned=("parents", "starts", "take", "fed", "positions", "columns", "candidates"),  # neighbours in memory
)  # fmt: skip
def _extend(
    tokens: tl.tensor, log_probs: tl.tensor, parents: tl.tensor, above: tl.tensor, told: tl.tensor, scores: tl.tensor,
    bits_above: tl.tensor, starts: tl.tensor, take: tl.tensor, fed: tl.tensor, positions: tl.tensor,
    columns: tl.tensor, contexts: tl.tensor, bits: tl.tensor, candidates: tl.tensor, kept: tl.tensor,
    start: tl.tensor, total: tl.tensor, depth: tl.tensor, written: tl.tensor, words_above: tl.tensor, words: tl.tensor,
    width: tl.tensor, children: tl.tensor, slots: tl.tensor,
    width_padded: tl.constexpr, padded: tl.constexpr, is_first: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, node = tl.program_id(0).to(tl.int64), tl.arange(0, width_padded)
    context = tl.load(starts + row) + tl.load(take + row) + 1
    orders = _recorded(
        tokens, log_probs, parents, above, told, scores, row, start, total, depth, children, slots, padded, is_first
    )
    order, chosen = best_first(orders, tl.arange(0, padded), width, width_padded)
    is_node, at, own = node < width, row * width + node, (written + node).to(tl.int64)
    tl.store(fed + at, tl.load(tokens + row * (slots * children) + chosen, mask=is_node, other=0), mask=is_node)
    tl.store(positions + at, context + depth - 1 + node * 0, mask=is_node)
    tl.store(columns + at, context + own, mask=is_node)
    tl.store(contexts + row, context)
    tl.store(candidates + at, (start + chosen).to(tl.int64), mask=is_node)
    tl.store(kept + at, number_of(order), mask=is_node)
    for word in range(0, words):
        seen = tl.where((own >> 6) == word, (own * 0 + 1) << (own & 63), 0)
        if not is_first:
            sight = bits_above + (row * slots + chosen // children) * words_above + word
            seen |= tl.load(sight, mask=is_node & (node * 0 + word < words_above), other=0)
        tl.store(bits + at * words + word, seen, mask=is_node)


@on_device("start", "total", "depth", "drafts", "children", "slots", unaligned=("parents",))
def _finish(
    tokens: tl.tensor, log_probs: tl.tensor, parents: tl.tensor, above: tl.tensor, told: tl.tensor, scores: tl.tensor,
    nodes: tl.tensor, numbers: tl.tensor, start: tl.tensor, total: tl.tensor, depth: tl.tensor, drafts: tl.tensor,
    children: tl.tensor, slots: tl.tensor,
    total_padded: tl.constexpr, padded: tl.constexpr, is_first: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Record one row's last candidates and write the tree of the best; `nodes` is room for each one's place in it."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, total_padded)
    _recorded(
        tokens, log_probs, parents, above, told, scores, row, start, total, depth, children, slots, padded, is_first
    )
    tl.debug_barrier()  # what other threads of this program have recorded is read
    is_there, given = place < total, told + row * 3 * total + place
    order = order_of(tl.load(scores + row * total + place, mask=is_there, other=0.0), is_there)
    token = tl.load(given, mask=is_there, other=0)
    parent, level = tl.load(given + total, mask=is_there, other=-1), tl.load(given + 2 * total, mask=is_there, other=0)
    least = reached_by(order, drafts)
    is_better, is_last = order > least, order == least
    room = drafts - tl.sum(is_better.to(tl.int32), 0)
    is_chosen = is_better | (is_last & (tl.cumsum(is_last.to(tl.int32), 0) <= room))
    node = tl.cumsum(is_chosen.to(tl.int32), 0)
    tl.store(nodes + row * total + place, node, mask=is_there)
    tl.debug_barrier()  # likewise
    above_node = tl.load(nodes + row * total + parent, mask=parent >= 0, other=0)
    out, line = numbers + row * (3 * drafts + 4), drafts + 1
    tl.store(out + node, token, mask=is_chosen)
    tl.store(out + line + node, above_node.to(tl.int64), mask=is_chosen)
    tl.store(out + 2 * line + node, level, mask=is_chosen)
    tl.store(out, row * 0 - 1)
    tl.store(out + line, row * 0 - 1)
    tl.store(out + 2 * line, row * 0)
    tl.store(out + 3 * line, row * 0 + drafts + 1)
