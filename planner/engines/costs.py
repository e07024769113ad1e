"""What a round of an engine costs at settings that were not measured, from a few that were.

At one concurrency, a round that drafts with a share s of its sequences, d tokens per sequence on average, takes

    T = a + s (o + V(d / s)) + m f        f = d where a model m drafts, 0 where the text does

a is a plain round, o the cost of speculating at any length, V of verifying drafted tokens, m of a drafter's forward. V
is piecewise linear with bends at `BENDS`: tokens cost less in a forward that waits for memory than in one that
computes; else searches that draft often and little would pay for those that draft seldom and much. All are fitted
together over all sources, none negative, by relative errors. A bend without measurements stays straight.

Engines have steps that no line has, so each source's line is scaled, linearly between lengths, to its measurements.

Source: non-negative least squares, Lawson and Hanson 1974, chapter 23.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...profiler.records.least_squares import non_negative_fit

Floats = NDArray[np.float64]
PLAIN = "plain"  # the source that drafts nothing
PLAIN_WEIGHT = 10.0  # of plain decoding in the fit: what seldom drafts must cost what it does, not more and not less
BENDS = (2.0, 4.0, 8.0)  # drafted tokens of a sequence in one round
PIECES = slice(2, 3 + len(BENDS))  # of V, among the coefficients
CERTAIN = 0.03  # relative error of a sample below which it counts no more
STRAIGHT = 0.3  # a timing that is 3 % off weighs as much as neighbouring pieces of V a tenth of a plain round apart


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """What the rounds of one setting look like on average."""

    source: str  # who drafts: "plain", a drafter's name, or a text source's
    is_model: bool  # whether a forward of a model makes each drafted token
    length: int  # most tokens of a draft; 0 for plain decoding
    share: float  # of a sequence's rounds that draft at all
    drafted: float  # tokens per sequence and round

    def __post_init__(self) -> None:
        is_plain = self.source == PLAIN
        if is_plain != (self.length == 0) or not 0.0 <= self.share <= 1.0 or not 0.0 <= self.drafted <= self.length:
            raise PlanError(f"a round drafts 0 to its length of tokens, in a share of rounds, plain ones 0; got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSample:
    """A setting that was measured: milliseconds of a round, and the standard error relative to them."""

    shape: RoundShape
    ms: float
    error: float

    def __post_init__(self) -> None:
        if not 0.0 < self.ms < math.inf or not 0.0 <= self.error < math.inf:
            raise PlanError(f"a round takes positive milliseconds with a finite error, got {self.ms} and {self.error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """What a round costs: its drafter's forwards and the rest, and how far off that may be, relatively."""

    draft_ms: float
    rest_ms: float
    error: float

    @property
    def ms(self) -> float:
        """All of it."""
        return self.draft_ms + self.rest_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRoundCosts:
    """The cost of rounds at one concurrency; letters are those of the formula above."""

    plain_ms: float  # a
    drafting_ms: float  # o
    token_ms: tuple[float, ...]  # of a verified token in each piece of V, the last of which has no end
    forward_ms: Mapping[str, float]  # m of each drafter
    scales: Mapping[str, Mapping[int, float]]  # of each source, by measured length, measurement over line
    errors: Mapping[str, Mapping[int, float]]  # likewise, relative standard errors
    misfit: float  # what the line leaves unexplained, relative: the error of an unmeasured length
    has_text: bool  # whether a source that is no model was measured

    def at(self, shape: RoundShape) -> RoundCost:
        """Return what a round of that shape costs.

        PlanError: its source, or a model's draft that long, was not measured. Text sources replace each other.
        """
        scales = self.scales.get(shape.source)
        if not scales:
            return self._unseen(shape)
        if shape.is_model and shape.length > max(scales):
            raise PlanError(
                f"drafts of {shape.length} tokens by {shape.source} are longer than the {max(scales)} that were "
                "measured; profile the engine with longer ones"
            )
        lengths = sorted(scales)
        scale = float(np.interp(shape.length, lengths, [scales[length] for length in lengths]))
        forward_ms = self.forward_ms[shape.source] * shape.drafted if shape.is_model else 0.0
        own = self.errors[shape.source]
        error = own[shape.length] if shape.length in own else math.hypot(max(own.values()), self.misfit)
        return RoundCost(draft_ms=scale * forward_ms, rest_ms=scale * self.rest_ms(shape), error=error)

    def rest_ms(self, shape: RoundShape) -> float:
        """Return what the line says of a round but for its drafter's forwards."""
        pieces = zip(self.token_ms, _by_piece(shape), strict=True)
        return self.plain_ms + self.drafting_ms * shape.share + sum(ms * tokens for ms, tokens in pieces)

    def _unseen(self, shape: RoundShape) -> RoundCost:
        """Return the line's cost of an unmeasured text source, where another one was measured."""
        if shape.is_model or not self.has_text:
            raise PlanError(f"no round of {shape.source} was measured; profile the engine with it")
        known = [error for errors in self.errors.values() for error in errors.values()]
        return RoundCost(draft_ms=0.0, rest_ms=self.rest_ms(shape), error=math.hypot(max(known), self.misfit))


def fit_costs(samples: Sequence[RoundSample]) -> EngineRoundCosts:
    """Return the costs of one concurrency; PlanError: plain decoding is missing, or a (source, length) occurs twice."""
    places = [(sample.shape.source, sample.shape.length) for sample in samples]
    if len(set(places)) < len(places):
        raise PlanError(f"a setting was given twice among {sorted(places)}; join its repeats first")
    if (PLAIN, 0) not in places:
        raise PlanError("plain decoding was not measured, and every other cost is relative to it; profile the engine")
    models = sorted({sample.shape.source for sample in samples if sample.shape.is_model})
    rows = np.array([_row(sample.shape, models) for sample in samples])
    ms = np.array([sample.ms for sample in samples])
    weights = np.array([_weight(sample) for sample in samples])
    plain_ms = ms[places.index((PLAIN, 0))]
    straight = STRAIGHT / plain_ms * _bends(rows.shape[1])
    found = non_negative_fit(
        np.vstack([rows * (weights / ms)[:, None], straight]), np.append(weights, np.zeros(len(straight)))
    )
    told = rows @ found
    scales: dict[str, dict[int, float]] = {}
    errors: dict[str, dict[int, float]] = {}
    for sample, said in zip(samples, told, strict=True):
        scales.setdefault(sample.shape.source, {})[sample.shape.length] = sample.ms / float(said)
        errors.setdefault(sample.shape.source, {})[sample.shape.length] = sample.error
    return EngineRoundCosts(
        plain_ms=float(found[0]),
        drafting_ms=float(found[1]),
        token_ms=tuple(found[PIECES].tolist()),
        forward_ms={name: float(value) for name, value in zip(models, found[PIECES.stop :], strict=True)},
        scales=scales,
        errors=errors,
        misfit=float(np.sqrt(np.mean((told / ms - 1.0) ** 2))),
        has_text=any(sample.shape.length and not sample.shape.is_model for sample in samples),
    )


def _weight(sample: RoundSample) -> float:
    """Return how much a sample counts: uncertain ones less, none more than the line's own accuracy."""
    certainty = CERTAIN / math.hypot(CERTAIN, sample.error)
    return PLAIN_WEIGHT * certainty if sample.shape.source == PLAIN else certainty


def _row(shape: RoundShape, models: Sequence[str]) -> list[float]:
    """Return a round's factor of each coefficient: a, o, the pieces of V, then m of each model."""
    own = [shape.drafted if shape.is_model and shape.source == name else 0.0 for name in models]
    return [1.0, shape.share, *_by_piece(shape), *own]


def _by_piece(shape: RoundShape) -> list[float]:
    """Return how many of a round's drafted tokens lie in each piece of V, per sequence."""
    together = shape.drafted / shape.share if shape.share else 0.0
    ends = [0.0, *BENDS, math.inf]
    return [shape.share * (min(max(together, start), end) - start) for start, end in pairwise(ends)]


def _bends(coefficients: int) -> Floats:
    """Return (bends, coefficients): the difference of neighbouring pieces of V."""
    rows = np.zeros((len(BENDS), coefficients))
    for row, piece in enumerate(range(PIECES.start, PIECES.stop - 1)):
        rows[row, piece : piece + 2] = (-1.0, 1.0)
    return rows
