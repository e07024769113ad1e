"""The nodes of a suffix tree after one end of a text, by one program: listed depth by depth, ranked, and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .jitted import on_device

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there


@on_device()
def placed(
    runs: tl.tensor, mine: tl.tensor, match: tl.tensor, end: tl.tensor, places: tl.constexpr, most: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Write the newest places where an end of `match` tokens occurred, the newest first; return how many."""
    count, chunk = match * 0, end * 0
    while (chunk * places < end - 1) & (count < most):
        place = end - 2 - chunk * places - tl.arange(0, places)
        is_one = (tl.load(runs + place, mask=place >= 0, other=0) >= match) & (place >= 0)
        at = count + tl.cumsum(is_one.to(tl.int32), 0) - 1
        tl.store(mine + at, place, mask=is_one & (at < most))
        count, chunk = tl.minimum(count + tl.sum(is_one.to(tl.int32), 0), most), chunk + 1
    tl.debug_barrier()  # what other threads of this program have written is read
    return count


@on_device()
def listed(
    text: tl.tensor, mine: tl.tensor, keys: tl.tensor, slots: tl.tensor, lines: tl.tensor, chances: tl.tensor,
    count: tl.tensor, most: tl.tensor, end: tl.tensor, least: tl.tensor,
    padded: tl.constexpr, most_listed: tl.constexpr, deepest: tl.constexpr, tile: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """List all nodes that may be in a tree of `most`, depth by depth, in a depth the newest first; return how many.

    `mine` (padded,) holds the `count` places of the end, and `end` the text's length; `keys` and `slots` (padded,) are
    scratch memory. Written: the first three `lines`, the first of `chances`. Nodes have the chance `least` or more.
    """
    lane = tl.arange(0, padded)
    is_alive = lane < count
    place = tl.load(mine + lane, mask=is_alive, other=0)
    nodes = _alike(text, mine, lines, chances, count, most, end, most_listed, deepest, tile)
    chance, group, slot, depth = (lane * 0).to(tl.float64) + 1.0, lane * 0, lane * 0 + nodes - 1, nodes
    while (tl.max(is_alive.to(tl.int32), 0) > 0) & (depth < most):
        at = place + 1 + depth
        has_next = is_alive & (at < end)
        token = tl.load(text + at, mask=has_next, other=0)
        key = tl.where(has_next, (group.to(tl.int64) << 32) | token.to(tl.int64), -1)
        tl.store(keys + lane, key)
        tl.debug_barrier()  # all keys are there
        above, alike, owner = lane * 0, lane * 0, lane * 0 + padded
        for first in range(0, count, tile):
            other = first + tl.arange(0, tile)
            given = tl.load(keys + other)
            is_like = given[None, :] == key[:, None]
            above += tl.sum(((given >> 32)[None, :] == group[:, None]).to(tl.int32), 1)  # no group is -1
            alike += tl.sum(is_like.to(tl.int32), 1)
            owner = tl.minimum(owner, tl.min(tl.where(is_like, other[None, :], padded), 1))
        chance = chance * alike.to(tl.float64) / tl.maximum(above, 1).to(tl.float64)
        is_alive = has_next & (chance >= least)
        better = lane * 0
        for first in range(0, tl.where(nodes < most, 0, nodes), tile):
            other = first + tl.arange(0, tile)
            given = tl.load(chances + other, mask=other < nodes, other=-1.0)
            better += tl.sum((given[None, :] >= chance[:, None]).to(tl.int32), 1)
        is_alive = is_alive & (better < most)
        is_new = is_alive & (owner == lane)
        new = tl.sum(is_new.to(tl.int32), 0)
        new = tl.where(nodes + new <= most_listed, new, 0)
        is_alive, is_new = is_alive & (lane * 0 + new > 0), is_new & (lane * 0 + new > 0)
        node = nodes + tl.cumsum(is_new.to(tl.int32), 0) - 1
        tl.store(chances + node, chance, mask=is_new)
        tl.store(lines + node, token, mask=is_new)
        tl.store(lines + most_listed + node, slot, mask=is_new)
        tl.store(lines + 2 * most_listed + node, lane * 0 + depth + 1, mask=is_new)
        tl.store(slots + lane, node, mask=is_new)
        tl.debug_barrier()  # all nodes are there
        slot = tl.load(slots + owner, mask=is_alive, other=-1)
        group = tl.where(is_alive, owner, -2)
        nodes, depth = nodes + new, depth + 1
    return nodes


@on_device()
def _alike(
    text: tl.tensor, mine: tl.tensor, lines: tl.tensor, chances: tl.tensor, count: tl.tensor, most: tl.tensor,
    end: tl.tensor, most_listed: tl.constexpr, deepest: tl.constexpr, tile: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """List the certain tokens: those with which the text continues at all places; return how many."""
    depth, newest = tl.arange(0, deepest), tl.load(mine, mask=count > 0, other=0)
    nodes = tl.minimum(most.to(tl.int64), end - 1 - newest)
    token = tl.load(text + newest + 1 + depth, mask=depth < nodes, other=0)
    first = count * 0 + 1
    while (first < count) & (nodes > 0):
        other = first + tl.arange(0, tile)
        place = tl.load(mine + other, mask=other < count, other=0)
        is_compared = (other < count)[None, :] & (depth < nodes)[:, None]
        said = tl.load(text + place[None, :] + 1 + depth[:, None], mask=is_compared, other=0)
        is_other = is_compared & (said != token[:, None])
        nodes = tl.minimum(nodes, tl.min(tl.min(tl.where(is_other, depth[:, None], deepest), 1), 0))
        first += tile
    nodes = tl.where(count > 0, nodes, 0).to(tl.int32)
    tl.store(chances + depth, (depth * 0).to(tl.float64) + 1.0, mask=depth < nodes)
    tl.store(lines + depth, token, mask=depth < nodes)
    tl.store(lines + most_listed + depth, depth - 1, mask=depth < nodes)
    tl.store(lines + 2 * most_listed + depth, depth + 1, mask=depth < nodes)
    tl.debug_barrier()  # all of these are there
    return nodes


@on_device()
def ranked(
    lines: tl.tensor, chances: tl.tensor, nodes: tl.tensor, most: tl.tensor,
    most_listed: tl.constexpr, tile: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Write the rank of every listed node, the likeliest first, of equal ones the first; return the tree's score."""
    for first in range(0, nodes, tile):
        node = first + tl.arange(0, tile)
        chance, rank = tl.load(chances + node, mask=node < nodes, other=-1.0), node * 0
        for second in range(0, nodes, tile):
            other = second + tl.arange(0, tile)
            given = (tl.load(chances + other, mask=other < nodes, other=-1.0))[None, :]
            is_before = (given > chance[:, None]) | ((given == chance[:, None]) & (other[None, :] < node[:, None]))
            rank += tl.sum(is_before.to(tl.int32), 1)
        tl.store(lines + 3 * most_listed + node, rank, mask=node < nodes)
        tl.store(chances + most_listed + rank, chance, mask=node < nodes)
    tl.debug_barrier()  # all ranks are there
    count = tl.minimum(nodes, most)
    score = (count * 0).to(tl.float64)
    for first in range(0, count, tile):
        for place in tl.static_range(tile):  # one by one, as the host does: sums are compared
            score += tl.load(chances + most_listed + first + place, mask=first + place < count, other=0.0)
    return score


@on_device()
def write_best(
    tree: tl.tensor, lines: tl.tensor, nodes: tl.tensor, most: tl.tensor, drafts: tl.tensor,
    most_listed: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """Write the tree of the best listed nodes, best first: tokens, parents among its nodes, depths."""
    for first in range(0, nodes, tile):
        node = first + tl.arange(0, tile)
        rank = tl.load(lines + 3 * most_listed + node, mask=node < nodes, other=most)
        is_chosen = (node < nodes) & (rank < most)
        parent = tl.load(lines + most_listed + node, mask=is_chosen, other=-1)
        above = tl.load(lines + 3 * most_listed + parent, mask=is_chosen & (parent >= 0), other=-1) + 1
        tl.store(tree + rank, tl.load(lines + node, mask=is_chosen, other=0).to(tl.int64), mask=is_chosen)
        tl.store(tree + drafts + rank, above.to(tl.int64), mask=is_chosen)
        depth = tl.load(lines + 2 * most_listed + node, mask=is_chosen, other=0)
        tl.store(tree + 2 * drafts + rank, depth.to(tl.int64), mask=is_chosen)
