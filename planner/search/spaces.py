"""What Optuna searches of each kind of tree policy: the knobs, their ranges, and the policy they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..strategies import TreePolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.talon import TalonPolicy
from .knobs import Knobs, Range

DEEPEST = 10  # layers of nodes
MOST_CHILDREN = 10  # best next tokens looked at per node


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The knobs of one kind of policy.

    Attributes:
        kind: of the policies.
        ranges: of the knobs, by name.
        policy: makes one from knobs.
        knobs: of a policy of this kind.
    """

    kind: str
    ranges: Mapping[str, Range]
    policy: Callable[[Knobs], TreePolicy]
    knobs: Callable[[TreePolicy], dict[str, float]]


def spaces(children: int, most_tokens: int) -> tuple[Space, ...]:
    """Return the spaces of a drafter whose trace records so many children, under verifies of at most so many tokens."""
    if most_tokens < 3:
        return ()
    looked_at = min(MOST_CHILDREN, children)
    return (_talon(looked_at, most_tokens), _opt_tree(looked_at, most_tokens), _confident_chain(most_tokens))


def _talon(children: int, most_tokens: int) -> Space:
    def policy(knobs: Knobs) -> TreePolicy:
        return TalonPolicy(
            nodes=int(knobs["nodes"]),
            gate=knobs["gate"],
            top_k=int(knobs["top_k"]),
            children=children,
            max_depth=int(knobs["max_depth"]),
        )

    def knobs(policy: TreePolicy) -> dict[str, float]:
        assert isinstance(policy, TalonPolicy), "a space is asked about its own kind"
        return {"nodes": policy.nodes, "gate": policy.gate, "top_k": policy.top_k, "max_depth": policy.max_depth}

    ranges = {
        "nodes": Range(low=3, high=most_tokens, is_whole=True),
        "gate": Range(low=0.003, high=1.0),
        "top_k": Range(low=1, high=children, is_whole=True),
        "max_depth": Range(low=1, high=DEEPEST, is_whole=True),
    }
    return Space(kind="talon", ranges=ranges, policy=policy, knobs=knobs)


def _opt_tree(children: int, most_tokens: int) -> Space:
    def policy(knobs: Knobs) -> TreePolicy:
        return OptTreePolicy(
            nodes=int(knobs["nodes"]),
            least_gain=knobs["least_gain"],
            max_depth=int(knobs["max_depth"]),
            children=min(children, int(knobs["nodes"])),
        )

    def knobs(policy: TreePolicy) -> dict[str, float]:
        assert isinstance(policy, OptTreePolicy), "a space is asked about its own kind"
        return {"nodes": policy.nodes, "least_gain": policy.least_gain, "max_depth": policy.max_depth}

    ranges = {
        "nodes": Range(low=2, high=most_tokens - 1, is_whole=True),
        "least_gain": Range(low=0.02, high=1.0),
        "max_depth": Range(low=1, high=DEEPEST, is_whole=True),
    }
    return Space(kind="opt-tree", ranges=ranges, policy=policy, knobs=knobs)


def _confident_chain(most_tokens: int) -> Space:
    def policy(knobs: Knobs) -> TreePolicy:
        return ConfidentChainPolicy(length=int(knobs["length"]), confidence=knobs["confidence"])

    def knobs(policy: TreePolicy) -> dict[str, float]:
        assert isinstance(policy, ConfidentChainPolicy), "a space is asked about its own kind"
        return {"length": policy.length, "confidence": policy.confidence}

    ranges = {
        "length": Range(low=1, high=min(20, most_tokens - 1), is_whole=True),
        "confidence": Range(low=0.01, high=0.99),
    }
    return Space(kind="confident-chain", ranges=ranges, policy=policy, knobs=knobs)
