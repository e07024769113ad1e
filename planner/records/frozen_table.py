"""Cacheback's frozen table: the n-grams that followed each leader in a corpus, the most frequent first.

It never changes, so a draft from it and from a text's own table is a function of the text. A plan carries all of it:
decoding needs no file.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError

Ints = NDArray[np.int64]
NUMBER = np.dtype("<i4")  # of a token in a packed table
MOST_NUMBERS = 1 << 22  # of one table: what a plan may carry


class Entries(NamedTuple):
    """Leaders (LC, LL), how many followers each has (LC,), and these (LC, FC, FL), the most frequent first."""

    leaders: Ints
    counts: Ints
    followers: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTable:
    """A table of n-grams as a plan holds it.

    Attributes:
        leader_tokens, follower_tokens: of each.
        leaders, followers: how many leaders there are, and the most followers of one.

    Source: Ma et al. 2025, Cacheback, arXiv:2511.21699, which prints neither corpus nor size.
    """

    leader_tokens: int
    follower_tokens: int
    leaders: int
    followers: int
    packed: str  # counts, leaders and followers as 4-byte numbers, deflated, in base64

    def __post_init__(self) -> None:
        if min(self.leader_tokens, self.follower_tokens, self.leaders, self.followers) < 1:
            raise PlanError(f"a frozen table needs sizes of at least 1, got {self._shape}; make it again")
        if self._numbers > MOST_NUMBERS:
            raise PlanError(f"a frozen table of {self._shape} is too large for a plan; make one with fewer leaders")
        entries = self.entries()
        if entries.leaders.min() < 0 or entries.followers.min() < 0:
            raise PlanError(f"the frozen table of {self._shape} names tokens below 0; copy it again")
        if entries.counts.min() < 0 or entries.counts.max() > self.followers:
            raise PlanError(f"the frozen table of {self._shape} counts followers it has no room for; copy it again")

    def entries(self) -> Entries:
        """Return what is packed; PlanError where it is damaged."""
        shapes = self._shapes
        size = self._numbers * NUMBER.itemsize
        try:
            unpacking = zlib.decompressobj()
            found = unpacking.decompress(base64.b64decode(self.packed, validate=True), size + 1)
        except (binascii.Error, zlib.error, ValueError) as error:
            raise PlanError(f"the frozen table of {self._shape} is damaged ({error}); copy it again") from error
        if len(found) != size or not unpacking.eof:
            raise PlanError(f"the frozen table of {self._shape} should hold {size} bytes; it is damaged, copy it again")
        numbers = np.frombuffer(found, dtype=NUMBER).astype(np.int64)
        ends = np.cumsum([prod(shape) for shape in shapes])
        counts, leaders, followers = (
            part.reshape(shape) for part, shape in zip(np.split(numbers, ends[:-1]), shapes, strict=True)
        )
        return Entries(leaders=leaders, counts=counts, followers=followers)

    @property
    def _numbers(self) -> int:
        return sum(prod(shape) for shape in self._shapes)

    @property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        own = self.leaders, self.followers, self.follower_tokens
        return (self.leaders,), (self.leaders, self.leader_tokens), own

    @property
    def _shape(self) -> str:
        return f"{self.leader_tokens}+{self.follower_tokens} tokens, {self.leaders} x {self.followers}"


def frozen_table(
    corpus: Ints, *, leader_tokens: int, follower_tokens: int, leaders: int, followers: int
) -> FrozenTable:
    """Return the most frequent leaders of a corpus, and what followed each most often; ties go to the lower tokens.

    `corpus` (tokens,) is one text behind the other; at most `leaders` leaders, of `followers` followers each, are
    returned. PlanError: a size below 1, or a corpus shorter than one n-gram.
    """
    width = leader_tokens + follower_tokens
    if min(leader_tokens, follower_tokens, leaders, followers) < 1 or len(corpus) < width:
        raise PlanError(
            f"a frozen table of {leader_tokens}+{follower_tokens} tokens, {leaders} x {followers}, cannot be made of "
            f"{len(corpus)} tokens; take sizes of at least 1 and more text"
        )
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(corpus, dtype=np.int64), width)
    kept = _most_frequent(windows[:, :leader_tokens], leaders)
    ngrams, shares = _counted(windows[_places_of(windows[:, :leader_tokens], kept) >= 0])
    of = _places_of(ngrams[:, :leader_tokens], kept)
    order = np.lexsort((-shares, of))
    of, ngrams = of[order], ngrams[order]
    rank = np.arange(len(of)) - np.searchsorted(of, of)
    is_kept = rank < followers
    found = np.zeros((len(kept), followers, follower_tokens), dtype=np.int64)
    found[of[is_kept], rank[is_kept]] = ngrams[is_kept, leader_tokens:]
    counts = np.bincount(of[is_kept], minlength=len(kept))
    return packed_table(Entries(leaders=kept, counts=counts, followers=found))


def packed_table(entries: Entries) -> FrozenTable:
    """Return entries as a plan holds them."""
    flat = np.concatenate([entries.counts, entries.leaders.ravel(), entries.followers.ravel()]).astype(NUMBER)
    return FrozenTable(
        leader_tokens=entries.leaders.shape[1],
        follower_tokens=entries.followers.shape[2],
        leaders=len(entries.leaders),
        followers=entries.followers.shape[1],
        packed=base64.b64encode(zlib.compress(flat.tobytes(), 9)).decode(),
    )


def _most_frequent(rows: Ints, most: int) -> Ints:
    found, counts = _counted(rows)
    return found[np.argsort(-counts, kind="stable")[:most]]


def _counted(rows: Ints) -> tuple[Ints, Ints]:
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    is_new = np.ones(len(rows), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(is_new)
    return ordered[starts], np.diff(np.append(starts, len(rows)))


def _places_of(rows: Ints, kept: Ints) -> Ints:
    """Return each row's place among the kept, -1 where it is missing."""
    if rows.shape[1] == 1:
        found = np.full(max(int(rows.max()), int(kept.max())) + 1, -1, dtype=np.int64)
        found[kept[:, 0]] = np.arange(len(kept))
        return found[rows[:, 0]]
    places = {tuple(row): place for place, row in enumerate(kept.tolist())}
    return np.array([places.get(tuple(row), -1) for row in rows.tolist()], dtype=np.int64)
