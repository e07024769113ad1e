"""What rounds cost: of given shapes at one context, or at the least, for bounds, forecasts and what-ifs.

    ms = verify[nodes] + reading[catch_up] + sum over further layers of draft[width] + host of the layers and nodes

`cost.CellCosts.times` prices rounds of a replay, each at its context; tests hold both to the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...profiler.records.host_line import HostLine
from ..records.draft import Ints
from .table import CostTable, Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundTimes:
    """Milliseconds of each round by what they are spent on: (3, rounds), drafting, verifying and the host."""

    by_part: Floats

    @property
    def draft_ms(self) -> Floats:
        """(rounds,): all forwards of the drafter."""
        draft_ms: Floats = self.by_part[0]
        return draft_ms

    @property
    def verify_ms(self) -> Floats:
        """(rounds,): the target's forward."""
        verify_ms: Floats = self.by_part[1]
        return verify_ms

    @property
    def host_ms(self) -> Floats:
        """(rounds,): what a round takes beyond its forwards."""
        host_ms: Floats = self.by_part[2]
        return host_ms

    @property
    def total_ms(self) -> Floats:
        """(rounds,): whole rounds."""
        return self.draft_ms + self.verify_ms + self.host_ms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundCosts:
    """Milliseconds of rounds of one kind in a cell, by their shape alone."""

    verify: CostTable  # by tokens in the tree
    draft: CostTable | None  # by tokens of a forward; None where no model drafts, or several do
    host: HostLine
    batch: int

    def ms(self, nodes: Ints, catch_up: Ints, widths: Ints) -> Floats:
        """Return (rounds,): milliseconds; infinite where a forward is larger than all that were measured.

        `nodes` and `catch_up` (rounds,) are the verified tree's tokens, root included, and those committed since the
        last draft; `widths` (rounds, layers) are nodes of each layer, 0 where it is not drafted.
        """
        total: Floats = self.host.at((widths > 0).sum(axis=1), nodes) + _looked_up(self.verify, nodes)
        if self.draft is None or not widths.shape[1]:
            return total
        read = self.draft.caught_up(catch_up)
        reading_ms = self.draft.reading(int(read.max(initial=1)), self.batch)[0, read]
        further_ms: Floats = _looked_up(self.draft, self.draft.paid(widths)[:, 1:]).sum(axis=1)
        total += np.where(widths[:, 0] > 0, reading_ms, 0.0) + further_ms
        return total

    def chains_ms(self, lengths: Ints, catch_up: Ints) -> Floats:
        """Return (rounds,): likewise, of rounds with a chain, a token by each layer of the model; the text has none."""
        layers = np.arange(0 if self.draft is None else int(lengths.max(initial=0)))
        return self.ms(lengths + 1, catch_up, (layers < lengths[:, None]).astype(np.int64))


def _looked_up(table: CostTable, tokens: Ints) -> Floats:
    found: Floats = np.append(table.ms[0], np.inf)[np.minimum(tokens, table.most_tokens + 1)]
    return found
