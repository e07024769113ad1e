"""A backend: how a target's rounds run on its device.

It is chosen once, when the target is loaded (`choice.py`). A round calls it, and asks no model what it can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...planner.records.draft import DraftBatch
from ..batch.faults import Fault
from ..batch.sequence import Request, Sequence, shared_temperature
from ..batch.stopwatch import Stopwatch
from ..models.forward import CausalModel, ForwardInput, LeftStates, Resuming
from ..models.kv_cache import KeyValueCache
from ..sampling.acceptance import Accepted, Rule, accepted
from ..sampling.captured_sampler import draws_ahead
from ..sampling.sampler import best_tokens, drawn_from, scored
from .compiled import prepare
from .names import Name
from .rounds_ahead import RoundsAhead
from .tree_input import TreeInput


@dataclass(slots=True, kw_only=True)
class VerifyCall:
    """The trees of one round, as the target reads them, and how their tokens are accepted."""

    batch: Many[Sequence]
    draft: DraftBatch
    trees: TreeInput
    inputs: ForwardInput
    depth: int  # at least that of any node of the policy's trees
    left: LeftStates | None = None  # from which the forward continues; None: all layers read all nodes
    rule: Callable[[Tensor, Tensor], Rule] | None = None  # of a lossy round, from its logits and scores

    @property
    def requests(self) -> list[Request]:
        """The requests of the batch."""
        return [sequence.request for sequence in self.batch]

    @property
    def is_greedy(self) -> bool:
        """Whether all sequences take the best token of the target's own scores."""
        return shared_temperature(self.batch) == 0.0

    @property
    def needs_logits_alone(self) -> bool:
        """Whether logits, noise and settings decide what is accepted: no lossy rule, and no token of the text."""
        return self.rule is None and (self.is_greedy or draws_ahead(self.requests))


class Backend(ABC):
    """Runs the rounds of one target over one cache; marks in `watch` when the target's forward has ended."""

    name: ClassVar[Name]

    def __init__(self, target: CausalModel, cache: KeyValueCache, watch: Stopwatch) -> None:
        """Load nothing yet."""
        self._target, self._cache, self._watch = target, cache, watch

    def prepare(self) -> None:
        """Load and compile what a round calls, so that no round waits."""
        prepare(self._target.dtype, self._target.device)

    @abstractmethod
    def verify(self, call: VerifyCall) -> Accepted:
        """Forward trees and return what the target accepts of each; rows of the cache are written, none moves."""

    def rounds_ahead(self, seen_in: Callable[[int], int] | None, faults: list[Fault]) -> RoundsAhead | None:
        """Return rounds that the device runs ahead of the host; None where the host launches each."""
        return None

    def logits(self, call: VerifyCall) -> Tensor:
        """Return the target's logits (batch, num_tokens, vocabulary) behind the nodes of trees."""
        if call.left is None:
            return self._target.forward(call.inputs, self._cache)
        assert isinstance(self._target, Resuming), "states_left has refused every other"
        return self._target.resume(call.inputs, self._cache, call.left)


def accepted_by_tokens(call: VerifyCall, logits: Tensor, done: Callable[[], None] | None = None) -> Accepted:
    """Return what is accepted by the target's token behind every node; `done` is called when all are drawn."""
    batch, trees = call.batch, call.trees
    scores = logits if call.is_greedy else scored(logits, batch, trees.paths)
    tokens = best_tokens(scores) if call.is_greedy else drawn_from(scores, batch, trees.depths)
    if done is not None:
        done()
    rule = None if call.rule is None else call.rule(logits, scores)
    return accepted(batch, call.draft, tokens, rule)
