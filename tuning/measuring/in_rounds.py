"""What forwards take inside rounds, and what they lose there against running alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor

from ...planner.policies import PlainPolicy, StackPolicy, TextPolicy, TreePolicy
from ...runtime.cache import KeyValueCache
from ...runtime.models.forward import CausalModel, ForwardInput
from .alone import Forwards
from .loss import NOTHING_LOST, Form, Loss, loss_of

Like = Literal["plain", "text", "drafted"]
VERIFIED: dict[Like, Form] = {"plain": "constant", "text": "growing", "drafted": "constant"}  # what is lost
DRAFTED: dict[bool, Form] = {False: "line", True: "middle"}  # by whether it is in a stack, where models read texts


def like(policy: TreePolicy) -> Like:
    """Return which rounds the target's forwards of a policy are like."""
    if isinstance(policy, PlainPolicy):
        return "plain"
    return "text" if isinstance(policy, TextPolicy) else "drafted"


class Spent:
    """Milliseconds that forwards have taken so far, by the host's clock."""

    ms = 0.0


@contextmanager
def clocked(model: CausalModel | None) -> Iterator[Spent]:
    """Count what a model's forwards take meanwhile; of a device that goes on by itself, what their calls take.

    The model stays the object that it is: decoders ask for its type.
    """
    spent = Spent()
    if model is None:
        yield spent
        return
    forward = model.forward

    def timed(step: ForwardInput, cache: KeyValueCache) -> Tensor:
        start = time.perf_counter_ns()
        logits = forward(step, cache)
        spent.ms += (time.perf_counter_ns() - start) / 1e6
        return logits

    vars(model)["forward"] = timed
    try:
        yield spent
    finally:
        del vars(model)["forward"]


class Losses:
    """What forwards lose in rounds, told by all rounds that are alike."""

    def __init__(self) -> None:
        """Know none."""
        self._verified: defaultdict[Like, list[tuple[float, float]]] = defaultdict(list)
        self._drafted: defaultdict[bool, list[tuple[float, float]]] = defaultdict(list)

    def note(self, policy: TreePolicy, inside: Forwards, alone: Forwards) -> None:
        """Take note of what the forwards of a policy's round took in it, and alone."""
        self._verified[like(policy)].append((inside.verify_ms, alone.verify_ms))
        if alone.draft_ms > 0.0:
            self._drafted[isinstance(policy, StackPolicy)].append((inside.draft_ms, alone.draft_ms))

    def of(self, policy: TreePolicy) -> tuple[Loss, Loss]:
        """Return what a policy's forwards lose: the target's, and those of its drafter in one round together."""
        rounds, is_stack = like(policy), isinstance(policy, StackPolicy)
        verified, drafted = self._verified[rounds], self._drafted[is_stack]
        return (
            loss_of(verified, VERIFIED[rounds]) if verified else NOTHING_LOST,
            loss_of(drafted, DRAFTED[is_stack]) if drafted else NOTHING_LOST,
        )
