"""Acceptance traces: what a recorder may write down, and what it adds up to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PairwiseAcceptance, PromptTrace
from spectune.profiler.records.wire import from_json

PROMPT = PromptTrace(
    prompt=(1, 2),
    continuation=(3, 4, 5),
    next_rank=np.array([1, MISS], np.uint8),
    offsets=np.array([0, 3, 4], np.int32),
    parent=np.array([-1, 0, 1, -1], np.int16),
    rank=np.array([0, 1, 0, 0], np.uint8),
    log_probs=np.array([[-0.5, -1.0], [-0.1, -3.0], [-1.0, -np.inf], [-0.7, -0.7]], np.float32),
    hit_rank=np.array([1, 0, MISS, MISS], np.uint8),
)
TRACE = AcceptanceTrace(
    target="t",
    drafter="d",
    drafter_name="toy",
    workload="prose",
    temperature=0.0,
    seed=0,
    children=2,
    prefix_exact=True,
    prompts=(PROMPT, PROMPT),
)


def test_the_share_of_each_rank_is_counted_over_all_positions() -> None:
    assert TRACE.positions == 4
    assert TRACE.rank_acceptance().tolist() == [0.0, 0.5]


def test_bytes_count_every_array_and_nodes_every_scored_child() -> None:
    by_hand = 2 * 1 + 3 * 4 + 4 * 2 + 4 * 1 + 4 * 2 * 4 + 4 * 1  # next_rank, offsets, parent, rank, log_probs, hit_rank
    assert TRACE.bytes_per_node == by_hand / 8
    assert TRACE.bytes_per_position == by_hand / 2


def test_an_agreement_written_before_it_named_its_text_can_still_be_read() -> None:
    old = '{"models":["a"],"greedy":[[1.0]],"overlap":[[1.0]],"positions":3}'
    found = from_json(PairwiseAcceptance, old)
    assert (found.target, found.workload, found.temperature) == ("", "", None)


def test_two_traces_are_equal_only_bit_for_bit() -> None:
    nudged = PROMPT.log_probs.copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(0.0))
    assert replace(PROMPT) == PROMPT
    assert replace(PROMPT, log_probs=nudged) != PROMPT


def test_a_trace_does_not_change_with_the_array_it_was_made_from() -> None:
    ranks = PROMPT.next_rank.copy()
    trace = replace(PROMPT, next_rank=ranks)
    ranks[0] = MISS
    assert trace == PROMPT


def test_a_traces_arrays_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PROMPT.next_rank[0] = 0


@pytest.mark.parametrize(
    "change",
    [
        {"continuation": (3,)},
        {"prompt": ()},
        {"next_rank": np.array([1, 0], np.uint8)},  # the roots' hit_rank says otherwise
        {"next_rank": np.array([1], np.uint8)},
        {"next_rank": np.array([1, MISS], np.int64)},
        {"hit_rank": np.array([1, 2, MISS, MISS], np.uint8)},  # only 2 children
        {"offsets": np.array([0, 3, 3], np.int32)},  # a position without its root
        {"offsets": np.array([1, 3, 4], np.int32)},
        {"parent": np.array([-1, 0, 2, -1], np.int16)},  # its own parent
        {"parent": np.array([-1, -1, 1, -1], np.int16)},  # a second root
        {"parent": np.array([-1, 0, 0, -1], np.int16), "rank": np.array([0, 1, 1, 0], np.uint8)},  # one child twice
        {"rank": np.array([0, 2, 0, 0], np.uint8)},
        {"rank": np.array([1, 1, 0, 0], np.uint8)},
        {"log_probs": PROMPT.log_probs[:, ::-1]},  # ascending
        {"log_probs": PROMPT.log_probs.astype(np.float64)},
        {"log_probs": np.full((4, 2), np.nan, np.float32)},
        {"log_probs": np.ones((4, 2), np.float32)},
    ],
)
def test_an_impossible_prompt_trace_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        replace(PROMPT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"children": 3}, {"children": 255}, {"prompts": ()}, {"temperature": -1.0}, {"target": ""}]
)
def test_an_impossible_trace_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        replace(TRACE, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"models": ("a", "a")},
        {"greedy": ((1.0,),)},
        {"overlap": ((1.0, 1.2), (1.2, 1.0))},
        {"positions": 0},
        {"temperature": -1.0},
    ],
)
def test_an_impossible_pairwise_acceptance_is_refused(change: dict[str, object]) -> None:
    half = ((1.0, 0.5), (0.5, 1.0))
    good = PairwiseAcceptance(models=("a", "b"), greedy=half, overlap=half, positions=9)
    with pytest.raises(MeasurementError):
        replace(good, **change)  # type: ignore[arg-type]
