"""Which of a cell's priced candidates may be used, which of them it would take by itself, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .candidate import Candidate
from .contest import Contest
from .cost import Floats
from .crossfit import cross_fitted_rate
from .estimate import by_text, relative_error, resampled_rates
from .objective import LatencyBound
from .plan import Alternative, ErrorParts, PlanCell, Prediction, PublishedPrice, StackForecast
from .policy import LookupPolicy, PlainPolicy
from .schedule import Way
from .sensitivity import outlook_of
from .shape import ShapeFacts

SIMPLICITY = {  # of equally many models and nodes: shapes known before the round, then those that grow
    "plain": 0,
    "lookup": 0,
    "chain": 0,
    "static": 1,
    "confident-chain": 2,
    "eagle2": 3,
    "talon": 3,
    "opt-tree": 3,
    "cast": 4,
}
TIE = 0.01  # relative distance below which two speeds are equal, whatever the texts say
TIE_MOST = 0.02  # relative distance above which they are not, however few the texts are
CONSIDERED = 0.2  # relative distance to the fastest up to which noise is looked at
DRIFT = 0.02  # least relative standard deviation of a device between measuring and decoding
SDS_OF_90_PERCENT = 1.645
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceErrors:
    """Relative errors of the measured latencies: of the target, by drafter name, and of all by the device's drift."""

    verify: float
    drafts: dict[str, float]
    drift: float = DRIFT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ballot:
    """The candidates of one cell that may be chosen.

    Attributes:
        candidates: all that were priced.
        plain: place of plain decoding.
        able: places of those that may be chosen, plain decoding always among them.
        near: places of those as good as the best, the one the cell takes by itself first.
        cross_fitted: tokens per second of choices on texts that did not make them, NaN where that cannot be told.
        keeps_bound: whether the ones in `near` keep the latency bound.
    """

    candidates: list[Candidate]
    plain: int
    able: tuple[int, ...]
    near: tuple[int, ...]
    cross_fitted: float
    keeps_bound: bool

    @property
    def ways(self) -> list[Way]:
        """What each of the near candidates is called."""
        return [(self.candidates[place].policy.label, self.candidates[place].drafter) for place in self.near]


def ballot_of(contest: Contest, weights: Floats, bound: LatencyBound | None) -> Ballot:
    """Return which candidates of a cell are as good as its best; plain decoding must be among the priced.

    The best is the fastest that keeps the bound, or, where none does, the one with the lowest latency. Where a promise
    freed of its optimism is no faster than plain decoding, plain decoding alone is left.

    Args:
        contest: of the cell.
        weights: (resamples, texts), how often each text is drawn.
        bound: of the latency.
    """
    candidates = contest.priced
    plain = next(place for place, one in enumerate(candidates) if isinstance(one.policy, PlainPolicy))
    keeping = _keeping(contest, bound)
    able = keeping if len(keeping) else _lowest_latency(contest, bound)
    simplicity = ranks_of_simplicity(candidates)
    near = as_good_as_the_best(candidates, weights, able, simplicity)
    tokens, ms = by_text([candidates[place] for place in able])
    searched = np.array([contest.searched_on[place] for place in able])
    crossed = 1000.0 * cross_fitted_rate(tokens, ms, searched, simplicity[able], TIE)
    speed = candidates[near[0]].tokens_per_s
    is_no_gain = (min(crossed, speed) if math.isfinite(crossed) else speed) <= candidates[plain].tokens_per_s
    if is_no_gain and plain in able:
        near = (plain,)
    return Ballot(
        candidates=candidates,
        plain=plain,
        able=tuple(sorted({plain, *near, *able.tolist()})),
        near=near,
        cross_fitted=crossed,
        keeps_bound=bool(len(keeping)),
    )


def as_good_as_the_best(
    candidates: Sequence[Candidate], weights: Floats, able: Ints, simplicity: Ints
) -> tuple[int, ...]:
    """Return the places whose distance to the fastest is noise, the simplest first.

    Noise is the standard error of the paired difference over resampled texts, but at least TIE and at most TIE_MOST.

    Args:
        candidates: all.
        weights: (resamples, texts).
        able: places that may be chosen.
        simplicity: (candidates,), rank of each.
    """
    speeds = np.array([candidates[place].tokens_per_s for place in able])
    best = float(speeds.max())
    close = np.flatnonzero(speeds >= (1.0 - CONSIDERED) * best)
    rates = 1000.0 * resampled_rates([candidates[able[place]] for place in close], weights)
    fastest = int(speeds[close].argmax())
    noise = np.clip((rates[fastest] - rates).std(axis=1), TIE * best, TIE_MOST * best)
    tied = close[best - speeds[close] <= noise]
    return tuple(sorted((int(able[place]) for place in tied), key=lambda place: int(simplicity[place])))


def ranks_of_simplicity(candidates: Sequence[Candidate]) -> Ints:
    """Return (candidates,): the place of each among them, simplest first; of equally simple ones the faster first."""
    keys = [_complexity(candidate) for candidate in candidates]
    order = sorted(range(len(keys)), key=lambda place: keys[place])
    ranks = np.empty(len(keys), dtype=np.int64)
    ranks[order] = np.arange(len(keys))
    return ranks


def planned_cell(
    contest: Contest,
    ballot: Ballot,
    taken: int,
    weights: Floats,
    errors: SurfaceErrors,
    *,
    published: tuple[PublishedPrice, ...] = (),
    stack: StackForecast | None = None,
    shape: ShapeFacts | None = None,
) -> PlanCell:
    """Return the cell's plan once the schedule has taken one of its near candidates.

    Args:
        taken: place among `ballot.near`.
        weights: (resamples, texts).
    """
    cell, candidates, chosen = contest.costs.cell, ballot.candidates, ballot.near[taken]
    flattery = 0.0
    if chosen != ballot.plain and math.isfinite(ballot.cross_fitted):
        flattery = max(0.0, 1.0 - ballot.cross_fitted / candidates[ballot.near[0]].tokens_per_s)
    rates = resampled_rates([candidates[chosen], candidates[ballot.plain]], weights)
    promise = Promise(rates=rates, plain=candidates[ballot.plain], errors=errors, texts=weights.shape[1])
    others = alternatives(candidates, candidates[chosen])
    able = [candidates[place] for place in ballot.able]
    outlook = outlook_of(
        able, ballot.able.index(chosen), ballot.able.index(ballot.plain), contest.costs, optimism=flattery
    )
    return PlanCell(
        batch=cell.batch,
        context=cell.context,
        policy=candidates[chosen].policy,
        drafter=candidates[chosen].drafter,
        run_tokens=candidates[chosen].run_tokens,
        prediction=promise.of(candidates[chosen], flattery),
        plain=promise.of(candidates[ballot.plain], 0.0),
        runner_up=others[0] if others else None,
        alternatives=others,
        published=published,
        outlook=outlook,
        memory_bytes=contest.needs_bytes(candidates[chosen].policy, candidates[chosen].drafter),
        keeps_bound=ballot.keeps_bound,
        stack=stack,
        shape=shape,
    )


def alternatives(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Alternative, ...]:
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
    """Turns a chosen candidate and plain decoding of one cell into predictions.

    Attributes:
        rates: (2, resamples), paired: of the chosen one and of plain decoding.
        plain: plain decoding.
        texts: how many were recorded.
    """

    rates: Floats
    plain: Candidate
    errors: SurfaceErrors
    texts: int

    def of(self, chosen: Candidate, flattery: float) -> Prediction:
        """Return a candidate's prediction after taking the relative flattery off its tokens."""
        is_plain = chosen is self.plain
        own, plainly = self.rates[1 if is_plain else 0], self.rates[1]
        usable = (own > 0.0) & (plainly > 0.0)  # with few texts a resample may hold none of a steady round
        parts = self._parts(chosen, own[usable], flattery)
        relative = self._parts(chosen, own[usable] / plainly[usable], flattery)
        speed = chosen.tokens_per_s * (1.0 - flattery)
        speedup = speed / self.plain.tokens_per_s
        margin, speedup_margin = _margin(parts), 0.0 if is_plain else _margin(relative)
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
            drift=self.errors.drift,
            optimism=flattery,
        )


def _keeping(contest: Contest, bound: LatencyBound | None) -> Ints:
    """Return the places of the candidates that keep the bound; all where there is none."""
    if bound is None:
        return np.arange(len(contest.priced))
    return np.flatnonzero(_latencies(contest, bound) <= bound.most_ms)


def _lowest_latency(contest: Contest, bound: LatencyBound | None) -> Ints:
    assert bound is not None, "without a bound every candidate keeps it"
    return np.array([int(_latencies(contest, bound).argmin())])


def _latencies(contest: Contest, bound: LatencyBound) -> Floats:
    if bound.metric == "p90_itl":
        return np.array(contest.tails_ms)
    batch = contest.costs.cell.batch
    return np.array([1000.0 * batch / candidate.tokens_per_s for candidate in contest.priced])


def _margin(parts: ErrorParts) -> float:
    return SDS_OF_90_PERCENT * math.hypot(parts.acceptance, parts.surfaces, parts.drift)


def _complexity(candidate: Candidate) -> tuple[float, ...]:
    """Return what makes a candidate less simple: models, then nodes, then how its tree comes about; then the slower."""
    policy = candidate.policy
    models = 0 if isinstance(policy, PlainPolicy | LookupPolicy) else 1
    return models, policy.max_verify_tokens, SIMPLICITY[policy.kind], -candidate.tokens_per_s
