"""Suffix trees after the ends of texts, grown on the device: what followed each end before, by how often it did.

An end of m tokens occurred where `runs` is at least m, so the values of `runs` give all ends that matter. Its places
are followed token by token, all at once. Those with the same continuation so far are one node, named by the newest; its
share of its parent's places is its chance. So a depth costs a few steps, however many nodes it has; tokens that follow
at every place cost a few steps together. The result equals the host's `suffix_tree_sweep.read_and_grow`, node for node;
of an end with more than `MOST_PLACES` places the newest count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....planner.strategies.automaton import MOST_GROWN
from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton
from .text_copies import FEW_NODES, model_nodes_of, write_tree
from .text_runs import PLACES, HeldTexts, room_of, runs_up_to, taken_in, told_in
from .tree_nodes import listed, placed, ranked, write_best

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

LONGEST = 64  # tokens of an end; longer ones count as this long, see `planner.strategies.automaton.LONGEST_MATCH`
MOST_PLACES = 256  # of one end
LISTED = 512  # nodes that are weighed for one tree: with one more a whole depth is left out
PROGRAMS = 16  # of one text, which share its ends
TILE, WARPS, GROWING_WARPS = 16, 4, 8
LINES = 4  # of what is listed: tokens, parents, depths, ranks
TOLD = 3  # of a program's best tree: score, match, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """How trees grow after ends of m tokens; see `planner.strategies.suffix_tree`."""

    nodes: int  # most nodes with the root; besides it at most factor * m + offset
    factor: int
    offset: int
    shortest: int  # least m of an end
    least_chance: float  # of a node
    least_score: float  # of a tree: the sum of its chances


def is_supported(device: torch.device) -> bool:
    """Return whether the kernels run on a device."""
    return runs_triton(device)


def grow_behind(
    growing: Growing, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
) -> Tensor:
    """Do what `text_copies.copy_behind` does with the tree of what followed each text's end.

    Source: Oliaro et al. 2024, SuffixDecoding, arXiv:2411.04975.
    """
    batch, capacity = texts.tokens.shape
    room, model_nodes, drafts = room_of(state, batch), model_nodes_of(drafted, nodes), growing.nodes - 1
    assert growing.nodes <= min(nodes, MOST_GROWN), "trees that fit"
    numbers, on = state.new_empty((batch, 3 * nodes + 1)), chained(state.device)
    ends = torch.empty((batch, LONGEST), dtype=torch.int32, device=state.device)
    found = torch.empty((batch, PROGRAMS, TOLD), dtype=torch.float64, device=state.device)
    trees = state.new_empty((batch, PROGRAMS, 3, drafts))
    rooms = (
        state.new_empty((batch, PROGRAMS, 2, MOST_PLACES)),
        torch.empty((batch, PROGRAMS, MOST_PLACES), dtype=torch.int32, device=state.device),
        torch.empty((batch, PROGRAMS, LINES, LISTED), dtype=torch.int32, device=state.device),
        torch.empty((batch, PROGRAMS, 2, LISTED), dtype=torch.float64, device=state.device),
    )
    _find_ends[batch,](
        state, is_live, texts.tokens, texts.runs, texts.lengths, ends, batch, room, capacity,
        longest=LONGEST, num_warps=WARPS, **told_in(room), **on,
    )  # fmt: skip
    _grow[batch, PROGRAMS](
        state, texts.tokens, texts.runs, ends, *rooms, found, trees,
        capacity, drafts, growing.factor, growing.offset, growing.shortest, *_halves_of(growing.least_chance),
        longest=LONGEST, programs=PROGRAMS, places=PLACES, most_places=MOST_PLACES, most_listed=LISTED,
        deepest=power_of_two(MOST_GROWN), tile=TILE, num_warps=GROWING_WARPS, **on,
    )  # fmt: skip
    _choose[batch,](
        found, trees, state if drafted is None else drafted, numbers, nodes, model_nodes, drafts,
        *_halves_of(growing.least_score), has_model=drafted is not None, programs=PROGRAMS,
        padded=max(power_of_two(nodes), FEW_NODES), num_warps=1, **on,
    )  # fmt: skip
    return numbers


def _halves_of(number: float) -> tuple[int, int]:
    """Return the halves of a float64's bits: as a float argument of a kernel it would lose half of them."""
    high, low = struct.unpack(">ii", struct.pack(">d", number))
    return high, low


@on_device()
def _whole(
    high: tl.tensor, low: tl.tensor,
) -> tl.tensor:  # fmt: skip
    return ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@on_device("batch", "room", "capacity")
def _find_ends(
    state: tl.tensor, is_live: tl.tensor, texts: tl.tensor, runs: tl.tensor, lengths: tl.tensor, ends: tl.tensor,
    batch: tl.tensor, room: tl.tensor, capacity: tl.tensor,
    longest: tl.constexpr, places: tl.constexpr, together: tl.constexpr, room_padded: tl.constexpr,
    is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Take in a row's new tokens; write 1 in `ends` for every length of an end that no longer end covers."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, live = tl.program_id(0).to(tl.int64), tl.load(is_live)
    text, own = texts + row * capacity, ends + row * longest
    tl.store(own + tl.arange(0, longest), tl.zeros((longest,), dtype=tl.int32))
    end, new = taken_in(state, live, text, lengths, row, batch, room, room_padded)  # behind which all have written
    chunks = (end + places - 2) // places
    for chunk in range(0, chunks):
        place = (chunks - 1 - chunk) * places + tl.arange(0, places)
        run = runs_up_to(text, runs + row * capacity, place, end, new, live, together)
        tl.store(own + tl.minimum(run, longest) - 1, (place * 0 + 1).to(tl.int32), mask=run > 0)


@on_device("capacity", "drafts", "factor", "offset", "shortest", "least_high", "least_low")
def _grow(
    state: tl.tensor, texts: tl.tensor, runs: tl.tensor, ends: tl.tensor, keys: tl.tensor, slots: tl.tensor,
    lines: tl.tensor, chances: tl.tensor, found: tl.tensor, trees: tl.tensor, capacity: tl.tensor, drafts: tl.tensor,
    factor: tl.tensor, offset: tl.tensor, shortest: tl.tensor, least_high: tl.tensor, least_low: tl.tensor,
    longest: tl.constexpr, programs: tl.constexpr, places: tl.constexpr, most_places: tl.constexpr,
    most_listed: tl.constexpr, deepest: tl.constexpr, tile: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Grow a tree after every `programs`-th end of a row, the longest first, and write the best of them."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, turn = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = row * programs + turn
    text, place_runs, tree = texts + row * capacity, runs + row * capacity, trees + own * 3 * drafts
    mine, slot_room = keys + own * 2 * most_places, slots + own * most_places
    chance_room = chances + own * 2 * most_listed
    own_lines, told = lines + own * 4 * most_listed, found + own * 3
    end, least = tl.load(state + row) + 1, _whole(least_high, least_low)
    match_of = longest - tl.arange(0, longest)  # the longest first
    is_end = (tl.load(ends + row * longest + match_of - 1) != 0) & (match_of >= shortest)
    rank = tl.cumsum(is_end.to(tl.int32), 0) - 1
    best = row.to(tl.float64) * 0.0
    best_match, best_size = turn * 0, turn * 0
    for level in range(turn, tl.sum(is_end.to(tl.int32), 0), programs):
        match = tl.sum(tl.where(is_end & (rank == level), match_of, 0), 0)
        most = tl.minimum(drafts, factor * match + offset)
        if best < most.to(tl.float64):  # no chance is above 1
            count = placed(place_runs, mine, match, end, places, most_places)
            nodes = listed(
                text, mine, mine + most_places, slot_room, own_lines, chance_room, count, most, end, least,
                most_places, most_listed, deepest, tile,
            )  # fmt: skip
            score = ranked(own_lines, chance_room, nodes, most, most_listed, tile)
            if score > best:
                best, best_match, best_size = score, match, tl.minimum(nodes, most)
                write_best(tree, own_lines, nodes, most, drafts, most_listed, tile)
            tl.debug_barrier()  # all have read what the next end writes over
    tl.store(told + 0, best)
    tl.store(told + 1, best_match.to(tl.float64))
    tl.store(told + 2, best_size.to(tl.float64))


@on_device("nodes", "model_nodes", "drafts", "least_high", "least_low")
def _choose(
    found: tl.tensor, trees: tl.tensor, drafted: tl.tensor, numbers: tl.tensor, nodes: tl.tensor,
    model_nodes: tl.tensor, drafts: tl.tensor, least_high: tl.tensor, least_low: tl.tensor,
    has_model: tl.constexpr, programs: tl.constexpr, padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write the best tree of a row's programs, of equal ones that after the longest end."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, turn = tl.program_id(0).to(tl.int64), tl.arange(0, programs)
    told = found + (row * programs + turn) * 3
    score, match = tl.load(told), tl.load(told + 1)
    best = tl.max(score, 0)
    longest = tl.max(tl.where(score == best, match, -1.0), 0)
    chosen = tl.min(tl.where((score == best) & (match == longest), turn, programs - 1), 0)
    size = tl.load(found + (row * programs + chosen) * 3 + 2).to(tl.int64)
    size = tl.where(best >= _whole(least_high, least_low), size, 0)
    node, tree = tl.arange(0, padded), trees + (row * programs + chosen) * 3 * drafts
    is_node = (node >= 1) & (node <= size)
    token = tl.load(tree + node - 1, mask=is_node, other=-1)
    parent = tl.load(tree + drafts + node - 1, mask=is_node, other=0)
    depth = tl.load(tree + 2 * drafts + node - 1, mask=is_node, other=1)
    write_tree(numbers, drafted, row, node, token, parent, depth, size, nodes, model_nodes, has_model)
