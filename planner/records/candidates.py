"""The candidates of a growing tree: every child the drafter proposed, layer by layer.

Shared by all trees that follow the drafter's confidence. A layer expands the *kept* candidates of the layer above and
records all their children; the verified tree is any set of candidates that holds their parents. The best-scored ones
are such a set: a child never scores above its parent and is recorded after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .draft import Array, Asked, Growth
from .ops import NOTHING as NOTHING
from .ops import Ops

Trees = TypeVar("Trees")


@dataclass(slots=True, kw_only=True)
class Candidates(Generic[Trees]):
    """All children recorded so far; within a layer candidate = slot * children + rank. Lists hold one entry a layer.

    Attributes:
        tokens, layer_scores: (batch, candidates); scores are float32 path log-probabilities.
    """

    ops: Ops[Trees]
    asked: int  # children that are asked for, per expanded node; a small vocabulary has fewer
    tokens: list[Array]
    layer_scores: list[Array]
    parents: list[Array]  # (batch, candidates), index among all candidates of all layers; negative = root
    starts: list[int]  # index of each layer's first candidate among those of all layers
    widths: list[int]  # nodes per sequence that each forward saw

    @classmethod
    def below_root(cls, ops: Ops[Trees], children: int) -> Growth[Candidates[Trees]]:
        """Ask for the root's own children."""
        below = yield Asked(children)
        return cls(
            ops=ops,
            asked=children,
            tokens=[below.tokens[:, 0]],
            layer_scores=[below.log_probs[:, 0]],
            parents=[ops.rows((-1,) * below.tokens.shape[2])],
            starts=[0],
            widths=[1],
        )

    @property
    def depth(self) -> int:
        """Layers so far."""
        return len(self.widths)

    @property
    def scores(self) -> Array:
        """(batch, candidates) of the newest layer."""
        return self.layer_scores[-1]

    @property
    def start(self) -> int:
        """Index of the newest layer's first candidate among those of all layers."""
        return self.starts[-1]

    @property
    def count(self) -> int:
        """Candidates of all layers."""
        return self.start + int(self.scores.shape[1])

    @property
    def all_scores(self) -> Array:
        """(batch, candidates of all layers) in recorded order."""
        return self.ops.concat(self.layer_scores)

    def expand(self, kept: Array) -> Growth[None]:
        """Request children of the remaining candidates (batch, width) of the newest layer, in the order of their slots.

        -1 is padding of a row that expands fewer; its children score -inf.
        """
        slots, ranks = self.ops.located(kept, self.scores.shape[1] // self.widths[-1])
        below = yield Asked(self.asked, slots, ranks)
        scores, parents = self.ops.added(kept, self.start, self.scores, below.log_probs)
        self.starts.append(self.count)
        self.widths.append(kept.shape[1])
        self.tokens.append(below.tokens.reshape(scores.shape))
        self.layer_scores.append(scores)
        self.parents.append(parents)

    def best_tree(self, count: int) -> Trees:
        """Return the trees of the best candidates, or of all if there are fewer; ties in recorded order."""
        tokens, parents = self.ops.concat(self.tokens), self.ops.concat(self.parents)
        return self.ops.best_tree(self.all_scores, tokens, parents, self.starts, count, tuple(self.widths))

    def tree(self, is_chosen: Array, most: int) -> Trees:
        """Return the trees of chosen candidates (batch, count), closed under parents; no row has more than `most`."""
        tokens, parents = self.ops.concat(self.tokens), self.ops.concat(self.parents)
        return self.ops.tree(tokens, parents, self.starts, is_chosen, most, tuple(self.widths))
