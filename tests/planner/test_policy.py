"""Policies: their ranges, what they cost at most, and their way through JSON."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spectune.errors import PlanError, SpectuneError
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy, policy_from_json, policy_to_json
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.calibration import SurvivalCurve

FORK = TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))


def cast(**changes: object) -> CastPolicy:
    fields: dict[str, object] = {
        "breadth": 4.0,
        "depth": 3.0,
        "rerank": 2.5,
        "max_width": 2,
        "max_depth": 3,
        "max_verify_tokens": 4,
        "ratio_window": 3,
        "draft_cost_ms": (0.0, 0.1, 0.11),
        "verify_cost_ms": (0.0, 1.0, 1.0, 1.1, 1.3),
    }
    return CastPolicy(**(fields | changes))  # type: ignore[arg-type]


EVERY: list[TreePolicy] = [
    PlainPolicy(),
    ChainPolicy(length=3),
    ResumedPolicy(draft=ChainPolicy(length=3)),
    LookupPolicy(length=8),
    StaticPolicy(tree=FORK),
    Eagle2Policy(),
    ConfidentChainPolicy(),
    TalonPolicy(),
    OptTreePolicy(),
    cast(),
]
CURVE = SurvivalCurve(log_probs=(-3.0, -0.5), survivals=(0.1, 0.8), nodes=70)


@pytest.mark.parametrize(
    "policy",
    [*EVERY, cast(survival=(CURVE, CURVE)), TalonPolicy(nodes=9, gate=0.25, top_k=2, children=4, max_depth=3)],
    ids=lambda policy: policy.code,
)
def test_json_gives_back_the_same_policy(policy: TreePolicy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


def test_labels_and_kinds_tell_the_policies_apart() -> None:
    assert len({policy.code for policy in EVERY}) == len({policy.kind for policy in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("policy", "forwards", "tokens"),
    [
        (PlainPolicy(), 0, 1),
        (ChainPolicy(length=3), 3, 4),
        (LookupPolicy(length=8), 0, 9),
        (StaticPolicy(tree=FORK), 2, 4),
        (Eagle2Policy(verify_tokens=60, depth=7, top_k=10), 8, 60),
        (Eagle2Policy(verify_tokens=60, depth=1, top_k=2), 2, 7),  # only 2 + 4 candidates exist
        (ConfidentChainPolicy(), 20, 21),
        (TalonPolicy(), 50, 60),  # one node per layer below the first ten
        (TalonPolicy(nodes=60, max_depth=8), 8, 60),
        (TalonPolicy(nodes=5, top_k=10), 1, 5),
        (OptTreePolicy(), 10, 61),
        (cast(), 3, 4),
    ],
)
def test_forwards_and_tokens_count_root_pass_and_root(policy: TreePolicy, forwards: int, tokens: int) -> None:
    assert (policy.draft_forwards, policy.max_verify_tokens) == (forwards, tokens)


def test_codes_tell_a_calibrated_cast_and_a_talon_whose_depth_is_cut() -> None:
    assert cast(survival=(CURVE,)).code == "CAST 4/3/2.5, calibrated, at most 4"
    assert TalonPolicy().code == "TALON 60/0.03/10"
    assert TalonPolicy(max_depth=6).code == "TALON 60/0.03/10, at most 6 deep"


def test_only_cast_couples_the_sequences_of_a_batch() -> None:
    assert [policy.kind for policy in EVERY if policy.is_coupled(2)] == ["cast"]


def test_one_sequence_is_never_coupled() -> None:
    assert not any(policy.is_coupled(1) for policy in EVERY)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ChainPolicy(length=0),
        lambda: LookupPolicy(length=0),
        lambda: LookupPolicy(length=4, max_ngram=1, min_ngram=2),
        lambda: StaticPolicy(tree=TokenTree(parents=(-1,), ranks=(0,))),
        lambda: Eagle2Policy(verify_tokens=1),
        lambda: Eagle2Policy(top_k=0),
        lambda: ConfidentChainPolicy(length=0),
        lambda: ConfidentChainPolicy(confidence=1.1),
        lambda: ConfidentChainPolicy(confidence=float("nan")),
        lambda: TalonPolicy(nodes=1),
        lambda: TalonPolicy(gate=0.0),
        lambda: TalonPolicy(gate=1.01),
        lambda: TalonPolicy(top_k=0),
        lambda: TalonPolicy(children=9),  # fewer than top_k
        lambda: TalonPolicy(max_depth=0),
        lambda: OptTreePolicy(nodes=0),
        lambda: OptTreePolicy(max_depth=0),
        lambda: OptTreePolicy(children=0),
        lambda: OptTreePolicy(least_gain=float("inf")),
        lambda: cast(breadth=-1.0),
        lambda: cast(rerank=float("nan")),
        lambda: cast(ratio_window=0),
        lambda: cast(max_width=3),  # beyond the draft table
        lambda: cast(max_verify_tokens=5),  # beyond the verify table
        lambda: cast(draft_cost_ms=(0.1, 0.1, 0.1)),  # nothing must cost nothing
        lambda: cast(verify_cost_ms=(0.0, 0.0, 1.0, 1.0, 1.0)),  # a free step
    ],
)
def test_a_policy_out_of_range_is_refused(build: Callable[[], TreePolicy]) -> None:
    with pytest.raises(PlanError):
        build()


@pytest.mark.parametrize("text", ['{"kind": "oracle"}', "{}", "[]", "not JSON"])
def test_json_of_no_known_policy_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        policy_from_json(text)


def test_json_with_a_foreign_field_is_refused() -> None:
    with pytest.raises(SpectuneError):
        policy_from_json('{"kind": "chain", "length": 3, "width": 2}')


def test_json_out_of_range_is_refused() -> None:
    with pytest.raises(PlanError, match="chain length"):
        policy_from_json('{"kind": "chain", "length": 0}')
