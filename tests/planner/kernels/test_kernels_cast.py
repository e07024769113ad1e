"""The compiled replay of CAST against growing its trees round by round."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spectune.errors import PlanError
from spectune.planner.lockstep import Replay
from spectune.planner.strategies.cast import CastPolicy, replay_cast
from spectune.planner.strategies.grown import replay_grown
from spectune.profiler.records.calibration import SurvivalCurve

from .test_kernels import CHILDREN, SEEDS, truncated, whole

FIELDS = ("contexts", "nodes", "catch_up", "texts", "kept")
CURVES = (
    SurvivalCurve(log_probs=(-6.0, -2.0, -1.0, 0.0), survivals=(0.01, 0.2, 0.6, 1.0), nodes=9),
    SurvivalCurve(log_probs=(-5.0, 0.0), survivals=(0.05, 0.7), nodes=9),
)


def policies(seed: int) -> list[CastPolicy]:
    source = random.Random(seed)
    return [policy(source, curves) for curves in ((), CURVES) for _ in range(4)]


def policy(source: random.Random, curves: tuple[SurvivalCurve, ...]) -> CastPolicy:
    width, size = source.randint(1, CHILDREN), source.randint(2, 40)
    return CastPolicy(
        breadth=source.choice([0.0, 0.3, 1.0]),
        depth=source.choice([0.0, 0.5, 2.0]),
        rerank=source.choice([0.0, 0.5, 1.5]),
        max_width=width,
        max_depth=source.randint(1, 5),
        max_verify_tokens=size,
        ratio_window=source.randint(1, 4),
        draft_cost_ms=(0.0, *(1.0 + source.random() * nodes / 2 for nodes in range(width))),
        verify_cost_ms=(0.0, *(10.0 + 3.0 * (tokens // 4) for tokens in range(size))),
        survival=curves,
    )


def assert_same_rounds(fast: Replay, slow: Replay) -> None:
    for name in FIELDS:
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name
    forwards = slow.widths.shape[1]
    assert fast.widths[:, :forwards].tolist() == slow.widths.tolist()
    assert not fast.widths[:, forwards:].any()


@pytest.mark.thinned
@pytest.mark.parametrize("batch", range(1, 6))
@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_cast_decides_as_the_growth_does(seed: int, batch: int) -> None:
    for cast in policies(seed):
        fast, slow = replay_cast(cast, whole(seed), batch), replay_grown(cast, whole(seed), batch)
        assert_same_rounds(fast, slow)
        assert fast.censored == slow.censored == 0


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_cast_keeps_what_the_growth_keeps_where_expansions_are_missing(seed: int, batch: int) -> None:
    for cast in policies(seed):
        fast, slow = replay_cast(cast, truncated(seed), batch), replay_grown(cast, truncated(seed), batch)
        assert_same_rounds(fast, slow)
        assert fast.censored <= slow.censored


def test_compiled_cast_that_lacks_nothing_of_matter_is_that_of_the_whole_recording() -> None:
    sure = 0
    for seed in range(40):
        for cast in policies(seed):
            recorded = truncated(seed % 4, from_rank=3)
            lacking = replay_cast(cast, recorded, 1)
            if not lacking.censored:
                assert_same_rounds(lacking, replay_cast(cast, whole(seed % 4), 1))
                sure += replay_grown(cast, recorded, 1).censored > 0
    assert sure


def test_scores_out_of_order_are_grown_slowly() -> None:
    odd = replace(whole(0), is_ordered=False)
    for cast in policies(0):
        assert_same_rounds(replay_cast(cast, whole(0), 2), replay_cast(cast, odd, 2))


def test_fewer_texts_than_slots_are_refused() -> None:
    with pytest.raises(PlanError, match="a batch of 6 needs as many texts, the trace holds 5"):
        replay_cast(policies(0)[0], whole(0), 6)


def test_more_children_than_recorded_are_refused() -> None:
    wide = replace(policies(0)[0], max_width=5, draft_cost_ms=(0.0,) + (1.0,) * 5)
    with pytest.raises(PlanError, match="records 4 children per node and the policy takes 5"):
        replay_cast(wide, whole(0), 1)
