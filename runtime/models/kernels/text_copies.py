"""Copies out of each text, found where the text grows: one launch takes in what is new, searches, and lays chains out.

For every place of a text it is known how many tokens up to there agree with the text's end. Behind new tokens a place
has what they agree with, and where they all do, what the place so many tokens before it had: so a search costs a few
loads for every place, however long a match is. The best place is the first or the last one of the longest match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

PLACES, WARPS = 1024, 4  # of a text that are looked at together
TOGETHER = 8  # new tokens of it that a place is compared with
FEW_NODES, FEW_TOKENS = 16, 16  # of a tree, and new ones: no code is made for fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """How a chain is copied behind a match of m tokens.

    Attributes:
        length: most tokens; at most factor * m + offset.
        factor, offset: see there.
        shortest: m of a match that is copied from, at least.
        longest: m counts as so many at most; 0 is no bound.
        is_first: whether of several places the first is copied behind, else the last.
        goes_on: whether a copy that reaches the text's end goes on with itself, else it ends there.
    """

    length: int
    factor: int
    offset: int
    shortest: int
    longest: int
    is_first: bool
    goes_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTexts:
    """What a device holds of the texts of a batch.

    Attributes:
        tokens: (batch, room) int32.
        runs: (batch, room) int32, how many tokens up to each place agree with the text's end; of places before the
            last.
        lengths: (batch,) int64, tokens that were taken in.
    """

    tokens: Tensor
    runs: Tensor
    lengths: Tensor


def is_supported(device: torch.device) -> bool:
    """Return whether the kernels run on a device."""
    return runs_triton(device)


def copy_behind(
    copying: Copying, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
) -> Tensor:
    """Take in what is new of each text; return the chain that is copied behind its end, or what a model drafted there.

    Args:
        copying: how.
        texts: written, where `is_live`.
        state: (batch * (2 + room),) int64, see `BatchState`: a text has a token more than its cache, and its newest
            ones are there as far as `texts` lacks them.
        is_live: () bool.
        drafted: (batch, 3 * nodes of a model's trees + 1) int64, see `DeviceDraft.numbers`; None: no model drafts.
        nodes: of the result's trees, the root included: those of the largest tree.

    Returns:
        (batch, 3 * nodes + 1) int64: tokens, parents, depths and sizes.
    """
    batch, capacity = texts.tokens.shape
    room = state.numel() // batch - 2
    model_nodes = 0 if drafted is None else drafted.shape[1] // 3
    assert max(copying.length + 1, model_nodes) <= nodes, "trees that fit"
    assert drafted is None or drafted.is_contiguous(), "rows that lie together"
    numbers = state.new_empty((batch, 3 * nodes + 1))
    _copy[batch,](
        state, is_live, texts.tokens, texts.runs, texts.lengths, state if drafted is None else drafted, numbers,
        batch, room, capacity, nodes, model_nodes, copying.length, copying.factor, copying.offset, copying.shortest,
        copying.longest or capacity,
        is_first=copying.is_first, goes_on=copying.goes_on, has_model=drafted is not None, places=PLACES,
        together=TOGETHER,
        room_padded=max(power_of_two(room), FEW_TOKENS), padded=max(power_of_two(nodes), FEW_NODES),
        num_warps=WARPS, **chained(state.device),
    )  # fmt: skip
    return numbers


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
    """Do one row."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, live = tl.program_id(0).to(tl.int64), tl.load(is_live)
    text, agreeing = texts + row * capacity, runs + row * capacity
    end, held = tl.load(state + row) + 1, tl.load(lengths + row)
    count, new = tl.load(state + batch + row), end - held
    lane = tl.arange(0, room_padded)
    fresh = tl.load(state + 2 * batch + row * room + count - new + lane, mask=lane < new, other=0)
    tl.store(text + held + lane, fresh.to(tl.int32), mask=lane < tl.where(live, new, 0))
    tl.debug_barrier()  # what other threads of this program have stored is read, and all know what was held
    tl.store(lengths + row, end, mask=live)
    best = tl.program_id(0).to(tl.int64) * 0 - 1
    chunks = (end + places - 2) // places
    for chunk in range(0, chunks):
        place = (chunks - 1 - chunk) * places + tl.arange(0, places)  # from the end on: what lies before is as it was
        is_place = place < end - 1
        run, does_agree = (place * 0).to(tl.int32), is_place
        for first in range(0, new, together):
            ahead = tl.arange(0, together)  # compared at once, since each load is waited for as long as many
            back = first + ahead
            said = tl.load(text + end - 1 - back, mask=back < new, other=-1)
            at = place[:, None] - back[None, :]
            own = tl.load(text + at, mask=does_agree[:, None] & (at >= 0) & (back < new)[None, :], other=-2)
            alike = tl.min(tl.where(own == said[None, :], together, ahead[None, :]), 1)  # up to the first that differs
            run += tl.where(does_agree, alike, 0)
            does_agree = does_agree & (alike == tl.minimum(together, new - first))
        run += tl.load(agreeing + place - new, mask=does_agree & (place >= new), other=0)
        tl.debug_barrier()  # all have read what is written over now
        tl.store(agreeing + place, run, mask=place < tl.where(live, end - 1, 0))
        rank = capacity - place if is_first else place
        key = tl.minimum(run, longest).to(tl.int64) * 4294967296 + rank
        best = tl.maximum(best, tl.max(tl.where(is_place & (run > 0), key, -1), 0))
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
    size = most + 1
    if has_model:
        given, is_given = drafted + row * (3 * model_nodes + 1), node < tl.where(most == 0, model_nodes, 0)
        token = tl.load(given + node, mask=is_given, other=token)
        parent = tl.load(given + model_nodes + node, mask=is_given, other=parent)
        depth = tl.load(given + 2 * model_nodes + node, mask=is_given, other=depth)
        size = tl.where(most == 0, tl.load(given + 3 * model_nodes), size)
    out = numbers + row * (3 * nodes + 1)
    tl.store(out + node, tl.where(node == 0, -1, token), mask=node < nodes)
    tl.store(out + nodes + node, tl.where(node == 0, -1, parent), mask=node < nodes)
    tl.store(out + 2 * nodes + node, tl.where(node == 0, 0, depth), mask=node < nodes)
    tl.store(out + 3 * nodes, size)
