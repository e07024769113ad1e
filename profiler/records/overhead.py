"""What the host adds to one round of speculation, per kind of policy."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadSample:
    """Rounds of one policy shape: round time minus its forwards timed alone; raw repeats are kept.

    It is the host's own work and what a forward loses by running between others.
    """

    kind: str  # the policy's kind, e.g. "chain"
    batch: int
    draft_forwards: int  # drafter forwards per round
    nodes: int  # tokens per sequence in the verified tree, root included
    host_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.kind or self.batch < 1 or self.draft_forwards < 0 or self.nodes < 0:
            raise MeasurementError(f"{self}: need a kind, batch >= 1, draft_forwards >= 0 and nodes >= 0")
        if not self.host_ms or not all(0.0 <= repeat < math.inf for repeat in self.host_ms):
            raise MeasurementError(f"{self}: host_ms needs at least one repeat, each finite and not negative")

    @property
    def median_ms(self) -> float:
        """Middle repeat in milliseconds."""
        return statistics.median(self.host_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOverhead:
    """Host time of a round on one device, fitted per (kind, batch) as a + b * draft_forwards + c * nodes."""

    device: str  # Device.fingerprint
    target: str  # ModelIdentity.key
    dtype: str
    samples: tuple[OverheadSample, ...]

    def __post_init__(self) -> None:
        if not (self.device and self.target and self.dtype and self.samples):
            raise MeasurementError("a round overhead needs device, target, dtype and at least one sample")

    def host_ms(self, kind: str, batch: int, draft_forwards: int, nodes: int) -> float:
        """Return the host milliseconds of one round; a, b, c >= 0, so never negative.

        One sample is that constant. Shapes beyond the samples follow the fitted line.

        Raises:
            MeasurementError: no sample of this kind at this batch.
        """
        samples = [sample for sample in self.samples if (sample.kind, sample.batch) == (kind, batch)]
        if not samples:
            known = sorted({(sample.kind, sample.batch) for sample in self.samples})
            raise MeasurementError(f"no host time for {kind!r} at batch {batch}; measured (kind, batch): {known}")
        shapes = np.array([[1.0, sample.draft_forwards, sample.nodes] for sample in samples])
        weights = non_negative_least_squares(shapes, np.array([sample.median_ms for sample in samples]))
        return float(weights @ np.array([1.0, draft_forwards, nodes]))


def non_negative_least_squares(rows: Floats, values: Floats) -> Floats:
    """Return the x >= 0 that minimises |rows @ x - values|, the sparsest where several do.

    The optimum is the unconstrained solution on some subset of the columns, so all subsets are tried:
    exact, and O(2^columns), meant for a handful of columns.

    Args:
        rows: (samples, columns).
        values: (samples,).

    Returns:
        (columns,).

    Source: the optimality conditions of non-negative least squares, Lawson and Hanson 1974, chapter 23.
    """
    columns = rows.shape[1]
    best, least = np.zeros(columns), float(values @ values)
    slack = 1e-12 * least
    for size in range(1, columns + 1):
        for subset in combinations(range(columns), size):
            part = np.linalg.lstsq(rows[:, subset], values, rcond=None)[0]
            error = float(np.sum((rows[:, subset] @ part - values) ** 2))
            if part.min() >= 0.0 and error < least - slack:
                best, least = np.zeros(columns), error
                best[list(subset)] = part
    return best
