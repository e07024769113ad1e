"""Which of the priced candidates a cell uses, and what it promises."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .candidate import Candidate
from .cost import Cell, Floats
from .estimate import optimism, relative_error, resampled_rates
from .plan import Alternative, ErrorParts, PlanCell, Prediction
from .policy import PlainPolicy

SIMPLICITY = {"plain": 0, "lookup": 1, "chain": 2, "static": 3, "eagle2": 4, "cast": 4}
TIE = 0.01  # relative distance below which two speeds are equal, whatever the texts say
DRIFT = 0.02  # relative standard error of a device between measuring and decoding, at least
SDS_OF_90_PERCENT = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceErrors:
    """Relative errors of the measured latencies: of the target, and by drafter name."""

    verify: float
    drafts: dict[str, float]


def planned_cell(cell: Cell, candidates: list[Candidate], weights: Floats, errors: SurfaceErrors) -> PlanCell:
    """Return the cell's plan; plain decoding must be among the candidates.

    The choice is the simplest candidate within noise of the fastest. Where a promise freed of its
    optimism is no faster than plain decoding, plain decoding is chosen.

    Args:
        weights: (resamples, texts), how often each text is drawn.
    """
    rates = resampled_rates(candidates, weights)
    plain = next(place for place, candidate in enumerate(candidates) if isinstance(candidate.policy, PlainPolicy))
    best, flattery = simplest_of_the_fastest(candidates, rates), optimism(candidates)
    if candidates[best].tokens_per_s * (1.0 - flattery) <= candidates[plain].tokens_per_s:
        best = plain
    promise = Promise(candidates=candidates, rates=rates, plain=plain, errors=errors, texts=weights.shape[1])
    others = alternatives(candidates, candidates[best])
    return PlanCell(
        batch=cell.batch,
        context=cell.context,
        policy=candidates[best].policy,
        drafter=candidates[best].drafter,
        run_tokens=candidates[best].run_tokens,
        prediction=promise.of(best, 0.0 if best == plain else flattery),
        plain=promise.of(plain, 0.0),
        runner_up=others[0] if others else None,
        alternatives=others,
    )


def simplest_of_the_fastest(candidates: list[Candidate], rates: Floats) -> int:
    """Return the place of the simplest candidate whose distance to the fastest is noise.

    Noise is the larger of 1 % and the standard error of the paired difference over resampled
    texts. Simpler: no drafter, lookup, chain, static tree, dynamic tree; then fewer verify tokens.

    Args:
        rates: (candidates, resamples), tokens per millisecond.
    """
    speeds = np.array([candidate.tokens_per_s for candidate in candidates])
    best = int(speeds.argmax())
    noise = (rates[best] - rates).std(axis=1) * 1000.0
    near = np.flatnonzero(speeds[best] - speeds <= np.maximum(noise, TIE * speeds[best]))
    return int(min(near, key=lambda place: (*_complexity(candidates[place]), -speeds[place])))


def alternatives(candidates: list[Candidate], chosen: Candidate) -> tuple[Alternative, ...]:
    """Return the fastest of every other kind and drafter, fastest first."""
    fastest: dict[tuple[str, str | None], Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.tokens_per_s):
        fastest.setdefault((candidate.policy.kind, candidate.drafter), candidate)
    fastest.pop((chosen.policy.kind, chosen.drafter))
    return tuple(
        Alternative(
            label=candidate.policy.label,
            policy=candidate.policy,
            drafter=candidate.drafter,
            tokens_per_s=candidate.tokens_per_s,
        )
        for candidate in fastest.values()
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promise:
    """Turns candidates of one cell into predictions.

    Attributes:
        rates: (candidates, resamples), paired.
        plain: place of plain decoding.
        texts: how many were recorded.
    """

    candidates: list[Candidate]
    rates: Floats
    plain: int
    errors: SurfaceErrors
    texts: int

    def of(self, place: int, flattery: float) -> Prediction:
        """Return a candidate's prediction after taking the relative flattery off its tokens."""
        chosen, plain = self.candidates[place], self.candidates[self.plain]
        own, plainly = self.rates[place], self.rates[self.plain]
        usable = (own > 0.0) & (plainly > 0.0)  # with few texts a resample may hold none of a steady round
        parts = self._parts(chosen, own[usable], flattery)
        relative = self._parts(chosen, own[usable] / plainly[usable], flattery)
        speed = chosen.tokens_per_s * (1.0 - flattery)
        speedup = speed / plain.tokens_per_s
        margin, speedup_margin = _margin(parts), 0.0 if place == self.plain else _margin(relative)
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

    def _parts(self, chosen: Candidate, rates: Floats, flattery: float) -> ErrorParts:
        verify = self.errors.verify * chosen.verify_ms / chosen.round_ms
        draft = self.errors.drafts.get(chosen.drafter or "", 0.0) * chosen.draft_ms / chosen.round_ms
        return ErrorParts(
            acceptance=math.sqrt(2.0) * relative_error(rates, self.texts),
            surfaces=math.hypot(verify, draft),
            drift=DRIFT,
            optimism=flattery,
        )


def _margin(parts: ErrorParts) -> float:
    return SDS_OF_90_PERCENT * math.hypot(parts.acceptance, parts.surfaces, parts.drift)


def _complexity(candidate: Candidate) -> tuple[int, int]:
    return SIMPLICITY[candidate.policy.kind], candidate.policy.max_verify_tokens
