"""A chain that ends where the drafter doubts. Source: Mamou et al. 2024, arXiv:2405.04304."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..records.costs import PlannedCosts
from ..records.draft import Asked, Bools, Growth, Ints, Scores, is_sure
from ..records.knobs import Knobs, Range
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults
from .base import Strategy, Trees, require_at_least
from .naming import name_by
from .offers import Graded, Limits, Published, Space

LENGTHS = (4, 6, 8, 12, 20)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentChainPolicy(Strategy):
    """Draft a chain of up to `length` tokens that ends with the first one the drafter doubts, which is still verified.

    A token is doubted where its conditional probability is below `confidence`. Defaults are those of transformers 5.23
    (since 4.45) for one sequence: num_assistant_tokens = 20, num_assistant_tokens_schedule = "constant",
    assistant_confidence_threshold = 0.4. With scikit-learn installed, transformers also moves the threshold after each
    round. That is not done here, because a tree has to be a function of the committed text. The schedules "heuristic"
    and "heuristic_transient" are left out for the same reason.

    Source: Mamou et al. 2024, arXiv:2405.04304; transformers' AssistedCandidateGenerator, ConfidenceCriteria.
    """

    length: int = 20
    confidence: float = 0.4
    kind: Literal["confident-chain"] = "confident-chain"

    complexity: ClassVar = 2
    hangs_on_scores: ClassVar = True
    sweeps_together: ClassVar = True
    grid_place: ClassVar = 7
    search_place: ClassVar = 3
    names: ClassVar = {
        r"chain of up to (?P<length>\d+) while surer than \S+": lambda found, drafter: name_by(
            f"chain of up to {found['length']}", drafter
        )
    }

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)
        if not 0.0 <= self.confidence <= 1.0:
            raise PlanError(f"a chain's confidence is a probability, got {self.confidence}; pass 0 never to stop early")

    @property
    def code(self) -> str:
        return f"chain of up to {self.length} while surer than {self.confidence:.3g}"

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,) * self.length

    @property
    def max_verify_tokens(self) -> int:
        return self.length + 1

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Return one chain per sequence; drafting continues while any sequence's last token is not doubted."""
        below, first = (yield Asked(1)), ops.rows((0,))
        tokens, drafted = [below.tokens[:, 0]], [first == 0]
        while True:
            is_open = drafted[-1] & is_sure(ops.double(below.log_probs[:, :, 0]), self.confidence)
            if len(tokens) == self.length or ops.stopped(is_open):
                parents = ops.rows(tuple(range(-1, len(tokens) - 1)))
                chosen, starts = ops.concat(drafted), range(len(tokens))
                return ops.tree(ops.concat(tokens), parents, starts, chosen, len(tokens), (1,) * len(tokens))
            below = yield Asked(1, ops.where(is_open, 0, -1), first)
            tokens.append(below.tokens[:, 0])
            drafted.append(is_open)

    def results(self, recorded: Recorded) -> PositionResults:
        ((_, results),) = confident_chain_results(recorded.drafted, [self.length], [self.confidence])
        return results

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[ConfidentChainPolicy]) -> Iterator[Graded]:
        lengths, confidences = sorted({one.length for one in variants}), sorted({one.confidence for one in variants})
        for policy, results in confident_chain_results(recorded.drafted, lengths, confidences):
            if policy in variants:
                yield Graded(policy, results)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        lengths = [length for length in LENGTHS if length < limits.most_tokens]
        if lengths:
            for policy, results in confident_chain_results(recorded.drafted, lengths, CONFIDENCES):
                yield Graded(policy, results)

    @classmethod
    def space(cls, children: int, most_tokens: int) -> Space | None:
        if most_tokens < 3:
            return None

        def policy(knobs: Knobs) -> ConfidentChainPolicy:
            return cls(length=int(knobs["length"]), confidence=knobs["confidence"])

        def knobs(policy: ConfidentChainPolicy) -> dict[str, float]:
            return {"length": policy.length, "confidence": policy.confidence}

        ranges = {
            "length": Range(low=1, high=min(20, most_tokens - 1), is_whole=True),
            "confidence": Range(low=0.01, high=0.99),
        }
        return Space(kind="confident-chain", ranges=ranges, policy=policy, knobs=knobs)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [] if drafter is None else [PUBLISHED]

    @classmethod
    def engine_grid(cls) -> list[ConfidentChainPolicy]:
        return [cls(length=length, confidence=confidence) for length in LENGTHS for confidence in CONFIDENCES]

    @classmethod
    def probes(cls, most_tokens: int) -> list[ConfidentChainPolicy]:
        return [cls(length=min(8, most_tokens - 1), confidence=0.0)]


def confident_chain_results(
    recording: Recording, lengths: Sequence[int], confidences: Sequence[float]
) -> Iterator[tuple[ConfidentChainPolicy, PositionResults]]:
    """Yield the results of chains of every length and confidence, from one walk along the drafter's own choices.

    A position is censored where a chain goes on behind an expansion that was not recorded. With a prefix-exact trace,
    one on the target's own path is the root of a later position.
    """
    chains = _chains(recording, max(lengths))
    for length in lengths:
        for confidence in confidences:
            policy = ConfidentChainPolicy(length=length, confidence=confidence)
            yield policy, chains.results(policy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chains:
    """The drafter's first choices below every row: (rows, length) each."""

    log_probs: Scores
    right: Ints  # how many of the first so many are the target's own
    is_recorded: Bools  # the expansion that chose this token

    def results(self, policy: ConfidentChainPolicy) -> PositionResults:
        goes_on = np.logical_and.accumulate(
            is_sure(self.log_probs[:, : policy.length - 1].astype(np.float64), policy.confidence), axis=1
        )
        drafted = 1 + goes_on.sum(axis=1)
        is_drafted = np.arange(policy.length) < drafted[:, None]
        return PositionResults(
            accepted=np.minimum(self.right, drafted),
            sizes=1 + drafted,
            censored=(is_drafted & ~self.is_recorded[:, : policy.length]).any(axis=1),
            widths=is_drafted.astype(np.int64),
        )


def _chains(recording: Recording, length: int) -> _Chains:
    rows = np.arange(len(recording.roots))
    shape = (len(rows), length)
    log_probs, is_recorded = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.bool_)
    nodes, right = recording.roots, np.zeros(len(rows), dtype=np.int64)
    for depth in range(length):
        if recording.is_prefix_exact:
            later = np.minimum(rows + depth, len(rows) - 1)
            is_found = (nodes == recording.missing) & (right == depth) & (depth < recording.rows.left)
            nodes = np.where(is_found, recording.roots[later], nodes)
        log_probs[:, depth], is_recorded[:, depth] = recording.log_probs[nodes, 0], nodes != recording.missing
        right += (right == depth) & (recording.hit_rank[nodes] == 0)
        nodes = recording.child[nodes, 0].astype(np.int64)
    return _Chains(log_probs=log_probs, right=right, is_recorded=is_recorded)


TRANSFORMERS = ConfidentChainPolicy(length=20, confidence=0.4)
PUBLISHED = Published(
    name="transformers' assisted generation",
    source="transformers 4.45 to 5.23, GenerationConfig: 20 tokens, constant, threshold 0.4",
    make=lambda: TRANSFORMERS,
    place=1,
)
