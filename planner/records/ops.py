"""The array operations by which trees grow, for numpy; those for tensors are in `runtime/growth/grow.py`.

A rule of growth is written once, as a device runs it: shapes are known before any score is, and what depends on scores
is a mask. On numpy the host knows every score, so `used` and `stopped` spare it what nobody needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Floats
from ..kernels.beam import add_up, hang, hang_best, locate
from .draft import ROOT_TOKEN, Array, Bools, DraftBatch, Ints, Scores, draft_of_one_shape, shared_rows

NOTHING = np.float32(-np.inf)  # score of what is no candidate
MANY = 512  # candidates from which on sorting a shortlist is faster than sorting all
Numbers: TypeAlias = tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | range
Trees_co = TypeVar("Trees_co", covariant=True)


class Ops(Protocol[Trees_co]):
    """Operations on arrays (batch, any), or (1, any) where all sequences share one row, and how they become trees."""

    @property
    def batch(self) -> int:
        """Sequences whose trees grow."""

    def row(self, values: Numbers) -> Array:
        """Return (1, values) of int64, float64 or bool, never to be written to."""

    def rows(self, values: Numbers) -> Array:
        """Return (batch, values): the same in every row, never to be written to."""

    def best(self, scores: Array, count: int) -> Array:
        """Return (batch, at most count): places of the highest scores, best first, ties in order."""

    def take(self, values: Array, places: Array) -> Array:
        """Return (rows, places): the values at places of their own row."""

    def where(self, condition: Array, value: Array, other: Array) -> Array:
        """Return `value` where the condition holds, else `other`."""

    def concat(self, parts: Sequence[Array]) -> Array:
        """Return the parts side by side."""

    def double(self, values: Array) -> Array:
        """Return float64."""

    def exp(self, values: Array) -> Array:
        """Return e to the power of the values, in float64."""

    def marked(self, places: Array, is_real: Array, columns: int) -> Array:
        """Return (batch, columns): True at those places of each row that are real."""

    def used(self, places: Array) -> Array:
        """Leave out columns behind the last that is not negative in any row, where the host knows."""

    def stopped(self, is_open: Array) -> bool:
        """Return whether it is known that nothing is drafted any more; False is always right."""

    def located(self, kept: Array, children: int) -> tuple[Array, Array]:
        """Return slot and rank of candidates slot * children + rank; -1 and 0 of negative ones."""

    def added(self, kept: Array, start: int, above: Array, log_probs: Array) -> tuple[Array, Array]:
        """Return path scores and parents (batch, width * children) of the children of remaining candidates.

        `above` (batch, candidates) are the scores of those among which `kept` (batch, width) are, the first of which
        has index `start` among all; below a negative one nothing is a candidate.
        """

    def fixed(
        self, drafted: Sequence[Array], parents: Sequence[int], depths: Sequence[int], widths: tuple[int, ...]
    ) -> Trees_co:
        """Return trees of one shape, root included, of the tokens side by side; `widths` as in `DraftBatch`."""

    def best_tree(
        self, scores: Array, tokens: Array, parents: Array, starts: Sequence[int], count: int, widths: tuple[int, ...]
    ) -> Trees_co:
        """Return `tree` of the best `count` candidates by `scores` (batch, candidates of all layers), or of all."""

    def tree(
        self,
        tokens: Array,
        parents: Array,
        starts: Sequence[int],
        is_chosen: Array,
        most: int,
        widths: tuple[int, ...],
    ) -> Trees_co:
        """Return the trees of chosen candidates, parents before children; see `DraftBatch`.

        `tokens`, `parents` and `is_chosen` are (batch, candidates of all layers); a parent is an index among them, and
        negative for the root. `starts` are the layers' first candidates. No row has more than `most` chosen ones.
        """


@dataclass(frozen=True, slots=True)
class NumpyOps:
    """The operations on the host."""

    batch: int

    def row(self, values: Numbers) -> NDArray[Any]:  # Any: of the values' own type
        return _row(values, type(values[0]).__name__)

    def rows(self, values: Numbers) -> Ints:
        return _rows(values, self.batch)

    def best(self, scores: Scores, count: int) -> Ints:
        return best_candidates(scores, count)

    def take(self, values: Array, places: Ints) -> Array:
        return values[_places(len(places)), places]

    def where(self, condition: Bools, value: Array, other: Array) -> Array:
        return np.where(condition, value, other)

    def concat(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=1) if len(parts) > 1 else np.ascontiguousarray(parts[0])

    def double(self, values: Scores) -> Floats:
        return values.astype(np.float64)

    def exp(self, values: Scores) -> Floats:
        found: Floats = np.exp(values, dtype=np.float64)
        return found

    def marked(self, places: Ints, is_real: Bools, columns: int) -> Bools:
        room = np.zeros((self.batch, columns + 1), dtype=np.bool_)  # one column more, for what is not real
        room[_places(self.batch), np.where(is_real, places, columns)] = True
        return room[:, :columns]

    def used(self, places: Ints) -> Ints:
        return places[:, : int((places >= 0).sum(axis=1).max())]

    def stopped(self, is_open: Bools | bool) -> bool:
        return not np.any(is_open)

    def located(self, kept: Ints, children: int) -> tuple[Ints, Ints]:
        slots, ranks = found = np.empty((2, *kept.shape), dtype=np.int64)
        locate(np.ascontiguousarray(kept), children, found)
        return slots, ranks

    def added(self, kept: Ints, start: int, above: Scores, log_probs: Scores) -> tuple[Scores, Ints]:
        shape = len(kept), kept.shape[1] * log_probs.shape[2]
        scores, parents = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
        likely = np.ascontiguousarray(log_probs, dtype=np.float32)
        add_up(np.ascontiguousarray(kept), start, np.ascontiguousarray(above), likely, scores, parents)
        return scores, parents

    def fixed(
        self, drafted: Sequence[Ints], parents: Sequence[int], depths: Sequence[int], widths: tuple[int, ...]
    ) -> DraftBatch:
        tokens = np.concatenate((self.rows((ROOT_TOKEN,)), *drafted), axis=1)
        return draft_of_one_shape(tokens, parents, depths, widths)

    def best_tree(
        self, scores: Scores, tokens: Ints, parents: Ints, starts: Sequence[int], count: int, widths: tuple[int, ...]
    ) -> DraftBatch:
        nodes = min(count, scores.shape[1]) + 1
        if scores.shape[1] >= MANY or nodes == 1:
            places = best_candidates(scores, count)
            return self.tree(tokens, parents, starts, self.marked(places, places >= 0, scores.shape[1]), count, widths)
        trees = np.empty((3, self.batch, nodes), dtype=np.int64)
        hang_best(scores, tokens, parents, np.array(starts), trees)
        sizes = np.full(self.batch, nodes)
        return DraftBatch(tokens=trees[0], parents=trees[1], depths=trees[2], sizes=sizes, widths=widths)

    def tree(
        self,
        tokens: Ints,
        parents: Ints,
        starts: Sequence[int],
        is_chosen: Bools,
        most: int,
        widths: tuple[int, ...],
    ) -> DraftBatch:
        sizes = is_chosen.sum(axis=1) + 1
        trees = np.empty((3, self.batch, int(sizes.max())), dtype=np.int64)
        hang(tokens, parents, np.array(starts), np.ascontiguousarray(is_chosen), trees)
        return DraftBatch(tokens=trees[0], parents=trees[1], depths=trees[2], sizes=sizes, widths=widths)


@lru_cache(maxsize=1024)
def _row(values: Numbers, kind: str) -> NDArray[Any]:  # Any: as above; `kind` tells 1 from 1.0 and from True
    return np.array(values)[None]


@lru_cache(maxsize=1024)
def _rows(values: tuple[int, ...], batch: int) -> Ints:
    return shared_rows(values, batch)


@lru_cache(maxsize=256)
def _places(batch: int) -> Ints:
    return np.arange(batch)[:, None]


def best_candidates(scores: Scores, count: int) -> Ints:
    """Return (batch, at most count): places of the highest scores, best first, ties in order."""
    if scores.shape[1] < MANY or scores.shape[1] < 4 * count:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    shortlist = _at_least_the_last(scores, count)
    order = np.argsort(-np.take_along_axis(scores, shortlist, axis=1), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(shortlist, order, axis=1)


def _at_least_the_last(scores: Scores, count: int) -> Ints:
    """Return (batch, some): in order all places that may be among the best `count`, then others that score less."""
    last = np.partition(scores, -count, axis=1)[:, -count, None]
    is_in = scores >= last
    return np.argsort(~is_in, axis=1, kind="stable")[:, : int(is_in.sum(axis=1).max())]
