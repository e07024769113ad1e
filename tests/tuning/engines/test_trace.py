"""What a drafter would draft along a text tells what its chains of every length keep."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.engines.measured import EngineLoad, EngineText
from spectune.errors import MeasurementError
from spectune.planner.engines.walk import walk
from spectune.planner.records.recording import Text, recording_of
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace
from spectune.tuning.engines.trace import prompt_trace

from ...support.engine_traces import followed
from ...support.simulated_engine import SimulatedEngine

PROMPTS = [tuple(range(start, start + 5)) for start in range(12)]
NEW_TOKENS = 80


def ran(engine: SimulatedEngine, length: int) -> list[EngineText]:
    setting = engine.chain(engine.drafters[0], length)
    with engine.started(setting, EngineLoad(concurrency=1, capacity=200)) as running:
        return [running.decode([prompt], NEW_TOKENS)[0] for prompt in PROMPTS]


def trace_of(engine: SimulatedEngine) -> AcceptanceTrace:
    with engine.started(None, EngineLoad(concurrency=1, capacity=200)) as running:
        texts = [Text(prompt=one, continuation=running.decode([one], NEW_TOKENS)[0].tokens) for one in PROMPTS]
    return followed(engine, engine.drafters[0], texts)


@pytest.mark.thinned
@pytest.mark.parametrize("right", [0.0, 0.2, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_chains_of_any_length_walk_as_the_engine_runs_them(right: float, length: int) -> None:
    engine = SimulatedEngine(right={"small": right})
    recording = recording_of(trace_of(engine))
    walked = walk(results_of(ChainPolicy(length=length), recording), recording.rows)
    texts = ran(engine, length)
    assert walked.rounds.tolist() == [text.rounds for text in texts]
    assert walked.drafted.tolist() == [text.drafted for text in texts]


def test_confidences_are_unknown() -> None:
    (one, *_) = trace_of(SimulatedEngine(right={"small": 0.5})).prompts
    assert np.isneginf(one.log_probs).all()
    assert set(np.unique(one.next_rank)) == {0, MISS}


@pytest.mark.parametrize("drafted", [(2,), (2, 3, 4)])
def test_another_number_of_tokens_than_positions_is_refused(drafted: tuple[int, ...]) -> None:
    with pytest.raises(MeasurementError, match=f"{len(drafted)} drafted tokens do not fill the 2 positions"):
        prompt_trace(Text(prompt=(1,), continuation=(1, 2, 3)), drafted)
