"""Sampled rounds run one ahead of the host as greedy ones do, each request drawn in its own way."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import pytest
import torch

from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.regime import in_regime

from ...support.ahead_runs import KINDS, Captured, eagerly, plainly, setup_of, told
from ...support.decoded_runs import CAPACITY, PADDED, random_requests
from ...support.pairwise import crossed
from .test_ahead import assert_ahead_without_waits, on_gpu, stopping

pytestmark = pytest.mark.lossless

SAMPLED: dict[str, tuple[dict[str, Any], ...]] = {
    "one temperature": ({"temperature": 0.8},),
    "each its own": (
        {},
        {"temperature": 0.8},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.2, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1, "top_k": 200},
    ),
}


def sampled(requests: Many[Request], ways: str) -> list[Request]:
    """Return requests that are drawn in one way after the other, each with a seed of its own."""
    each = SAMPLED[ways]
    return [replace(one, seed=place, **each[place % len(each)]) for place, one in enumerate(requests)]


@crossed(kind=KINDS, slots=(1, 3), ways=tuple(SAMPLED), ends=("by their limits", "by stop tokens"))
def test_sampled_rounds_run_ahead_too(kind: str, slots: int, ways: str, ends: str) -> None:
    requests = sampled(random_requests(5, tokens=10), ways)
    if ends == "by stop tokens":
        requests = stopping(requests)
    schedule, captured = always(setup_of(kind, run_tokens=PADDED)), Captured(slots=slots)
    found, expected = captured.run(requests, schedule), eagerly(requests, schedule, slots=slots)
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found.rounds) == told(expected.rounds) and captured.others == 0


def test_texts_that_are_drawn_alike_share_their_recordings() -> None:
    requests, captured = random_requests(6, tokens=16), Captured(slots=1)
    alike = [replace(one, seed=place, temperature=0.5 + 0.1 * place) for place, one in enumerate(requests)]
    assert captured.run(alike, always(setup_of("chain"))).outputs == plainly(alike)
    first = len(captured.targets.recorded)
    other = Captured(slots=1)
    other.run(alike[:1], always(setup_of("chain")))
    assert first == len(other.targets.recorded)


def test_a_request_that_joins_brings_its_own_way_of_drawing() -> None:
    """Rounds of another kind are recorded apart, and settings of the same kind are told anew."""
    requests = [
        *random_requests(2, tokens=12),
        *sampled(random_requests(5, tokens=9), "each its own"),
        *sampled(random_requests(3, tokens=9), "one temperature"),
    ]
    for slots in (1, 2):
        captured = Captured(slots=slots)
        found = captured.run(requests, always(setup_of("eagle2")))
        assert found.outputs == plainly(requests) and captured.others == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("ways", SAMPLED)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_they_wait_for_their_own_results_alone(kind: str, slots: int, ways: str) -> None:
    target, model = (in_regime(on_gpu(scale), "cuda-graph") for scale in (0.0, 0.06))
    drafters = {"it": ModelDrafter(model, slots=slots, capacity=CAPACITY)}
    decoder = Engine(target, drafters, always(setup_of(kind)), slots=slots, capacity=CAPACITY)
    requests = [replace(one, max_new_tokens=60) for one in sampled(random_requests(slots, tokens=1), ways)]
    assert_ahead_without_waits(decoder, requests)
