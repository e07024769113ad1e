"""What forwards take inside rounds, and what they lose there against running alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ...planner.strategies import TreePolicy
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.stack import StackPolicy
from ...planner.strategies.text import TextPolicy
from ...runtime.models.forward import CausalModel
from .alone import Forwards
from .loss import Form, Loss, Timed, loss_of, stall_share

Like = Literal["plain", "text", "drafted"]
FORWARDS = ("forward", "found", "grown", "forward_leaving", "read", "round")  # what drafters ask of all kinds of models
VERIFIED: dict[Like, Form] = {"plain": "constant", "text": "growing", "drafted": "constant"}  # what is lost
DRAFTED: dict[bool, Form] = {False: "line", True: "constant"}  # by whether it is in a stack, where models read texts


def like(policy: TreePolicy) -> Like:
    """Return which rounds the target's forwards of a policy are like."""
    if isinstance(policy, PlainPolicy):
        return "plain"
    return "text" if isinstance(policy, TextPolicy) else "drafted"


class Spent:
    """Milliseconds that forwards have taken so far, by the host's clock."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._is_inside = False  # of one: what it asks of its own model is part of it

    def timed(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a forward that is counted."""

        def run(*inputs: Any) -> Tensor:  # Any: each of `FORWARDS` takes its own
            if self._is_inside:
                return forward(*inputs)
            self._is_inside, start = True, time.perf_counter_ns()
            try:
                return forward(*inputs)
            finally:
                self._is_inside = False
                self.ms += (time.perf_counter_ns() - start) / 1e6

        return run


@contextmanager
def clocked(model: CausalModel | None) -> Iterator[Spent]:
    """Count the time of a model's forwards in the block; on an asynchronous device, that of their calls.

    The model stays the object that it is: decoders ask for its type.
    """
    spent = Spent()
    own = {name: getattr(model, name) for name in FORWARDS if hasattr(model, name)}
    for name, forward in own.items():
        vars(model)[name] = spent.timed(forward)
    try:
        yield spent
    finally:
        for name in own:
            del vars(model)[name]


class Losses:
    """What forwards lose in rounds, by all rounds that are alike, and what stalls add, by all rounds."""

    def __init__(self) -> None:
        self._verified: defaultdict[Like, list[Timed]] = defaultdict(list)
        self._drafted: defaultdict[bool, list[Timed]] = defaultdict(list)

    def note(self, policy: TreePolicy, inside: Forwards, alone: Forwards) -> None:
        """Take note of what the forwards of a policy's round took in it, and alone."""
        self._verified[like(policy)].append((inside.verify_ms, alone.verify_ms))
        if alone.draft_ms > 0.0:
            self._drafted[isinstance(policy, StackPolicy)].append((inside.draft_ms, alone.draft_ms))

    def told(self) -> Lost:
        """Return what is known when all rounds are noted."""
        verified = {rounds: loss_of(timed, VERIFIED[rounds]) for rounds, timed in self._verified.items()}
        drafted = {is_stack: loss_of(timed, DRAFTED[is_stack]) for is_stack, timed in self._drafted.items()}
        stalls = stall_share([(one, verified[rounds]) for rounds, timed in self._verified.items() for one in timed])
        return Lost(
            verified={rounds: loss.stalling(stalls) for rounds, loss in verified.items()},
            drafted={is_stack: loss.stalling(stalls) for is_stack, loss in drafted.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What forwards lose in rounds: the target's, and those of its drafter in one round together."""

    verified: dict[Like, Loss]
    drafted: dict[bool, Loss]

    def of(self, policy: TreePolicy, alone: Forwards) -> float:
        """Return the milliseconds that the forwards of a policy's round lose which take so many alone."""
        lost_ms = self.verified[like(policy)].of(alone.verify_ms)
        return lost_ms + (self.drafted[isinstance(policy, StackPolicy)].of(alone.draft_ms) if alone.draft_ms else 0.0)
