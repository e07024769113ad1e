"""Host time per round: a sample of every kind of policy, with its real shape, and its forwards taken off."""

from __future__ import annotations

from functools import cache

import pytest

from spectune.planner.policy import CastPolicy, Eagle2Policy, LookupPolicy
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import OverheadSample
from spectune.profiler.records.surface import LatencySurface, Role
from spectune.runtime.requests import Request
from spectune.tuning.decoding import Family
from spectune.tuning.overhead import ROUNDS, measure_overhead, probes

from .tiny_models import tiny_lean

FAMILY = Family(target=tiny_lean(layers=2, seed=1), drafters={"small": tiny_lean(layers=1, seed=2)})
REQUESTS = [Request(prompt=(1, 2, 1, 2, place), max_new_tokens=40) for place in range(4)]


def surface(role: Role, ms: float) -> LatencySurface:
    """Every forward of the range costs the same."""
    cells = [
        Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=(ms,))
        for batch in (1, 2)
        for context in (5, 8)
        for tokens in (1, 64)
    ]
    return LatencySurface(
        device="here", model="it", role=role, regime="eager", dtype="float64", measurements=tuple(cells)
    )


def measured(batch: int, drafter: str | None, verify_ms: float, draft_ms: float) -> list[OverheadSample]:
    surfaces = surface("verify", verify_ms), {"small": surface("draft", draft_ms)}
    return measure_overhead(FAMILY, REQUESTS, surfaces, batch=batch, drafter=drafter)


@cache
def samples(batch: int = 2) -> tuple[OverheadSample, ...]:
    return tuple(measured(batch, "small", 1e9, 1e6))


def shapes(kind: str) -> list[tuple[int, int]]:
    """Return draft forwards and nodes of a kind's samples, the smallest first."""
    return sorted((sample.draft_forwards, sample.nodes) for sample in samples() if sample.kind == kind)


def test_every_kind_of_policy_has_samples_and_every_sample_its_rounds() -> None:
    assert {sample.kind for sample in samples()} == {"plain", "lookup", "chain", "static", "eagle2", "cast"}
    assert all(sample.batch == 2 and len(sample.host_ms) == ROUNDS for sample in samples())


def test_a_family_without_drafters_is_sampled_with_what_needs_none() -> None:
    assert {sample.kind for sample in measured(1, None, 1.0, 1.0)} == {"plain", "lookup"}


@pytest.mark.parametrize("kind", ["plain", "chain", "static", "eagle2", "cast"])
def test_forwards_and_nodes_are_those_of_the_policy(kind: str) -> None:
    asked = [setup.policy for setup in probes("small") if setup.policy.kind == kind]
    assert shapes(kind) == [(policy.draft_forwards, policy.max_verify_tokens) for policy in asked]


def test_lookup_runs_no_drafter_and_verifies_what_it_found() -> None:
    asked = [setup.policy for setup in probes("small") if isinstance(setup.policy, LookupPolicy)]
    for policy, (forwards, nodes) in zip(asked, shapes("lookup"), strict=True):
        assert forwards == 0 and 1 <= nodes <= policy.length + 1


def test_the_probes_of_a_kind_differ_in_shape() -> None:
    for kind in (Eagle2Policy.__name__, CastPolicy.__name__):
        sizes = {s.policy.max_verify_tokens for s in probes("small") if type(s.policy).__name__ == kind}
        assert len(sizes) == 2


def test_a_rounds_verify_and_all_its_drafts_are_taken_off() -> None:
    for sample in samples():
        taken = 1e9 + 1e6 * sample.draft_forwards
        assert all(-taken < ms < -taken + 1e5 for ms in sample.host_ms)  # what is left is far below a forward


def test_texts_that_end_at_once_are_sampled_all_the_same() -> None:
    ending = [Request(prompt=(place,), max_new_tokens=40, stop=frozenset(range(24))) for place in range(2)]
    surfaces = surface("verify", 1.0), {"small": surface("draft", 1.0)}
    found = measure_overhead(FAMILY, ending, surfaces, batch=2, drafter="small")
    assert all(sample.batch == 2 and len(sample.host_ms) == ROUNDS for sample in found)
