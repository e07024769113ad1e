"""What forwards take inside rounds, and what they lose there against running alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from ...planner.strategies import REGISTRY, TreePolicy
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.stack import StackPolicy, stack_name
from ...planner.strategies.text import TextPolicy
from ...profiler.records.overhead import OUTERMOST
from ...runtime.batch.step_config import StepConfig
from ...runtime.models.forward import CausalModel
from .alone import Forwards
from .decoding import LOOKUP

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


Timed = tuple[float, float]  # milliseconds of a round's forwards in it, and alone
Form = Literal["constant", "growing", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much forwards take longer in a round than alone: `base_ms`, and `share` of their time."""

    base_ms: float
    share: float = 0.0

    def of(self, alone_ms: float) -> float:
        """Return the milliseconds that a forward loses which takes so many alone."""
        return self.base_ms + self.share * alone_ms

    def stalling(self, share: float) -> Loss:
        """Return the same loss of forwards that stalls make longer by so much, on average."""
        return Loss(base_ms=self.base_ms * (1.0 + share), share=self.share + share * (1.0 + self.share))


def loss_of(timed: Sequence[Timed], form: Form) -> Loss:
    """Return the median loss of rounds of some kinds, by least absolute deviations: stalls do not move it.

    Short forwards tell more, as they scatter by a share. A "constant" form is milliseconds, "growing" adds a share of
    the forward, both at least 0; "line" is the same of any sign.
    """
    from scipy.optimize import linprog

    inside, alone = np.array(timed).T
    columns = np.stack([1.0 / alone, np.ones(len(alone))], axis=1)[:, : 1 if form == "constant" else 2]
    shares, apart = inside / alone - 1.0, np.eye(len(alone))
    solved = linprog(
        np.concatenate([np.zeros(columns.shape[1]), np.ones(len(alone))]),
        A_ub=np.block([[-columns, -apart], [columns, -apart]]),
        b_ub=np.concatenate([-shares, shares]),
        bounds=[(0.0 if form == "growing" else None, None)] * columns.shape[1] + [(0.0, None)] * len(alone),
    )
    assert solved.x is not None, "deviations may be as large as they are"
    found: list[float] = solved.x.tolist()
    return Loss(base_ms=found[0], share=found[1] if columns.shape[1] == 2 else 0.0)


def stall_share(timed: Sequence[tuple[Timed, Loss]]) -> float:
    """Return the mean share by which rounds exceed the median loss of their kind, the outermost pulled in.

    Rounds of all kinds count together: stalls are the machine's, and few rounds of one kind tell of luck.
    """
    shares = np.array([inside / (alone + lost.of(alone)) - 1.0 for (inside, alone), lost in timed])
    return float(np.clip(shares, *np.quantile(shares, [OUTERMOST, 1.0 - OUTERMOST])).mean())


MOST_PROBED = 32  # tokens of the largest rounds that are timed
FEWEST_PROBED = 8  # that probes can be limited to


def probes(drafter: str | None, most_tokens: int = MOST_PROBED) -> list[StepConfig]:
    """Return one or more policies per kind that show its cost per forward and per node; `most_tokens` is at least 8.

    All kinds share the cost of a round, a node and a drafter's presence (`profiler/records/overhead.py`): small and
    large texts, chains and EAGLE-2 trees tell it. One policy of each other kind tells its own cost per forward.
    """
    setups = list[StepConfig]()
    for strategy in REGISTRY.values():
        name = {"none": None, "text": LOOKUP}.get(strategy.source, drafter)
        if drafter is not None or strategy.source in ("none", "text"):
            setups += [StepConfig(policy=policy, drafter=name) for policy in strategy.probes(most_tokens)]
    if drafter is not None:
        stack = StackPolicy(drafters=(drafter, LOOKUP), lengths=(4, 4))
        setups.append(StepConfig(policy=stack, drafter=stack_name(stack)))
    return setups
