"""Which tree nodes lie where in a cache that holds many trees per slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...planner.records.draft import Ints

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNodes:
    """Nodes about to be fed, (nodes,) each: `turns` among the new ones of their slot, `places` among all of it.

    `contexts` are tokens of the text a node sees, `depths` below the row it hangs off; `sees` (nodes, places of the
    slot) marks its ancestors and itself.
    """

    slots: Ints
    turns: Ints
    places: Ints
    contexts: Ints
    depths: Ints
    sees: Bools


class FedNodes:
    """Which nodes lie in which slot. Nodes are numbered in the order they were added, the rows themselves first."""

    def __init__(self, contexts: Ints, slots: int) -> None:
        rows = len(contexts)
        self._contexts, self._slots = contexts, np.arange(rows) % slots
        self._depths, self._counts = np.zeros(rows, dtype=np.int64), np.zeros(slots, dtype=np.int64)
        self._sees = np.zeros((rows, 0), dtype=np.bool_)

    def add(self, parents: Ints) -> NewNodes:
        """Add one node below each of the parents, in the parent's slot."""
        slots = self._slots[parents]
        turns = _order_within(slots)
        places = self._counts[slots] + turns
        sees = _widened(self._sees[parents], max(int(places.max()) + 1, self._sees.shape[1]))
        sees[np.arange(len(parents)), places] = True
        contexts, depths = self._contexts[parents], self._depths[parents] + 1
        self._sees = np.concatenate([_widened(self._sees, sees.shape[1]), sees])
        self._slots, self._depths = np.concatenate([self._slots, slots]), np.concatenate([self._depths, depths])
        self._contexts = np.concatenate([self._contexts, contexts])
        self._counts += np.bincount(slots, minlength=len(self._counts))
        return NewNodes(slots=slots, turns=turns, places=places, contexts=contexts, depths=depths, sees=sees)


def _order_within(groups: Ints) -> Ints:
    """Return (n,): how many earlier entries name the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    turns = np.empty_like(groups)
    turns[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return turns


def _widened(sees: Bools, places: int) -> Bools:
    wide = np.zeros((len(sees), places), dtype=np.bool_)
    wide[:, : sees.shape[1]] = sees
    return wide
