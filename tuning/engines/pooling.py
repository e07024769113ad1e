"""What rounds of n-grams cost, from all settings timed together: one timing's luck is no price.

A copy is verified at one price, whichever search found it (`planner/engines/costs.py`). So the distances of all timings
from the line of costs give one curve over the length:

    y_L   = mean of log(ms / line) over searches of length L, weighted by 1 / error^2; its error is e_L
    m     = mean of y_L over lengths, weighted likewise
    t^2   = what the lengths differ by beyond their errors, at least 0
    curve = m + t^2 / (t^2 + e_L^2) (y_L - m)

Searches with a memory (`planner/engines/mapped_ngrams.py`) draft seldom and much, others often and little: each kind
has its own curve. Else 2 % of timing luck would choose between two searches, and not what their drafts keep.

Source: t^2 by moments, DerSimonian and Laird 1986, Controlled Clinical Trials 7(3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...planner.engines.choice import EngineInputs, TimedSetting, Way, costs_at, is_mapped, shape_of
from ...planner.engines.costs import EngineRoundCosts
from ...planner.engines.walk import Walk
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.naming import LOOKUP

Floats = NDArray[np.float64]
LEAST_ERROR = 1e-4  # of a timing: a simulated one may have none


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A value by all of its neighbours, and its standard error."""

    value: float
    error: float


def pooled(inputs: EngineInputs, walks: Mapping[Way, Walk]) -> EngineInputs:
    """Return inputs with a price for every search that finds n-grams, at each length at which any was timed."""
    return replace(inputs, timed={concurrency: _pooled_at(inputs, walks, concurrency) for concurrency in inputs.timed})


def shrunk(values: Sequence[float], errors: Sequence[float]) -> list[Pooled]:
    """Return values pulled to their common mean as far as their standard errors (positive) explain the differences."""
    found, variances = np.array(values), np.square(errors)
    weights = 1.0 / variances
    middle = float((weights * found).sum() / weights.sum())
    excess = float((weights * (found - middle) ** 2).sum()) - (len(found) - 1)
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    apart = max(0.0, excess / scale) if len(found) > 1 else 0.0
    own: Floats = apart / (apart + variances)
    left = own * variances + (1.0 - own) ** 2 / weights.sum()
    return [
        Pooled(value=float(value), error=math.sqrt(error))
        for value, error in zip(middle + own * (found - middle), left, strict=True)
    ]


def _pooled_at(inputs: EngineInputs, walks: Mapping[Way, Walk], concurrency: int) -> list[TimedSetting]:
    timed = inputs.timed[concurrency]
    searched = {
        one.way[0]: one for one in timed if isinstance(one.way[0], LookupPolicy) and (one.way[0], LOOKUP) in walks
    }
    if not searched:
        return list(timed)
    costs = costs_at(inputs, walks, concurrency)
    found = [one for one in timed if one.way[0] not in searched]
    for remembers in (False, True):
        own = {policy: one for policy, one in searched.items() if is_mapped(policy) == remembers}
        found += _of_one_curve(own, costs, inputs, walks)
    return found


def _of_one_curve(
    searched: Mapping[LookupPolicy, TimedSetting],
    costs: EngineRoundCosts,
    inputs: EngineInputs,
    walks: Mapping[Way, Walk],
) -> list[TimedSetting]:
    away: dict[int, list[tuple[float, float]]] = {}
    for policy, one in searched.items():
        line_ms = _line_ms(costs, inputs, walks, (policy, LOOKUP))
        away.setdefault(policy.length, []).append((math.log(one.ms / line_ms), max(one.error, LEAST_ERROR)))
    if not away:
        return []
    means = {length: _mean(own) for length, own in sorted(away.items())}
    pooled_means = shrunk([one.value for one in means.values()], [one.error for one in means.values()])
    curve = dict(zip(means, pooled_means, strict=True))
    found = []
    for policy, length in product(_searches(searched), curve):
        way: Way = replace(policy, length=length), LOOKUP
        if way in walks:
            ms = _line_ms(costs, inputs, walks, way) * math.exp(curve[length].value)
            found.append(TimedSetting(way=way, ms=ms, error=curve[length].error))
    return found


def _searches(policies: Mapping[LookupPolicy, TimedSetting]) -> list[LookupPolicy]:
    return list({(one.max_ngram, one.min_ngram, one.occurrence): one for one in policies}.values())


def _line_ms(costs: EngineRoundCosts, inputs: EngineInputs, walks: Mapping[Way, Walk], way: Way) -> float:
    return costs.rest_ms(shape_of(inputs, way, walks[way]))


def _mean(own: Sequence[tuple[float, float]]) -> Pooled:
    weights = [1.0 / error**2 for _, error in own]
    value = sum(weight * one for weight, (one, _) in zip(weights, own, strict=True)) / sum(weights)
    return Pooled(value=value, error=math.sqrt(1.0 / sum(weights)))
