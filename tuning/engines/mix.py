"""How much heavier the rounds of some turns were than those of the recorded texts, where the text itself drafts.

A model drafts in every round, at one cost on any text. N-grams are found in a share of rounds that depends on the text,
and the few short texts of a profile's turns are another mix than the recorded ones. The turns' drafts are counted, and
the line of costs through all settings (`planner/engines/costs.py`) prices the other mix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...engines.measured import Sample
from ...planner.engines.choice import EngineInputs, Way, shape_of, source_of
from ...planner.engines.costs import RoundSample, RoundShape, fit_costs
from ...planner.engines.walk import Walk
from ...planner.strategies.lookup import LookupPolicy
from .turns import Key, Turn


def heavier_than_recorded(
    turns: Mapping[Key, Sequence[Turn]], ways: Mapping[Key, Way], inputs: EngineInputs, walks: Mapping[Way, Walk]
) -> dict[Key, float]:
    """Return the cost of the rounds in turns over that of the recorded texts, per setting whose text drafts in both."""
    if inputs.pads_ngrams:  # such an engine's rounds cost the same whatever was found
        return {}
    factors: dict[Key, float] = {}
    for concurrency, timed in inputs.timed.items():
        own = [key for key in turns if key[0] == concurrency and ways[key] in walks]
        shapes = {key: _seen(ways[key], turns[key]) or shape_of(inputs, ways[key], walks[ways[key]]) for key in own}
        ms = {one.way: one for one in timed}
        samples = [RoundSample(shape=shapes[key], ms=ms[ways[key]].ms, error=ms[ways[key]].error) for key in own]
        costs = fit_costs(samples)
        for key in own:
            if _seen(ways[key], turns[key]) is not None:
                recorded = shape_of(inputs, ways[key], walks[ways[key]])
                factors[key] = costs.at(shapes[key]).ms / costs.at(recorded).ms
    return factors


def _seen(way: Way, turns: Sequence[Turn]) -> RoundShape | None:
    """Return the mean shape of the rounds in turns; None where no text drafted.

    Without a count of drafting rounds, assume the fewest that could draft the tokens: copies are mostly full.
    """
    policy, _ = way
    samples = [turn.sample for turn in turns]
    if not isinstance(policy, LookupPolicy):
        return None
    rounds = sum(sample.rounds for sample in samples)
    drafts = sum(_fewest(sample, policy.length) if sample.drafts is None else sample.drafts for sample in samples)
    if not drafts:
        return None
    drafted = sum(sample.drafted for sample in samples)
    return RoundShape(
        source=source_of(way), is_model=False, length=policy.length, share=drafts / rounds, drafted=drafted / rounds
    )


def _fewest(sample: Sample, length: int) -> int:
    return sum(math.ceil(text.drafted / length) for text in sample.texts)
