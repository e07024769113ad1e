"""The machine's pace while each load ran, by the sentinel's readings around it.

A load's reading z is the mean logarithm of both. Of loads at one concurrency

    z = mu + delta + x + e        x ~ N(0, tau^2), e ~ N(0, r^2)

x is the logarithm of the pace, larger where the machine is slower. The readings around a load differ by noise and by
what the pace moved meanwhile: r^2 is a quarter of their mean square difference. delta is 0 where the target alone reads
the prompts, and of a drafter's loads log(1 + share), with its unknown share of the target's time (`Reader`). mu is
unknown, and tau is averaged over. So x is shrunk by its own error: readings that move less than their noise correct
nothing.

Source: Robinson 1991, Statist. Sci. 6(1), for x; Gelman 2006, Bayesian Anal. 1(3), for tau of few groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...engines.answers import RequestResult
from ...engines.bundle import Trial
from ...engines.sentinel import Reading
from ...engines.server_engine import Start

Floats = NDArray[np.float64]
Place = tuple[Start, int, tuple[Reading, ...]]  # a load's start, concurrency and readings: it may run again
# a prior between one flat in tau and one flat in its logarithm
TAUS = np.linspace(math.sqrt(0.005), math.sqrt(0.4), 12) ** 2
LEAST_NOISE = 0.002  # of a reading, relative
MOVED = 0.05  # relative: what the pace moves less is not told
NO_READING = 10.0  # the same, of a load without readings beside others that have some
UNSURE = 0.05  # standard deviation of a drafter's share, beside that by its rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a load's prompts: the target alone (`name` is ""), or a drafter, too, with at most this `share`."""

    name: str = ""
    share: float = 0.0

    @property
    def mean(self) -> float:
        """The expected logarithm of what the drafter adds."""
        return 0.5 * math.log1p(self.share)

    @property
    def deviation(self) -> float:
        """Its standard deviation."""
        return math.hypot(self.mean, UNSURE) if self.name else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """The logarithm of each load's pace over the run's mean, and covariances of what is not known of it.

    Both are empty where no load has readings.
    """

    logs: Mapping[Place, float] = field(default_factory=dict)
    covariances: Mapping[tuple[Place, Place], float] = field(default_factory=dict)

    def steadied(self, trials: Sequence[Trial]) -> list[RequestResult]:
        """Return the answers of loads with the times that they would have taken at the run's mean pace."""
        return [
            replace(one, ttft_ms=factor * one.ttft_ms, e2e_ms=factor * one.e2e_ms)
            for trial in trials
            for factor in (math.exp(-self.logs.get(_place(trial), 0.0)),)
            for one in trial.load.ended
        ]

    def error(self, trials: Sequence[Trial], others: Sequence[Trial] = ()) -> float:
        """Return the relative standard error of some loads' mean pace, or of that over the others' mean."""
        weights = [(_place(one), 1.0 / len(trials)) for one in trials]
        weights += [(_place(one), -1.0 / len(others)) for one in others]
        variance = sum(
            weight * more * self.covariances.get((one, other), 0.0)
            for one, weight in weights
            for other, more in weights
        )
        return math.sqrt(max(variance, 0.0))

    def over(self, trial: Trial, others: Sequence[Trial]) -> float:
        """Return the time that a load took over what it would have taken at the mean pace of some others."""
        mean = sum(self.logs.get(_place(one), 0.0) for one in others) / len(others)
        return math.exp(self.logs.get(_place(trial), 0.0) - mean)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest load's pace, 1 being the mean's time."""
        return math.exp(min(self.logs.values(), default=0.0)), math.exp(max(self.logs.values(), default=0.0))

    def notes(self) -> Iterator[str]:
        """Yield what a reader must know of a pace that moved."""
        fastest, slowest = self.spread
        if slowest > (1.0 + MOVED) * fastest:
            yield (
                f"the machine's pace moved between loads: by the sentinel's readings times were from {fastest:.2f} to "
                f"{slowest:.2f} of their mean; speeds and gains are of the mean pace"
            )


def paces_by(readers: Mapping[str, Reader], trials: Sequence[Trial]) -> Paces:
    """Return the paces of loads; `readers` are those of each source."""
    known = {_place(trial): pair for trial in trials if (pair := _readings(trial, trials)) is not None}
    if not known:
        return Paces()
    noise = math.sqrt(sum((after - before) ** 2 for before, after in known.values()) / (4.0 * len(known)))
    middle = sum(map(sum, known.values())) / (2.0 * len(known))
    logs: dict[Place, float] = {}
    covariances: dict[tuple[Place, Place], float] = {}
    for concurrency in dict.fromkeys(trial.concurrency for trial in trials):
        places = [_place(trial) for trial in trials if trial.concurrency == concurrency]
        z = np.array([sum(known[place]) / 2.0 if place in known else middle for place in places])
        noises = np.array([max(noise, LEAST_NOISE) if place in known else NO_READING for place in places])
        means, own = _predicted(z, [readers[start.source] for start, *_ in places], noises)
        logs |= dict(zip(places, map(float, means), strict=True))
        covariances |= {
            (one, other): float(own[row, column])
            for row, one in enumerate(places)
            for column, other in enumerate(places)
        }
    return Paces(logs=logs, covariances=covariances)


def _readings(trial: Trial, trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Return the logarithms of the readings around a load; None where one lacks, or is of other prompts."""
    words = next(one.pace[0].words for one in trials if one.pace) if trial.pace else 0
    ms = [one.ms for one in trial.pace if one.words == words]
    found = [math.log(one) for one in ms if one is not None]
    return (found[0], found[1]) if len(found) == 2 else None


def _predicted(z: Floats, readers: Sequence[Reader], noises: Floats) -> tuple[Floats, Floats]:
    """Return the expected x of loads, (loads,), and its covariance, (loads, loads), averaged over tau."""
    names = [one.name for one in readers]
    away = z - [one.mean for one in readers]
    shared = np.array([[one.deviation**2 if one.name == name else 0.0 for name in names] for one in readers])
    weights, means, covariances = [], [], []
    for tau in TAUS:
        inverse = np.linalg.inv(np.diag(tau**2 + noises**2) + shared)
        total = inverse.sum(axis=1)
        projected = inverse - np.outer(total, total) / total.sum()  # mu taken out
        likelihood = np.linalg.slogdet(inverse)[1] - math.log(total.sum()) - away @ projected @ away
        weights.append(0.5 * likelihood)
        means.append(tau**2 * projected @ away)
        covariances.append(tau**2 * np.eye(len(z)) - tau**4 * projected)
    chances = np.exp(np.array(weights) - max(weights))
    chances /= chances.sum()
    mean = chances @ np.array(means)
    around = [one + np.outer(own - mean, own - mean) for one, own in zip(covariances, means, strict=True)]
    return mean, np.tensordot(chances, np.array(around), axes=1)


def _place(trial: Trial) -> Place:
    return trial.start, trial.concurrency, trial.pace
