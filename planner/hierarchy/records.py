"""What a hierarchy of drafters is, and the costs and acceptances that its planner needs.

    models[0], models[1], .. models[-1]    smallest to largest; the last is the target
    c_i(n)      forward_ms[n] of model i   milliseconds of one forward of n tokens, measured
    o_i         host_ms of model i         added to every forward of it
    a_ij        acceptance[i][j], j < i    chance that model i accepts a token drawn by model j

Model i may verify drafts of any model before it. A block drafter (n-gram lookup, suffix table, Medusa's heads) may only
be at the bottom, a tree below the target alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """What a model's forwards take; longer drafts than the last entry's are cut before they are verified."""

    name: str
    forward_ms: tuple[float, ...]  # index = tokens fed, entry 0 not read; steps and inversions stay
    host_ms: float = 0.0  # of each forward, on top

    def __post_init__(self) -> None:
        _require_curve(f"forwards of {self.name}", self.forward_ms)
        if not 0.0 <= self.host_ms < math.inf:
            raise PlanError(f"host time of {self.name} must be finite and at least 0 ms, got {self.host_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePassDrafter:
    """A source whose draft of n tokens is one act: lookup, suffix table, Medusa-like heads.

    By verifying model, entry k - 1 of `acceptance` is the chance that token k is accepted, given that all before it
    were. Models without an entry cannot verify it.
    """

    name: str
    draft_ms: tuple[float, ...]  # index = tokens drafted; entry 0 is not read
    acceptance: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        _require_curve(f"drafts of {self.name}", self.draft_ms)
        if not all(chances for chances in self.acceptance.values()):
            raise PlanError(f"{self.name} has an empty acceptance, got {dict(self.acceptance)}; leave that model out")
        _require_chances(self.name, [chance for chances in self.acceptance.values() for chance in chances])


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCosts:
    """What forwards take where one model verifies a certain drafter, in place of the verifier's own curve.

    The full model behind an early exit, for one, reuses the layers that the exit has run.
    """

    verifier: str
    drafter: str
    forward_ms: tuple[float, ...]  # index = tokens fed, entry 0 not read; the verifier's host time is added

    def __post_init__(self) -> None:
        _require_curve(f"forwards of {self.verifier} on {self.drafter}", self.forward_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTree:
    """A tree that the target verifies instead of the bare chain of one drafter.

    Indices are tokens drafted in the chain. Entry 0 is not read; longer drafts are cut to the last entry.
    """

    name: str
    drafter: str  # model or block drafter that drafts the chain in the tree
    expected_tokens: tuple[float, ...]  # mean of a verification, the target's own included
    verify_tokens: tuple[int, ...]  # fed to the target, root included
    host_ms: float = 0.0  # of each verification, beyond the target's own

    def __post_init__(self) -> None:
        if len(self.expected_tokens) != len(self.verify_tokens) or len(self.expected_tokens) < 2:
            raise PlanError(
                f"tree {self.name} needs as many expected as verified tokens, and at least two entries, got "
                f"{len(self.expected_tokens)} and {len(self.verify_tokens)}; entry 0 is no draft"
            )
        if min(self.expected_tokens[1:]) < 1.0 or min(self.verify_tokens[1:]) < 1:
            raise PlanError(f"tree {self.name} yields or feeds less than one token, got {self}; count the target's own")
        if not 0.0 <= self.host_ms < math.inf:
            raise PlanError(f"host time of {self.name} must be finite and at least 0 ms, got {self.host_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyInputs:
    """All that the solvers read."""

    models: tuple[ModelCosts, ...]  # smallest first, the target last
    acceptance: tuple[tuple[float, ...], ...]  # [i][j], read where j < i
    blocks: tuple[SinglePassDrafter, ...] = ()
    edges: tuple[EdgeCosts, ...] = ()  # costs of one pair only
    trees: tuple[TopTree, ...] = ()  # those that the target may verify

    def __post_init__(self) -> None:
        if not self.models:
            raise PlanError("a hierarchy needs a target, got no model; give it as the last of the models")
        _require_distinct("models and block drafters", self.node_names)
        _require_distinct("trees", [tree.name for tree in self.trees])
        _require_distinct("edges", [f"{edge.verifier} on {edge.drafter}" for edge in self.edges])
        count = len(self.models)
        if len(self.acceptance) != count or any(len(row) < i for i, row in enumerate(self.acceptance)):
            raise PlanError(
                f"acceptance needs a row per model with an entry for each model before it, got "
                f"{[len(row) for row in self.acceptance]} entries for {count} models"
            )
        _require_chances("the models", [chance for i, row in enumerate(self.acceptance) for chance in row[:i]])
        self._require_known_names()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the models, then of the block drafters."""
        return (*(model.name for model in self.models), *(block.name for block in self.blocks))

    def _require_known_names(self) -> None:
        models, drafters = {model.name for model in self.models}, {*self.node_names} - {self.models[-1].name}
        verifiers = [name for block in self.blocks for name in block.acceptance]
        verifiers += [edge.verifier for edge in self.edges]
        drafting = [edge.drafter for edge in self.edges] + [tree.drafter for tree in self.trees]
        unknown = ({*verifiers} - models) | ({*drafting} - drafters)
        if unknown:
            raise PlanError(
                f"no model or drafter is called {sorted(unknown)}; models are {sorted(models)}, drafters "
                f"{sorted(drafters)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A drafting level; one call drafts `threshold` tokens, T; above the bottom, at least that many."""

    name: str
    threshold: int

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise PlanError(f"level {self.name} must draft at least 1 token, got {self.threshold}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A chain of drafting levels below the target, lowest first; without levels the target decodes alone."""

    levels: tuple[Level, ...] = ()
    tree: str | None = None  # that the target verifies; None is the bare chain

    def __post_init__(self) -> None:
        if self.tree is not None and not self.levels:
            raise PlanError(f"tree {self.tree} needs a level that drafts it, got none")

    @property
    def label(self) -> str:
        """Name for people."""
        levels = " > ".join(f"{level.name} {level.threshold}" for level in self.levels)
        return f"{levels or 'plain'}{f' in {self.tree}' if self.tree else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedHierarchy:
    """What a solver chose, and the latency it ascribes to it."""

    hierarchy: Hierarchy
    ms_per_token: float


def _require_curve(what: str, curve_ms: Sequence[float]) -> None:
    if len(curve_ms) < 2 or not all(0.0 <= ms < math.inf for ms in curve_ms[1:]):
        raise PlanError(
            f"{what} need a time per token count, finite and at least 0 ms, got {list(curve_ms)}; entry 0 is no token"
        )


def _require_chances(what: str, chances: Sequence[float]) -> None:
    wrong = [chance for chance in chances if not 0.0 <= chance <= 1.0]
    if wrong:
        raise PlanError(f"acceptances of {what} must lie in [0, 1], got {wrong}")


def _require_distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise PlanError(f"{what} must have different names, got {list(names)}")
