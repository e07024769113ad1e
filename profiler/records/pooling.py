"""What all cells of a surface together say of each, for long forwards that are timed only a few times.

A forward's cost has a simple form, in batch b, context c and n tokens per sequence:

    t(b, c, n) = F(b n) + (g1 b + g2 b n) (c - c0) + g3 (b - 1)        F never falls, g1, g2, g3 >= 0

F is the linear layers' time for b n rows, straight between measured rows. g1 reads the KV cache, g2 is attention, g3
what every sequence adds. The least-squares fit is non-negative, robust by Huber's weights. A cell's cost is then its
own calls' median and the fit's, weighed by their precisions.

Source: Efron and Morris 1975, Data analysis using Stein's estimator, for the weights; the form is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .measurement import MEDIAN_OVER_MEAN, NORMAL_FROM_MAD, Measurement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONG_MS = 10.0  # a call this long reads more weights than caches hold, and is timed few times
WELL_KNOWN = 0.01  # relative standard error below which a cell is left as it was timed
LEAST_ERROR = 0.005  # relative, of a cell's own median
LEAST_MISFIT = 0.01  # relative, of the form itself
ROUNDS, HUBER = 5, 1.5  # of reweighting; standard deviations beyond which a cell counts less


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shapes:
    """Batch, context and tokens of cells, (cells,) each."""

    batches: Ints
    contexts: Ints
    tokens: Ints

    @classmethod
    def of(cls, shapes: Sequence[tuple[int, int, int]]) -> Shapes:
        """Return (batch, context, tokens) of cells as columns."""
        columns = np.array(shapes, dtype=np.int64).reshape(-1, 3)
        return cls(batches=columns[:, 0], contexts=columns[:, 1], tokens=columns[:, 2])


def pooled(shapes: Shapes, ms: Floats, errors: Floats) -> Floats:
    """Return (cells,): each distinct cell's milliseconds and the fit's, weighed by their precisions.

    `errors` (cells,) are relative standard errors of `ms`; an infinite one leaves a cell to the others.
    """
    known = np.isfinite(errors)
    if known.sum() < 2 or not np.isfinite(ms).all():
        return ms
    errors = np.maximum(errors, LEAST_ERROR)
    fitted = _fitted(shapes, ms, np.where(known, errors, np.inf))
    apart = np.log(ms / fitted)[known]
    misfit = (NORMAL_FROM_MAD * np.median(np.abs(apart))) ** 2 - float(np.median(errors[known] ** 2))
    own, common = 1.0 / errors**2, 1.0 / max(misfit, LEAST_MISFIT**2)
    posterior: Floats = np.exp((own * np.log(ms) + common * np.log(fitted)) / (own + common))
    return posterior


def pooled_cells(cells: Sequence[Measurement]) -> Floats:
    """Return (cells,): milliseconds of cells of one surface that ran; as timed where calls are short or agree."""
    ms = np.array([cell.median_ms for cell in cells], dtype=np.float64)
    if float(ms.min(initial=np.inf)) < LONG_MS:
        return ms
    own = [np.log(np.array(cell.steady_ms) / middle) for cell, middle in zip(cells, ms, strict=True)]
    several = [np.abs(calls) * np.sqrt(len(calls) / (len(calls) - 1)) for calls in own if len(calls) > 1]
    if not several:
        return ms
    noise = NORMAL_FROM_MAD * float(np.median(np.concatenate(several)))
    errors = MEDIAN_OVER_MEAN * noise / np.sqrt([len(calls) for calls in own])
    if np.median(errors) < WELL_KNOWN:
        return ms
    return pooled(Shapes.of([(cell.batch, cell.context_tokens, cell.tokens) for cell in cells]), ms, errors)


def _fitted(shapes: Shapes, ms: Floats, errors: Floats) -> Floats:
    from scipy.optimize import nnls

    known = np.isfinite(errors)
    columns, weights = _columns(shapes, known), np.where(known, 1.0 / (ms * errors), 0.0)
    trust, fitted = np.ones(len(ms)), ms
    for _ in range(ROUNDS):
        scale = weights * trust
        values, _ = nnls(columns * scale[:, None], ms * scale)
        fitted = np.maximum(columns @ values, 1e-3 * ms)
        far = np.abs(np.log(ms / fitted)) / (HUBER * np.hypot(errors, LEAST_MISFIT))
        trust = 1.0 / np.sqrt(np.maximum(far, 1.0))
    return fitted


def _columns(shapes: Shapes, known: Bools) -> Floats:
    """Return (cells, parameters): what every parameter of the form adds to every cell; F bends at known cells."""
    rows = shapes.batches * shapes.tokens
    knots = np.unique(rows[known])
    rises = np.clip((rows[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    beyond = shapes.contexts - shapes.contexts.min()
    return np.column_stack([np.ones(len(rows)), rises, shapes.batches * beyond, rows * beyond, shapes.batches - 1])
