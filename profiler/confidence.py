"""Measure and mend the calibration of a drafter's confidence.

A node's survival is the probability that it lies on the target's own path; the drafter's path probability is a guess of
it. Isotonic regression finds the best guess that ranks nodes of one depth as the drafter does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import MeasurementError
from .records.acceptance import AcceptanceTrace
from .records.calibration import Calibration, Reliability, ReliabilityBin, SurvivalCurve
from .scored_nodes import ScoredNodes, scored_nodes

LEAST_HITS = 50  # nodes on the target's path that a depth needs for a curve of its own
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


def reliability(confidences: Floats, is_hit: Bools, bins: int = 10) -> Reliability:
    """Return the reliability of (nodes,) confidences in equal, filled bins; MeasurementError without any."""
    if not len(confidences) or not ((confidences >= 0.0) & (confidences <= 1.0)).all():
        raise MeasurementError("a reliability curve needs confidences in [0, 1], at least one")
    places = np.minimum((confidences * bins).astype(np.int64), bins - 1)
    counts = np.bincount(places, minlength=bins)
    said = np.bincount(places, weights=confidences, minlength=bins)
    came = np.bincount(places, weights=is_hit, minlength=bins)
    return Reliability(
        bins=tuple(
            ReliabilityBin(
                low=place / bins,
                high=(place + 1) / bins,
                count=int(counts[place]),
                confidence=float(min(said[place] / counts[place], 1.0)),
                frequency=float(came[place] / counts[place]),
            )
            for place in np.flatnonzero(counts).tolist()
        )
    )


def step_reliability(trace: AcceptanceTrace, bins: int = 10, least: float = 0.0) -> Reliability:
    """Return conditional probabilities against how often nodes below the target's path continue it.

    Nodes less probable than `least` are left out; MeasurementError where none is left.
    """
    nodes = scored_nodes(trace)
    chosen = nodes.is_below_hit & (np.exp(nodes.log_probs) >= least)
    rounded = np.minimum(np.exp(nodes.log_probs[chosen]), 1.0)  # a rounded log-softmax may exceed 0 a little
    return reliability(rounded, nodes.is_hit[chosen], bins)


def fit_calibration(trace: AcceptanceTrace, prompts: Sequence[int] | None = None) -> Calibration:
    """Return a drafter's survival curves, one per depth while nodes suffice.

    It learns from the prompts at these places, or all; MeasurementError without any.
    """
    if prompts is not None and not len(prompts):
        raise MeasurementError("a calibration needs prompts to learn from; give some")
    nodes = scored_nodes(trace, prompts)
    is_finite = np.isfinite(nodes.path_log_probs)
    hits = np.bincount(nodes.depths[nodes.is_hit & is_finite], minlength=2)[1:]
    own = int(np.argmin(np.append(hits, 0) >= LEAST_HITS))  # depths that have hits enough
    deepest = max(own, 1)
    curves = [
        _curve(nodes, is_finite & ((nodes.depths == depth) if depth < deepest else (nodes.depths >= depth)))
        for depth in range(1, deepest + 1)
    ]
    return Calibration(
        target=trace.target,
        drafter=trace.drafter,
        workload=trace.workload,
        temperature=trace.temperature,
        prompts=len(trace.prompts) if prompts is None else len(prompts),
        curves=tuple(curves),
    )


def _curve(nodes: ScoredNodes, chosen: Bools) -> SurvivalCurve:
    from scipy.optimize import isotonic_regression

    values, inverse, weights = np.unique(nodes.path_log_probs[chosen], return_inverse=True, return_counts=True)
    shares = np.bincount(inverse, weights=nodes.is_hit[chosen]) / weights
    fitted = isotonic_regression(shares, weights=weights)
    starts, ends = fitted.blocks[:-1], fitted.blocks[1:] - 1
    corners = np.unique(np.concatenate([starts, ends]))
    return SurvivalCurve(
        log_probs=tuple(values[corners].tolist()),
        survivals=tuple(np.clip(fitted.x[corners], 0.0, 1.0).tolist()),
        nodes=int(chosen.sum()),
    )
