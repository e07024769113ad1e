"""What timing a shape is worth to the plan: much where a policy that uses it could be the fastest.

Each drafter's chains and static trees, and lookups in the recorded texts, represent all policies of as many tokens.
Acceptance by rank and the texts give the tokens of each, the costs known so far its round time, and so its rate R. A
policy far below the best stays there whatever its exact cost; one close to it may yet win:

    weight = exp(-(R_best - R) / (REACH R_best)),    worth of a shape = the largest weight of a policy using it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..lockstep import replay_results
from ..records.best_trees import static_trees
from ..records.recording import Text, rows_of
from ..records.tree import TokenTree
from ..strategies.chain import LENGTHS
from ..strategies.lookup import LENGTHS as LOOKUP_LENGTHS
from ..strategies.lookup import lookup_results

Floats = NDArray[np.float64]
Shape = tuple[int, int, int]  # (batch, context_tokens, tokens)
Cost = Callable[[int, Shape], float | None]  # (surface, shape) -> milliseconds, None where it is not known yet
REACH = 0.05  # relative distance to the best rate at which a policy's weight has fallen to 1 / e
LONGEST_LOOKUP = 32  # drafted tokens; a verify of the longest has one more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A policy as far as its cost goes."""

    drafter: int | None  # its surface; None for drafts that cost nothing
    tokens_per_round: float
    verify_tokens: int
    widths: tuple[int, ...]  # nodes of each drafter forward
    resume: int | None = None  # the surface that verifies, from an exit's states; None: the target's own


class DecisionWorth:
    """Weighs shapes by how near the policies that use them come to the best; a `profiler.protocols.CellValue`."""

    def __init__(
        self,
        verify: int,
        acceptance: Mapping[int, Floats],
        contexts: Sequence[int],
        texts: Sequence[Text] = (),
        blocks: Collection[int] = (),
        resumes: Mapping[int, int] | None = None,
    ) -> None:
        """Sketch the policies; numbers and keys are those of surfaces.

        `acceptance` (children,) is a drafter's, unconditional by rank. `blocks` are block drafters, whose one forward
        drafts a tree; `resumes` gives for an exit the surface of verifying from its states. Rates are compared at
        `contexts`, PlanError if empty; lookups draft from `texts`.
        """
        if not contexts:
            raise PlanError("rates need a context to be compared at; name at least one")
        self._verify, self._contexts = verify, tuple(contexts)
        self._sketches = [Sketch(drafter=None, tokens_per_round=1.0, verify_tokens=1, widths=())]
        for drafter, by_rank in acceptance.items():
            forwards = 1 if drafter in blocks else None
            own = sketches(drafter, by_rank)
            self._sketches.extend(replace(one, widths=one.widths[:forwards]) for one in own)
            if resumes and drafter in resumes:
                self._sketches.extend(replace(one, resume=resumes[drafter]) for one in own[: len(LENGTHS)])
        if texts:
            self._sketches.extend(lookup_sketches(texts))

    def worths(self, cost: Cost) -> Callable[[int, Shape], float]:
        """Return what each shape is worth, in [0, 1], from the costs known so far."""
        known: dict[int, dict[int, Floats]] = {}

        def worth(surface: int, shape: Shape) -> float:
            batch, _, tokens = shape
            if batch not in known:
                known[batch] = self._weights(cost, batch)
            weights = known[batch].get(surface)
            return 0.0 if weights is None else float(weights[min(tokens, len(weights) - 1)])

        return worth

    def _weights(self, cost: Cost, batch: int) -> dict[int, Floats]:
        """Return, by surface, (tokens + 1,): the largest weight of a policy that uses that many tokens."""
        known = lru_cache(maxsize=None)(cost)
        rates = np.array([max(self._rate(known, batch, c, s) for c in self._contexts) for s in self._sketches])
        best = float(rates.max())
        if best <= 0.0:
            return {}
        weights = np.exp(-(best - rates) / (REACH * best))
        weights[0] = 1.0  # plain decoding: every speed-up is told against it
        used: dict[int, dict[int, float]] = {}
        for sketch, weight in zip(self._sketches, weights.tolist(), strict=True):
            _note(used.setdefault(self._verifies(sketch), {}), [sketch.verify_tokens], weight)
            if sketch.drafter is not None:
                _note(used.setdefault(sketch.drafter, {}), sketch.widths, weight)
        return {surface: _between(weights_at) for surface, weights_at in used.items()}

    def _verifies(self, sketch: Sketch) -> int:
        return self._verify if sketch.resume is None else sketch.resume

    def _rate(self, cost: Cost, batch: int, context: int, sketch: Sketch) -> float:
        """Return tokens per millisecond and sequence; 0 where a cost is not known."""
        round_ms = cost(self._verifies(sketch), (batch, context, sketch.verify_tokens))
        if round_ms is None:
            return 0.0
        for width in sketch.widths:
            assert sketch.drafter is not None, "only a drafter has forwards"
            ms = cost(sketch.drafter, (batch, context, width))
            if ms is None:
                return 0.0
            round_ms += ms
        return sketch.tokens_per_round / round_ms


def sketches(drafter: int, acceptance: Floats) -> list[Sketch]:
    """Return the chains of a drafter, given by its surface's number, and its best static trees of many sizes.

    `acceptance` (children,) is unconditional by rank; a path's acceptance is taken as the product along it.
    """
    first = float(acceptance[0])
    chains = [
        Sketch(
            drafter=drafter,
            tokens_per_round=sum(first**depth for depth in range(length + 1)),
            verify_tokens=length + 1,
            widths=(1,) * length,
        )
        for length in LENGTHS
    ]
    return [*chains, *(_of_tree(drafter, tree, acceptance) for tree in static_trees(acceptance))]


def lookup_sketches(texts: Sequence[Text]) -> list[Sketch]:
    """Return lookups of many lengths after 3..1-grams, with what they yield along the texts at batch 1."""
    rows = rows_of(texts)
    lengths = [length for length in LOOKUP_LENGTHS if length <= LONGEST_LOOKUP]
    return [
        Sketch(
            drafter=None,
            tokens_per_round=replay_results(results, rows, 1).tokens_per_round,
            verify_tokens=policy.max_verify_tokens,
            widths=(),
        )
        for policy, results in lookup_results(texts, 3, 1, lengths)
    ]


def _of_tree(drafter: int, tree: TokenTree, acceptance: Floats) -> Sketch:
    path = [1.0]
    for parent, rank in zip(tree.parents[1:], tree.ranks[1:], strict=True):
        path.append(path[parent] * float(acceptance[rank]))
    return Sketch(
        drafter=drafter,
        tokens_per_round=math.fsum(path),
        verify_tokens=tree.size,
        widths=tree.widths,
    )


def _note(weights: dict[int, float], tokens: Sequence[int], weight: float) -> None:
    for count in tokens:
        weights[count] = max(weights.get(count, 0.0), weight)


def _between(weights: dict[int, float]) -> Floats:
    """Return (most tokens + 2,): weights linear between the counts in use, 0 beyond the largest."""
    places = sorted(weights)
    filled = np.interp(np.arange(places[-1] + 1), places, [weights[place] for place in places])
    return np.append(filled, 0.0)
