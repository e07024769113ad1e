"""Cacheback's table of n-grams: what followed the last tokens before, the most recent first.

A leader of LL tokens has a slot with its followers of FL tokens, ordered by recency. Leaders are chained by recency,
too; a new one takes the slot of the oldest. Source: Ma et al. 2025, arXiv:2511.21699.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Ints
from ..kernels.compiled import compiled

USED, NEWEST, OLDEST, READ = range(4)  # entries of `head`
NONE = -1


class FollowerTable(NamedTuple):
    """Arrays of one table: LC leaders (LC, LL), and FC followers of each, (LC, FC, FL), the most recent first.

    `head` holds the slots in use, the newest and the oldest leader's slot, and the tokens read; `window` (LL + FL,) the
    newest tokens; `counts` (LC,) followers of each. `newer` and `older` are the next slots by recency, NONE at the
    ends. `buckets` holds slots by a hash of the leader; `chained` is the next one in the same bucket.
    """

    head: Ints
    window: Ints
    leaders: Ints
    counts: Ints
    followers: Ints
    newer: Ints
    older: Ints
    buckets: Ints
    chained: Ints


def table_of(leader_tokens: int, follower_tokens: int, leaders: int, followers: int) -> FollowerTable:
    """Return an empty table."""
    made = FollowerTable(
        np.empty(4, np.int64),
        np.empty(leader_tokens + follower_tokens, np.int64),
        np.empty((leaders, leader_tokens), np.int64),
        np.empty(leaders, np.int64),
        np.empty((leaders, followers, follower_tokens), np.int64),
        np.empty(leaders, np.int64),
        np.empty(leaders, np.int64),
        np.empty(1 << leaders.bit_length(), np.int64),
        np.empty(leaders, np.int64),
    )
    clear(made)
    return made


@compiled
def clear(t: FollowerTable) -> None:
    """Empty the table."""
    t.head[:] = 0
    t.head[NEWEST] = t.head[OLDEST] = NONE
    t.buckets[:] = NONE


@compiled
def fill(t: FollowerTable, leaders: Ints, counts: Ints, followers: Ints) -> None:
    """Hold these leaders (LC, LL), their counts (LC,) and followers (LC, FC, FL), and nothing else; no recency."""
    clear(t)
    t.head[USED] = len(leaders)
    for slot in range(len(leaders)):
        t.leaders[slot], t.counts[slot], t.followers[slot] = leaders[slot], counts[slot], followers[slot]
        bucket = _bucket(t, leaders[slot])
        t.chained[slot], t.buckets[bucket] = t.buckets[bucket], slot


@compiled
def read(t: FollowerTable, tokens: Ints) -> None:
    """Note the n-gram that each further token of the text ends."""
    width, length = len(t.window), t.leaders.shape[1]
    for token in tokens:
        for place in range(width - 1):
            t.window[place] = t.window[place + 1]
        t.window[width - 1] = token
        t.head[READ] += 1
        if t.head[READ] >= width:
            _touch_follower(t, _touch_leader(t, t.window[:length]), t.window[length:])


@compiled
def slot_of(t: FollowerTable, leader: Ints) -> int:
    """Return a leader's slot, NONE where it has none; recency stays as it is."""
    slot = t.buckets[_bucket(t, leader)]
    while slot != NONE and not _is_same(t.leaders[slot], leader):
        slot = t.chained[slot]
    return int(slot)


@compiled
def _touch_leader(t: FollowerTable, leader: Ints) -> int:
    """Make a leader the newest and return its slot; a new one takes a free slot or the oldest's."""
    slot = slot_of(t, leader)
    if slot == NONE:
        slot = _freed(t)
        t.leaders[slot] = leader
        t.counts[slot] = 0
        bucket = _bucket(t, leader)
        t.chained[slot], t.buckets[bucket] = t.buckets[bucket], slot
    else:
        _unlink(t, slot)
    t.newer[slot], t.older[slot] = NONE, t.head[NEWEST]
    if t.head[NEWEST] != NONE:
        t.newer[t.head[NEWEST]] = slot
    else:
        t.head[OLDEST] = slot
    t.head[NEWEST] = slot
    return slot


@compiled
def _touch_follower(t: FollowerTable, slot: int, follower: Ints) -> None:
    """Make a follower the first of a slot; a full slot drops its last."""
    count, most = t.counts[slot], t.followers.shape[1]
    rank = 0
    while rank < count and not _is_same(t.followers[slot, rank], follower):
        rank += 1
    if rank == count:
        if count < most:
            t.counts[slot] += 1
        else:
            rank = most - 1
    for place in range(rank, 0, -1):
        t.followers[slot, place] = t.followers[slot, place - 1]
    t.followers[slot, 0] = follower


@compiled
def _freed(t: FollowerTable) -> int:
    """Return an unused slot, or that of the oldest leader, which is dropped."""
    if t.head[USED] < len(t.leaders):
        t.head[USED] += 1
        return int(t.head[USED] - 1)
    slot = t.head[OLDEST]
    _unlink(t, slot)
    bucket = _bucket(t, t.leaders[slot])
    if t.buckets[bucket] == slot:
        t.buckets[bucket] = t.chained[slot]
    else:
        other = t.buckets[bucket]
        while t.chained[other] != slot:
            other = t.chained[other]
        t.chained[other] = t.chained[slot]
    return int(slot)


@compiled
def _unlink(t: FollowerTable, slot: int) -> None:
    newer, older = t.newer[slot], t.older[slot]
    if newer == NONE:
        t.head[NEWEST] = older
    else:
        t.older[newer] = older
    if older == NONE:
        t.head[OLDEST] = newer
    else:
        t.newer[older] = newer


@compiled
def _bucket(t: FollowerTable, leader: Ints) -> int:
    hashed = 0
    for token in leader:
        hashed = hashed * 1000003 + token * 8191
    return hashed & (len(t.buckets) - 1)


@compiled
def _is_same(one: Ints, other: Ints) -> bool:
    is_same = True
    for place in range(len(one)):
        is_same = is_same and one[place] == other[place]
    return is_same
