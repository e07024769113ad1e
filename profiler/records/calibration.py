"""How far a drafter's confidence can be trusted: what it said, what came true, and a map from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """The nodes whose confidence lies in [low, high); the last bin includes 1."""

    low: float
    high: float
    count: int
    confidence: float  # mean of what was said
    frequency: float  # share that came true

    def __post_init__(self) -> None:
        if self.count < 1 or not 0.0 <= self.low < self.high <= 1.0:
            raise MeasurementError(f"{self}: a bin needs nodes and 0 <= low < high <= 1")
        if not 0.0 <= self.confidence <= 1.0 or not 0.0 <= self.frequency <= 1.0:
            raise MeasurementError(f"{self}: confidence and frequency are shares in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """A reliability curve: the bins that hold nodes, in ascending order."""

    bins: tuple[ReliabilityBin, ...]

    def __post_init__(self) -> None:
        lows = [one.low for one in self.bins]
        if not lows or sorted(set(lows)) != lows:
            raise MeasurementError(f"a reliability curve needs bins in ascending order, got lows {lows}")

    @property
    def count(self) -> int:
        """Nodes in all bins."""
        return sum(one.count for one in self.bins)

    @property
    def expected_error(self) -> float:
        """Expected calibration error: mean over nodes of |confidence - frequency| of their bin.

        Source: Guo et al. 2017, arXiv:1706.04599, Eq. 3.
        """
        return sum(one.count * abs(one.confidence - one.frequency) for one in self.bins) / self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalCurve:
    """Survival by path log-probability at one depth: never falling, straight between its points, level beyond."""

    log_probs: tuple[float, ...]
    survivals: tuple[float, ...]
    nodes: int  # it was fitted on

    def __post_init__(self) -> None:
        if not self.log_probs or len(self.log_probs) != len(self.survivals) or self.nodes < 1:
            raise MeasurementError("a survival curve needs as many survivals as log_probs, and nodes it is fitted on")
        if not (np.isfinite(self.log_probs).all() and (np.diff(self.log_probs) >= 0).all()):
            raise MeasurementError("log_probs of a survival curve must be finite and ascending")
        if not (np.diff(self.survivals) >= 0).all() or self.survivals[0] < 0.0 or self.survivals[-1] > 1.0:
            raise MeasurementError("survivals must ascend within [0, 1]")

    def at(self, log_probs: Floats) -> Floats:
        """Return the survivals at any path log-probabilities."""
        return np.interp(log_probs, self.log_probs, self.survivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibrated survival of one drafter: the probability that a drafted node lies on the target's own path.

    It holds for nodes that growth rules expand. A child may have more than its parent, by noise or as depths are fitted
    apart; a prefix-closed tree needs the smaller.
    """

    target: str  # ModelIdentity.key
    drafter: str  # ModelIdentity.key, or a name for a drafter without weights
    workload: str
    temperature: float
    prompts: int  # it was fitted on
    curves: tuple[SurvivalCurve, ...]  # of depth 1, 2, ...; the last one is of all greater depths, too

    def __post_init__(self) -> None:
        if not (self.target and self.drafter and self.workload and self.curves) or self.prompts < 1:
            raise MeasurementError("a calibration needs target, drafter, workload, prompts and at least one curve")

    def survival(self, depth: int, log_probs: Floats) -> Floats:
        """Return the probability that (nodes,) at a depth from 1 (MeasurementError) are on the path; 0 for -inf."""
        if depth < 1:
            raise MeasurementError(f"drafted nodes lie at depth 1 or more, got {depth}")
        curve = self.curves[min(depth, len(self.curves)) - 1]
        return np.where(np.isneginf(log_probs), 0.0, curve.at(log_probs))
