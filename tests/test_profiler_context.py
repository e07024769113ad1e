"""Acceptance by context length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.context import acceptance_by_context
from spectune.profiler.records.acceptance import MISS

from .chain_traces import rooted, trace_of

TRACE = trace_of(
    rooted([0, 0, 1, MISS], prompt=2), rooted([0, MISS], prompt=10), prefix_exact=True
)  # contexts 2..5, 10, 11


def test_positions_fall_into_the_bucket_of_their_context() -> None:
    buckets = acceptance_by_context(TRACE, [2, 4, 11, 20])
    assert [(one.low, one.high, one.positions) for one in buckets] == [(2, 4, 2), (4, 11, 3), (11, 20, 1)]
    assert [one.by_rank.tolist() for one in buckets] == [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 0.0], [0.0, 0.0, 0.0]]


def test_one_bucket_of_everything_is_the_traces_own_acceptance() -> None:
    (bucket,) = acceptance_by_context(TRACE, [0, 100])
    assert bucket.positions == TRACE.positions
    assert bucket.by_rank.tolist() == TRACE.rank_acceptance().tolist()


def test_a_bucket_without_positions_has_no_acceptance() -> None:
    assert np.isnan(acceptance_by_context(TRACE, [50, 60])[0].by_rank).all()


def test_contexts_count_the_prompt_and_what_was_emitted_before_the_root() -> None:
    longer = replace(TRACE.prompts[0], prompt=(7,) * 6)
    assert longer.contexts.tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("edges", [[], [3], [3, 3], [4, 2]])
def test_edges_that_do_not_ascend_are_refused(edges: list[int]) -> None:
    with pytest.raises(MeasurementError, match="ascend"):
        acceptance_by_context(TRACE, edges)
