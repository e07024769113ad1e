"""The rounds of one long chain tell what chains of every length would keep."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.planner.acceptance import rank_results
from spectune.planner.engine_walk import walk
from spectune.planner.policy import ChainPolicy
from spectune.planner.recorded import recording_of
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace
from spectune.runtime.engines.measured import EngineText, Load
from spectune.tuning.engine_trace import ToldPrompt, told_prompt

from .simulated_engine import SimulatedEngine, is_right

PROMPTS = [tuple(range(start, start + 5)) for start in range(12)]
NEW_TOKENS = 80
LONGEST = 8


def texts(engine: SimulatedEngine, length: int) -> list[EngineText]:
    setting = engine.chain(engine.drafters[0], length)
    with engine.started(setting, Load(concurrency=1, capacity=200, with_rounds=True)) as running:
        return [running.decode([prompt], NEW_TOKENS)[0] for prompt in PROMPTS]


def told(engine: SimulatedEngine) -> list[ToldPrompt]:
    return [told_prompt(p, text, LONGEST) for p, text in zip(PROMPTS, texts(engine, LONGEST), strict=True)]


def trace_of(found: list[ToldPrompt]) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="target",
        drafter="small",
        drafter_name="small",
        workload="w",
        temperature=0.0,
        seed=0,
        children=1,
        prefix_exact=True,
        prompts=tuple(one.trace for one in found),
    )


@pytest.mark.parametrize("right", [0.2, 0.6])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_chains_of_any_length_walk_as_the_engine_runs_them(right: float, length: int) -> None:
    """Where no draft is kept whole, nothing is open and every count is the engine's own."""
    engine = SimulatedEngine(right={"small": right})
    found = told(engine)
    recording = recording_of(trace_of(found))
    walked = walk(rank_results(ChainPolicy(length=length), recording), recording.rows)
    ran = texts(engine, length)
    open_positions = sum(one.open_positions for one in found)
    assert abs(walked.rounds.sum() - sum(text.rounds for text in ran)) <= open_positions
    if not open_positions:
        assert walked.rounds.tolist() == [text.rounds for text in ran]
        assert walked.drafted.tolist() == [text.drafted for text in ran]


def test_every_position_that_is_told_is_what_the_drafter_knew() -> None:
    engine = SimulatedEngine(right={"small": 0.5})
    for prompt, one in zip(PROMPTS, told(engine), strict=True):
        known = [is_right("small", 0.5, prompt, at) for at in range(1, NEW_TOKENS)]
        wrong = sum((rank == 0) != knew for rank, knew in zip(one.trace.next_rank[:-1], known[:-1], strict=True))
        assert wrong <= one.open_positions


def test_a_drafter_that_is_always_right_leaves_open_what_lies_behind_its_drafts() -> None:
    (text,) = texts(SimulatedEngine(right={"small": 1.0}), LONGEST)[:1]
    one = told_prompt(PROMPTS[0], text, LONGEST)
    assert one.open_positions == NEW_TOKENS // (LONGEST + 1)
    assert set(one.trace.next_rank[:-1].tolist()) == {0}


def test_confidences_are_unknown() -> None:
    (one, *_) = told(SimulatedEngine(right={"small": 0.5}))
    assert np.isneginf(one.trace.log_probs).all()
    assert set(np.unique(one.trace.next_rank)) <= {0, MISS}


def test_rounds_that_were_not_told_are_refused() -> None:
    text = EngineText(tokens=(1, 2, 3), ms=1.0, drafted=2, accepted=1)
    with pytest.raises(MeasurementError, match="did not tell"):
        told_prompt((1,), text, 2)


def test_rounds_that_kept_more_than_was_drafted_are_refused() -> None:
    text = EngineText(tokens=tuple(range(8)), ms=1.0, drafted=6, accepted=5, kept=(5, 0))
    with pytest.raises(MeasurementError, match="kept 5 tokens of 3"):
        told_prompt((1,), text, 3)
