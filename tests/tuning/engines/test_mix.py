"""What the texts of a few turns made dearer or cheaper is told by what was drafted in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.engines.measured import EngineLoad
from spectune.planner.engines.choice import EngineInputs, TimedSetting, Way, shape_of, walks_of
from spectune.planner.records.recording import Text
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.tuning.engines.inputs import way_of
from spectune.tuning.engines.mix import heavier_than_recorded
from spectune.tuning.engines.turns import Key, by_key, stable

from ...support.engine_traces import followed
from ...support.simulated_engine import SimulatedEngine, affine

PROMPTS = [tuple(range(start, start + 30)) for start in range(20)]
NEW_TOKENS = 120
ENGINE = SimulatedEngine(right={"small": 0.6})


def recorded() -> tuple[list[Text], AcceptanceTrace]:
    with ENGINE.started(None, EngineLoad(concurrency=1, capacity=300)) as running:
        texts = [Text(prompt=one, continuation=running.decode([one], NEW_TOKENS)[0].tokens) for one in PROMPTS]
    return texts, followed(ENGINE, ENGINE.drafters[0], texts)


@pytest.mark.parametrize("pads", [False, True])
def test_rounds_of_few_short_texts_are_brought_to_the_mix_of_all(pads: bool) -> None:
    texts, trace = recorded()
    looked_up = ENGINE.ngrams()[1]
    keys: list[Key] = [(1, None), (1, ENGINE.chain(ENGINE.drafters[0], 2)), (1, ENGINE.chain(ENGINE.drafters[0], 8))]
    keys += [(1, one) for one in ENGINE.ngrams()]
    with stable(ENGINE, capacity=300, new_tokens=30) as stall:
        stall.take(keys, PROMPTS, turns=4)
        turns = by_key(stall.turns)
    ways: dict[Key, Way] = {}
    for concurrency, setting in keys:
        way = (PlainPolicy(), None) if setting is None else way_of(ENGINE, setting)
        assert way is not None
        ways[concurrency, setting] = way
    timed = [
        TimedSetting(way=ways[key], ms=sum(t.sample.round_ms for t in own) / 4, error=0.01)
        for key, own in turns.items()
    ]
    inputs = EngineInputs(
        traces={"small": trace},
        texts=tuple(texts),
        timed={1: timed},
        context=80,
        drift=0.0,
        whole_ngrams=True,
        pads_ngrams=pads,
    )
    found = heavier_than_recorded(turns, ways, inputs, walks_of(inputs))
    if pads:
        assert not found
        return
    assert {key[1] for key in found} <= set(ENGINE.ngrams()) and (1, looked_up) in found
    way = ways[1, looked_up]
    mixed = shape_of(inputs, way, walks_of(inputs)[way])
    samples = [turn.sample for turn in turns[1, looked_up]]
    rounds, drafts = sum(s.rounds for s in samples), sum(s.drafts or 0 for s in samples)
    seen = affine(1, "", drafts / rounds, sum(s.drafted for s in samples) / rounds)
    assert abs(seen / affine(1, "", mixed.share, mixed.drafted) - 1.0) > 0.01  # else this tells nothing
    assert found[1, looked_up] == pytest.approx(seen / affine(1, "", mixed.share, mixed.drafted), rel=0.01)
    assert {type(ways[key][0]) for key in turns if key not in found} <= {PlainPolicy, ChainPolicy}
    uncounted = {
        key: [replace(turn, sample=replace(turn.sample, drafts=None)) for turn in own] for key, own in turns.items()
    }
    nearly = heavier_than_recorded(uncounted, ways, inputs, walks_of(inputs))
    assert nearly.keys() == found.keys()
    assert nearly[1, looked_up] == pytest.approx(found[1, looked_up], rel=0.01)
