"""What one strategy does at every row of a numbering of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels.rounds import Results
from .draft import Bools, Ints
from .recording import Recording


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionResults:
    """One policy at every row of a numbering of positions."""

    accepted: Ints  # (rows,), nodes of the verified tree on the target's own path
    sizes: Ints  # (rows,), nodes of the verified tree, root included
    censored: Bools  # (rows,), the trace lacks an expansion that could change the result
    widths: Ints  # (rows or 1, forwards), nodes of every drafter forward, 0 = did not run; 1: same everywhere

    @property
    def arrays(self) -> Results:
        """What kernels read and write."""
        return Results(self.accepted, self.sizes, self.censored, self.widths)


def empty_results(recording: Recording, forwards: int) -> PositionResults:
    """Return results to write into: zeros, no position censored."""
    rows = len(recording.roots)
    return PositionResults(
        accepted=np.zeros(rows, dtype=np.int64),
        sizes=np.ones(rows, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_),
        widths=np.zeros((rows, forwards), dtype=np.int64),
    )


def same_everywhere(widths: tuple[int, ...]) -> Ints:
    """Return (1, forwards): widths that are the same at all positions."""
    return np.array(widths, dtype=np.int64)[None]


def of_one_size(accepted: Ints, size: int, widths: tuple[int, ...], censored: Bools | None = None) -> PositionResults:
    """Return the results of trees of one size and one shape."""
    rows = len(accepted)
    return PositionResults(
        accepted=accepted,
        sizes=np.full(rows, size, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_) if censored is None else censored,
        widths=same_everywhere(widths),
    )
