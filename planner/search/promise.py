"""What a choice promises: its speed, and how far what was measured and recorded leaves that open."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from ...profiler.records.measurement import NORMAL_FROM_MAD
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.surface import LatencySurface
from ..inputs import PlanInputs, resumes_of
from ..plans.prediction import ErrorParts, Prediction
from ..pricing.cost import Floats
from ..pricing.pace import APART, pace_error
from ..strategies import drafting
from ..strategies.stack import StackPolicy
from .candidate import Candidate
from .estimate import of_few, relative_error

FEWEST_JUDGED = 5  # held-out shapes from which a surface's error is taken
UNKNOWN_ERROR = 0.10  # taken as a surface's relative error where single repeats leave it open
DRIFT = 0.02  # least relative standard deviation of a device within a session


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceErrors:
    """Relative errors of what was measured: target, drafters by name, host, and all of them by the device's pace."""

    verify: float
    drafts: dict[str, float]
    apart: float = DRIFT  # of a plan's rounds against plain ones, between profile and use
    pace: float = DRIFT  # of the whole device meanwhile, which both share
    resumed: dict[str, float] = field(default_factory=dict)  # of verifications from an exit's states, by its name
    host: dict[int, float] = field(default_factory=dict)  # by batch, of a round's time beyond its forwards

    def verify_of(self, candidate: Candidate) -> float:
        """Return the error of a candidate's verification."""
        if candidate.policy.kind == "resumed":
            return self.resumed[candidate.drafter or ""]
        return self.verify

    def draft_of(self, candidate: Candidate) -> float:
        """Return the error of a candidate's drafting, of a stack that of its worst known model; 0 without a model."""
        drafts = drafting(candidate.policy)
        names = drafts.models if isinstance(drafts, StackPolicy) else (candidate.drafter or "",)
        return max(self.drafts.get(name, 0.0) for name in names)


def errors_of(inputs: PlanInputs) -> SurfaceErrors:
    """Return the relative errors of what was measured."""
    drift = max(DRIFT, math.sqrt(2.0) * inputs.verify.drift())  # the moment of measuring is a sample, too
    pace = pace_error(inputs.device.kind, inputs.paces)
    return SurfaceErrors(
        verify=_error(inputs.verify),
        drafts={drafter.name: _error(drafter.surface) for drafter in inputs.drafters},
        resumed={name: _error(surface) for name, surface in resumes_of(inputs).items()},
        apart=max(drift, APART * pace),
        pace=max(drift, pace),
        host={batch: _host_error(inputs.overhead, batch) for batch in inputs.verify.batches},
    )


def _host_error(overhead: RoundOverhead, batch: int) -> float:
    """Return the relative standard error of the host's fitted lines against the times at a batch size."""
    left = overhead.residuals(batch)
    return NORMAL_FROM_MAD * statistics.median(left) if len(left) >= FEWEST_JUDGED else UNKNOWN_ERROR


def _error(surface: LatencySurface) -> float:
    known = known_error(surface)
    return UNKNOWN_ERROR if known is None else known


def known_error(surface: LatencySurface) -> float | None:
    """Return a surface's relative standard error, at held-out shapes if timed; None where single repeats hide it."""
    judged = [held.error for held in surface.held_out()]
    if len(judged) >= FEWEST_JUDGED:
        return NORMAL_FROM_MAD * statistics.median(judged)
    error = surface.relative_error()
    return error if math.isfinite(error) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promise:
    """Turns a chosen candidate and plain decoding of one cell into predictions."""

    rates: Floats  # (2, resamples), paired: of the chosen one and of plain decoding
    plain: Candidate
    errors: SurfaceErrors
    texts: int  # how many were recorded
    batch: int

    def of(self, chosen: Candidate, flattery: float) -> Prediction:
        """Return a candidate's prediction after taking the relative flattery off its tokens."""
        is_plain = chosen is self.plain
        own, plainly = self.rates[1 if is_plain else 0], self.rates[1]
        usable = (own > 0.0) & (plainly > 0.0)  # with few texts a resample may hold none of a steady round
        timed, both = self._timed(chosen), math.hypot(self._timed(chosen), self._timed(self.plain))
        parts = self._parts(own[usable], timed, self.errors.pace, flattery)
        relative = self._parts(own[usable] / plainly[usable], both, self.errors.apart, flattery)
        speed = chosen.tokens_per_s * (1.0 - flattery)
        speedup = speed / self.plain.tokens_per_s
        margin, speedup_margin = parts.margin, 0.0 if is_plain else relative.margin
        return Prediction(
            tokens_per_s=speed,
            low=speed * max(1.0 - margin, 0.0),
            high=speed * (1.0 + margin),
            tokens_per_round=chosen.tokens_per_round * (1.0 - flattery),
            round_ms=chosen.round_ms,
            draft_ms=chosen.draft_ms,
            verify_ms=chosen.verify_ms,
            host_ms=chosen.host_ms,
            speedup_over_plain=speedup,
            speedup_low=speedup * max(1.0 - speedup_margin, 0.0),
            speedup_high=speedup * (1.0 + speedup_margin),
            errors=parts,
        )

    def _timed(self, candidate: Candidate) -> float:
        verify = self.errors.verify_of(candidate) * candidate.verify_ms
        draft = self.errors.draft_of(candidate) * candidate.draft_ms
        host = self.errors.host.get(self.batch, 0.0) * candidate.host_ms
        return math.hypot(verify, draft, host) / candidate.round_ms

    def _parts(self, rates: Floats, timed: float, drift: float, flattery: float) -> ErrorParts:
        acceptance = of_few(math.sqrt(2.0) * relative_error(rates, self.texts), self.texts)
        return ErrorParts(acceptance=acceptance, surfaces=timed, drift=drift, optimism=flattery)
