"""Copies out of each text, made where it grows: one launch takes in new tokens, searches, and lays chains out.

The best place to copy from is the first or the last one of those that agree with most of the text's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton
from .text_runs import HeldTexts, room_of, runs_up_to, taken_in, told_in

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

WARPS = 4
FEW_NODES = 16  # of a tree: no code is made for fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """How a chain is copied after a match of m tokens: at most `length` tokens, and at most factor * m + offset."""

    length: int
    factor: int
    offset: int
    shortest: int  # least m of a match
    longest: int  # m counts as so many at most; 0: no bound
    is_first: bool  # of several places take the first, else the last
    goes_on: bool  # a copy that reaches the text's end continues with itself, else it ends there

    @property
    def nodes(self) -> int:
        """Nodes of the longest chain, the root included."""
        return self.length + 1


def is_supported(device: torch.device) -> bool:
    """Return whether the kernels run on a device."""
    return runs_triton(device)


def copy_behind(
    copying: Copying, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
) -> Tensor:
    """Take in each text's new tokens; return the chain copied after its end, or what a model drafted there.

    `texts` is written where `is_live` () is true. `state` (batch * (2 + room),) int64 is a `BatchState`: a text has a
    token more than its cache, and the state holds all tokens that `texts` lacks. `drafted` is as `DeviceDraft.numbers`;
    None: no model drafts. The result (batch, 3 * nodes + 1) int64 is tokens, parents, depths and sizes.
    """
    batch, capacity = texts.tokens.shape
    room, model_nodes = room_of(state, batch), model_nodes_of(drafted, nodes)
    assert copying.length < nodes, "trees that fit"
    numbers = state.new_empty((batch, 3 * nodes + 1))
    _copy[batch,](
        state, is_live, texts.tokens, texts.runs, texts.lengths, state if drafted is None else drafted, numbers,
        batch, room, capacity, nodes, model_nodes, copying.length, copying.factor, copying.offset, copying.shortest,
        copying.longest or capacity,
        is_first=copying.is_first, goes_on=copying.goes_on, has_model=drafted is not None,
        padded=max(power_of_two(nodes), FEW_NODES), num_warps=WARPS, **told_in(room), **chained(state.device),
    )  # fmt: skip
    return numbers


def model_nodes_of(drafted: Tensor | None, nodes: int) -> int:
    """Return the nodes of the trees that a model drafted, `nodes` at most."""
    if drafted is None:
        return 0
    assert drafted.is_contiguous(), "rows that lie together"
    assert drafted.shape[1] // 3 <= nodes, "trees that fit"
    return drafted.shape[1] // 3


@on_device("batch", "room", "capacity", "nodes", "model_nodes", "length", "factor", "offset", "shortest", "longest")
def _copy(
    state: tl.tensor, is_live: tl.tensor, texts: tl.tensor, runs: tl.tensor, lengths: tl.tensor, drafted: tl.tensor,
    numbers: tl.tensor, batch: tl.tensor, room: tl.tensor, capacity: tl.tensor, nodes: tl.tensor,
    model_nodes: tl.tensor, length: tl.tensor, factor: tl.tensor, offset: tl.tensor, shortest: tl.tensor,
    longest: tl.tensor,
    is_first: tl.constexpr, goes_on: tl.constexpr, has_model: tl.constexpr, places: tl.constexpr,
    together: tl.constexpr,
    room_padded: tl.constexpr, padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, live = tl.program_id(0).to(tl.int64), tl.load(is_live)
    text = texts + row * capacity
    end, new = taken_in(state, live, text, lengths, row, batch, room, room_padded)
    best = tl.program_id(0).to(tl.int64) * 0 - 1
    chunks = (end + places - 2) // places
    for chunk in range(0, chunks):
        place = (chunks - 1 - chunk) * places + tl.arange(0, places)
        run = runs_up_to(text, runs + row * capacity, place, end, new, live, together)
        rank = capacity - place if is_first else place
        key = tl.minimum(run, longest).to(tl.int64) * 4294967296 + rank
        best = tl.maximum(best, tl.max(tl.where(run > 0, key, -1), 0))
    match, rank = best >> 32, best & 0xFFFFFFFF
    start = (capacity - rank if is_first else rank) + 1
    most = tl.minimum(length, factor * match + offset)
    if not goes_on:
        most = tl.minimum(most, end - start)
    most = tl.where((best >= 0) & (match >= shortest), most, 0)
    node = tl.arange(0, padded)
    is_copied, behind = (node >= 1) & (node <= most), tl.maximum(end - start, 1)
    token = tl.load(text + start + (node - 1) % behind, mask=is_copied, other=-1).to(tl.int64)
    parent, depth = tl.where(is_copied, node - 1, 0).to(tl.int64), tl.where(is_copied, node, 1).to(tl.int64)
    write_tree(numbers, drafted, row, node, token, parent, depth, most, nodes, model_nodes, has_model)


@on_device()
def write_tree(
    numbers: tl.tensor, drafted: tl.tensor, row: tl.tensor, node: tl.tensor, token: tl.tensor, parent: tl.tensor,
    depth: tl.tensor, copied: tl.tensor, nodes: tl.tensor, model_nodes: tl.tensor, has_model: tl.constexpr,
) -> None:  # fmt: skip
    """Write a row's tree of `copied` nodes besides the root; with none, the model's draft."""
    size = copied + 1
    if has_model:
        given, is_given = drafted + row * (3 * model_nodes + 1), node < tl.where(copied == 0, model_nodes, 0)
        token = tl.load(given + node, mask=is_given, other=token)
        parent = tl.load(given + model_nodes + node, mask=is_given, other=parent)
        depth = tl.load(given + 2 * model_nodes + node, mask=is_given, other=depth)
        size = tl.where(copied == 0, tl.load(given + 3 * model_nodes), size)
    out = numbers + row * (3 * nodes + 1)
    tl.store(out + node, tl.where(node == 0, -1, token), mask=node < nodes)
    tl.store(out + nodes + node, tl.where(node == 0, -1, parent), mask=node < nodes)
    tl.store(out + 2 * nodes + node, tl.where(node == 0, 0, depth), mask=node < nodes)
    tl.store(out + 3 * nodes, size)
