"""Requests and the sequences they become."""

from __future__ import annotations

from typing import Any

import pytest

from spectune.errors import RequestError
from spectune.runtime.batch.sequence import Request, Sequence, shared_temperature


def fresh(limit: int = 4, stop: frozenset[int] = frozenset()) -> Sequence:
    return Sequence(Request(prompt=(7, 8), max_new_tokens=limit, stop=stop), 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ()}, "no token"),
        ({"max_new_tokens": 0}, "at least 1, got 0"),
        ({"temperature": -0.1}, r"got -0\.1"),
        ({"temperature": float("nan")}, "got nan"),
        ({"seed": 2**63}, "64 bits, got 9223372036854775808"),
        ({"top_p": 1.5}, r"got 1\.5"),
    ],
)
def test_an_impossible_request_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Request(**{"prompt": (1,), "max_new_tokens": 1, **fields})  # type: ignore[arg-type]


def test_everything_drawn_is_kept_below_the_limit() -> None:
    sequence = fresh()
    assert (sequence.commit([1, 2]), sequence.tokens, sequence.is_finished) == (2, [7, 8, 1, 2], False)


def test_the_limit_cuts_what_was_drawn() -> None:
    sequence = fresh(limit=3)
    assert (sequence.commit([1, 2, 3, 4]), sequence.emitted, sequence.is_finished) == (3, [1, 2, 3], True)


def test_a_stop_token_is_kept_and_nothing_behind_it() -> None:
    sequence = fresh(stop=frozenset([2]))
    assert (sequence.commit([1, 2, 3]), sequence.emitted, sequence.is_finished) == (2, [1, 2], True)


def test_a_finished_sequence_takes_no_more() -> None:
    sequence = fresh(limit=1)
    sequence.commit([1])
    assert sequence.commit([2]) == 0 and sequence.emitted == [1]


def test_a_prompt_that_ends_with_a_stop_token_is_not_finished() -> None:
    assert not fresh(stop=frozenset([8])).is_finished


def test_the_newest_token_is_not_in_the_context() -> None:
    sequence = fresh()
    sequence.commit([1])
    assert sequence.context == 2


def test_a_limit_is_no_stop_and_a_stop_token_is() -> None:
    limited, stopped = fresh(limit=1), fresh(stop=frozenset([2]))
    limited.commit([1])
    stopped.commit([2])
    assert (limited.is_finished, limited.is_stopped) == (True, False)
    assert (stopped.is_finished, stopped.is_stopped) == (True, True)


def test_distinct_tokens_are_those_of_prompt_and_output_once_each() -> None:
    sequence = fresh(limit=9)
    assert list(sequence.distinct()) == [7, 8]
    sequence.commit([8, 1, 7, 1, 2])
    assert list(sequence.distinct()) == list(dict.fromkeys(sequence.tokens)) == [7, 8, 1, 2]


def test_requests_are_values_that_differ_by_their_sampling_too() -> None:
    one, same, other = (Request(prompt=(1,), max_new_tokens=2, top_p=top_p) for top_p in (0.9, 0.9, 0.8))
    assert one == same and hash(one) == hash(same) and one != other


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {}, 0.0),
        ({"temperature": 0.8}, {"temperature": 0.8}, 0.8),
        ({"temperature": 0.8}, {"temperature": 0.7}, None),
        ({"temperature": 0.8}, {"temperature": 0.8, "top_k": 5}, None),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}, None),
        ({"top_k": 5}, {}, 0.0),  # of greedy draws, which it does not change
    ],
)
def test_a_temperature_is_shared_where_nothing_else_matters(
    one: dict[str, Any], other: dict[str, Any], shared: float | None
) -> None:
    batch = [Sequence(Request(prompt=(1,), max_new_tokens=1, **said), 0) for said in (one, other)]
    assert shared_temperature(batch) == shared
