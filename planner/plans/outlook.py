"""What would change a cell's answer: costs or acceptance off by a tenth, another shape, a worse or a better drafter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError

Change = Literal["verify", "draft", "host", "acceptance"]
Step = Literal["drafter", "kind", "shallower", "deeper", "narrower", "wider", "smaller", "larger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing of the cell scaled for every policy, and what would be fastest then.

    The simplest of several equally fast policies is planned, so a loss within noise means nothing. Scaled verification
    scales plain decoding too.
    """

    change: Change  # the part of a round's milliseconds, or the accepted drafts, that is scaled
    factor: float
    label: str  # of the policy that is fastest then
    drafter: str | None
    loss: float  # of the planned policy against that one, relative, at least 0
    speedup: float  # of the planned policy over plain decoding then

    def __post_init__(self) -> None:
        if not 0.0 <= self.loss <= 1.0 or not 0.0 <= self.speedup < math.inf:
            raise PlanError(f"a scenario's loss lies in 0..1 and its speed-up is at least 0, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The fastest policy that differs from the planned one in one way; its other settings were chosen afresh.

    A step of "drafter" allows any kind, one of "kind" has the same drafter. The others have the same of both, with less
    or more depth, nodes per drafter forward, or verified tokens.
    """

    step: Step
    label: str
    drafter: str | None
    tokens_per_s: float  # as replayed, without optimism taken off, like a plan's alternatives
    tokens_per_round: float  # per sequence
    draft_ms: float
    verify_ms: float
    host_ms: float

    @property
    def round_ms(self) -> float:
        """Mean milliseconds of one round."""
        return self.draft_ms + self.verify_ms + self.host_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenger:
    """The speculative policy that comes nearest to paying where plain decoding is planned.

    With `factor` times the accepted drafts it would be as fast; at most 1 where it already is, but by no more than
    choosing on the recorded texts flatters it.
    """

    label: str
    drafter: str | None
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What would change the answer of a cell, and what a better drafter would be worth.

    The perfect drafter is always right at the planned one's cost; for plain decoding it is the fastest such. It drafts
    the best chain that the measured forwards allow, verified as the plan does.
    """

    scenarios: tuple[Scenario, ...]  # costs and acceptance a tenth off, either way
    break_even: float | None  # share of accepted drafts to lose until plain decoding is as fast; None if plain
    needed: Challenger | None  # for plain decoding, the policy that lacks least; None: others, or out of reach
    worth_per_percent: float  # relative gain in speed per percent more accepted drafts
    perfect_tokens_per_s: float | None  # None where no chain was measured
    perfect_length: int | None = None  # of that chain
    neighbours: tuple[Neighbour, ...] = ()  # what the planned shape, kind and drafter are better than

    def __post_init__(self) -> None:
        if self.break_even is not None and not 0.0 <= self.break_even <= 1.0:
            raise PlanError(f"the share of drafts a policy may lose lies in 0..1, got {self.break_even}")
        if (self.perfect_tokens_per_s is None) != (self.perfect_length is None):
            raise PlanError(
                f"a perfect drafter has a speed and a length or neither, got {self.perfect_tokens_per_s} and "
                f"{self.perfect_length}"
            )
