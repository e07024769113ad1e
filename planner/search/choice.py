"""Which of a cell's priced candidates may be used, and which of them it would take by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..pricing.cost import Floats
from ..records.crossfit import Bools, cross_fitted_rate
from ..strategies import drafting
from ..strategies.plain import PlainPolicy
from ..strategies.stack import StackPolicy
from ..strategies.text import TextPolicy
from .candidate import Candidate
from .contest import CellSearch
from .estimate import by_text, rates_of, resampled

TIE = 0.005  # relative distance below which two speeds are equal, whatever the texts say
TIE_MOST = 0.01  # relative distance above which they are not, however few the texts are: what simplicity may cost
CONSIDERED = 0.2  # relative distance to the fastest up to which noise is looked at
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ballot:
    """The candidates of one cell that may be chosen: all that were priced, and places among them."""

    candidates: list[Candidate]
    plain: int  # place of plain decoding
    able: tuple[int, ...]  # those that may be chosen, plain decoding always among them
    near: tuple[int, ...]  # those as good as the best; first the one that the cell takes by itself
    cross_fitted: float  # tokens per second of choices on texts that did not make them; NaN where unknown

    @property
    def flattery(self) -> float:
        """By how much the choice on these texts is faster than on others, relative, at least 0."""
        if self.near[0] == self.plain or not math.isfinite(self.cross_fitted):
            return 0.0
        return max(0.0, 1.0 - self.cross_fitted / self.candidates[self.near[0]].tokens_per_s)


def ballot_of(contest: CellSearch, weights: Floats) -> Ballot:
    """Return which candidates of a cell are as good as its best; plain decoding must be among the priced.

    The best is the fastest that keeps the bound with its optimism taken off; where none does, the fastest of those with
    the least latency. Where that promise is no faster than plain decoding, plain decoding alone is left. `weights`
    (resamples, texts): how often each text is drawn.
    """
    able = _able(contest)
    found = first = _ballot_among(contest, able, weights)
    while not keeps_bound(contest, found.near[0], found.flattery):
        missing = [place for place in found.near if not keeps_bound(contest, place, found.flattery)]
        able = np.setdiff1d(able, missing)
        if not len(able):
            return first
        found = _ballot_among(contest, able, weights)
    near = tuple(place for place in found.near if keeps_bound(contest, place, found.flattery))
    return replace(found, near=near)


def _ballot_among(contest: CellSearch, able: Ints, weights: Floats) -> Ballot:
    candidates = contest.priced
    plain = next(place for place, one in enumerate(candidates) if isinstance(one.policy, PlainPolicy))
    field = Field.of([candidates[place] for place in able], weights)
    near = _without_needless_loss(candidates, [int(able[place]) for place in field.near()])
    searched = np.array([contest.searched_on[place] for place in able])
    crossed = 1000.0 * cross_fitted_rate(field.tokens, field.ms, searched, field.choose)
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
    )


def _without_needless_loss(candidates: Sequence[Candidate], near: Sequence[int]) -> tuple[int, ...]:
    """Return the places without lossy ways where a lossless one ties: no neighbour may bring the loss in."""
    lossless = tuple(place for place in near if not candidates[place].policy.is_lossy)
    return lossless or tuple(near)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """Candidates of which one is to be chosen."""

    tokens: Floats  # (candidates, texts)
    ms: Floats  # (candidates, texts)
    simplicity: Ints  # (candidates,), rank, the simplest first; equally simple ones share it
    weights: Floats  # (resamples, texts)

    @staticmethod
    def of(candidates: Sequence[Candidate], weights: Floats) -> Field:
        """Return the field of some candidates."""
        tokens, ms = by_text(candidates)
        return Field(tokens=tokens, ms=ms, simplicity=ranks_of_simplicity(candidates), weights=weights)

    def near(self, may: Ints | None = None, texts: Bools | None = None) -> list[int]:
        """Return the places whose distance to the fastest is noise, the simplest first, then the faster.

        Noise is the standard error of the paired difference over resampled texts, but at least TIE and at most
        TIE_MOST: with few texts a plainly slower policy would else pass. `may` limits the places, `texts` (texts,) the
        texts; None is all.
        """
        rows = np.arange(len(self.tokens)) if may is None else may
        used = np.ones(self.tokens.shape[1], dtype=np.bool_) if texts is None else texts
        tokens, ms = self.tokens[rows][:, used], self.ms[rows][:, used]
        speeds = rates_of(tokens, ms)
        best = float(speeds.max())
        close = np.flatnonzero(speeds >= (1.0 - CONSIDERED) * best)
        drawn = resampled(tokens[close], ms[close], self.weights[:, used])
        noise = np.clip((drawn[int(speeds[close].argmax())] - drawn).std(axis=1), TIE * best, TIE_MOST * best)
        tied = close[best - speeds[close] <= noise]
        order = np.lexsort((-speeds[tied], self.simplicity[rows[tied]]))
        found: list[int] = rows[tied[order]].tolist()
        return found

    def choose(self, may: Ints, texts: Bools) -> int:
        """Return the simplest of the places near the best."""
        return self.near(may, texts)[0]


def ranks_of_simplicity(candidates: Sequence[Candidate]) -> Ints:
    """Return (candidates,): how many grades of simplicity among them stand before each one's."""
    keys = [_complexity(candidate) for candidate in candidates]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return np.array([ranks[key] for key in keys], dtype=np.int64)


def keeps_bound(contest: CellSearch, place: int, flattery: float) -> bool:
    """Return whether a candidate keeps the bound once its optimism is taken off."""
    latency = latency_ms(contest, place, flattery)
    return contest.bound is None or latency is None or latency <= contest.bound.most_ms


def latency_ms(contest: CellSearch, place: int, flattery: float) -> float | None:
    """Return what the bound is about, of a candidate without its optimism; None where there is no bound."""
    return None if contest.bound is None else contest.latencies_ms[place] / (1.0 - flattery)


def _able(contest: CellSearch) -> Ints:
    """Return the places that keep the bound; where none does, those that miss it least."""
    keeping = np.array([place for place in range(len(contest.priced)) if contest.keeps_bound(place)], dtype=np.int64)
    if len(keeping):
        return keeping
    latencies = np.array(contest.latencies_ms)
    return np.flatnonzero(latencies <= latencies.min() * (1.0 + TIE_MOST))


def _complexity(candidate: Candidate) -> tuple[int, ...]:
    policy, drafts = candidate.policy, drafting(candidate.policy)
    models = 0 if isinstance(policy, PlainPolicy | TextPolicy) else 1
    if isinstance(drafts, StackPolicy):
        models = len(drafts.models)
    return policy.is_lossy, models, policy.max_verify_tokens, policy.complexity
