"""What a round of an engine costs at settings that were not measured, from a few that were.

Of one concurrency, a round that drafts with a share s of its sequences, d tokens per sequence on average, takes

    T = a + o s + v d + m f        f = d where a model m drafts, 0 where the text does

a is a plain round, o what speculating costs whatever the length, v a verified token, m a forward of the drafter. They
are fitted together over all sources, none negative, errors counted relatively: every source verifies at one price.
Engines have steps that no straight line has, so each source is then scaled to go through what was measured of it, and
between two measured lengths by the straight line between their scales.

Source: non-negative least squares, Lawson and Hanson 1974, chapter 23.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError

Floats = NDArray[np.float64]
PLAIN = "plain"  # the source that drafts nothing
PLAIN_WEIGHT = 10.0  # of plain decoding in the fit: what seldom drafts must cost what it does, not more and not less


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """What the rounds of one setting look like on average.

    Attributes:
        source: who drafts: "plain", a drafter's name, or a text source's.
        is_model: whether a forward of a model makes each drafted token.
        length: most tokens of a draft; 0 for plain decoding.
        share: of a sequence's rounds that draft at all.
        drafted: tokens per sequence and round.
    """

    source: str
    is_model: bool
    length: int
    share: float
    drafted: float

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
class RoundCosts:
    """The cost of rounds at one concurrency.

    Attributes:
        plain_ms, drafting_ms, token_ms: a, o and v.
        forward_ms: m of each drafter.
        scales: of each source, by measured length, what was measured over what the line says.
        errors: likewise, relative standard errors of what was measured.
        misfit: what the line leaves unexplained, relatively: the error of a length that was not measured.
        has_text: whether a source that is no model was measured.
    """

    plain_ms: float
    drafting_ms: float
    token_ms: float
    forward_ms: Mapping[str, float]
    scales: Mapping[str, Mapping[int, float]]
    errors: Mapping[str, Mapping[int, float]]
    misfit: float
    has_text: bool

    def at(self, shape: RoundShape) -> RoundCost:
        """Return what a round of that shape costs.

        Raises:
            PlanError: nothing of its source was measured, or no draft as long as a model's. Text sources stand in for
                each other: what they draft costs the same.
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
        rest_ms = self.plain_ms + self.drafting_ms * shape.share + self.token_ms * shape.drafted
        own = self.errors[shape.source]
        error = own[shape.length] if shape.length in own else math.hypot(max(own.values()), self.misfit)
        return RoundCost(draft_ms=scale * forward_ms, rest_ms=scale * rest_ms, error=error)

    def _unseen(self, shape: RoundShape) -> RoundCost:
        """Return what the line says of a text source that was not measured itself, where another one was."""
        if shape.is_model or not self.has_text:
            raise PlanError(f"no round of {shape.source} was measured; profile the engine with it")
        rest_ms = self.plain_ms + self.drafting_ms * shape.share + self.token_ms * shape.drafted
        known = [error for errors in self.errors.values() for error in errors.values()]
        return RoundCost(draft_ms=0.0, rest_ms=rest_ms, error=math.hypot(max(known), self.misfit))


def fit_costs(samples: Sequence[RoundSample]) -> RoundCosts:
    """Return the costs of one concurrency.

    Args:
        samples: of any sources and lengths, plain decoding among them, each (source, length) once.

    Raises:
        PlanError: plain decoding was not measured, or a setting stands twice.
    """
    places = [(sample.shape.source, sample.shape.length) for sample in samples]
    if len(set(places)) < len(places):
        raise PlanError(f"a setting was given twice among {sorted(places)}; join its repeats first")
    if (PLAIN, 0) not in places:
        raise PlanError("plain decoding was not measured, and every other cost is told beside it; profile the engine")
    models = sorted({sample.shape.source for sample in samples if sample.shape.is_model})
    rows = np.array([_row(sample.shape, models) for sample in samples])
    ms = np.array([sample.ms for sample in samples])
    weights = np.array([PLAIN_WEIGHT if sample.shape.source == PLAIN else 1.0 for sample in samples])
    found = _non_negative_fit(rows * (weights / ms)[:, None], weights)
    told = rows @ found
    scales: dict[str, dict[int, float]] = {}
    errors: dict[str, dict[int, float]] = {}
    for sample, said in zip(samples, told, strict=True):
        scales.setdefault(sample.shape.source, {})[sample.shape.length] = sample.ms / float(said)
        errors.setdefault(sample.shape.source, {})[sample.shape.length] = sample.error
    return RoundCosts(
        plain_ms=float(found[0]),
        drafting_ms=float(found[1]),
        token_ms=float(found[2]),
        forward_ms={name: float(value) for name, value in zip(models, found[3:], strict=True)},
        scales=scales,
        errors=errors,
        misfit=float(np.sqrt(np.mean((told / ms - 1.0) ** 2))),
        has_text=any(sample.shape.length and not sample.shape.is_model for sample in samples),
    )


def _row(shape: RoundShape, models: Sequence[str]) -> list[float]:
    """Return what a round holds of each coefficient: a, o, v, then m of each model."""
    own = [shape.drafted if shape.is_model and shape.source == name else 0.0 for name in models]
    return [1.0, shape.share, shape.drafted, *own]


def _non_negative_fit(rows: Floats, values: Floats) -> Floats:
    from scipy.optimize import nnls

    found: Floats = nnls(rows, values)[0]
    return found
