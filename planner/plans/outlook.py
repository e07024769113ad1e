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

    Attributes:
        change: which part of every round's milliseconds, or how many drafts of every policy are accepted.
        factor: it is multiplied by.
        label, drafter: of the policy that is fastest then.
        loss: by how much the planned policy is slower than that one then, relative, at least 0. The simplest of
            several equally fast policies is planned, so a loss within noise means nothing.
        speedup: of the planned policy over plain decoding then; what scales verification scales plain decoding too.
    """

    change: Change
    factor: float
    label: str
    drafter: str | None
    loss: float
    speedup: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.loss <= 1.0 or not 0.0 <= self.speedup < math.inf:
            raise PlanError(f"a scenario's loss lies in 0..1 and its speed-up is at least 0, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The fastest policy that differs from the planned one in one way; what it differs in besides was chosen anew.

    Attributes:
        step: "drafter": by another one, of any kind. "kind": of another kind by the same drafter. The others: of the
            same kind by the same drafter, with less or more depth, nodes per drafter forward, or verified tokens.
        tokens_per_s: as it was replayed, like the alternatives of a plan: without optimism taken off.
        tokens_per_round: per sequence.
    """

    step: Step
    label: str
    drafter: str | None
    tokens_per_s: float
    tokens_per_round: float
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

    Attributes:
        factor: by which its accepted drafts would have to grow for it to be as fast; at most 1 where it is as fast
            already, but not by more than choosing it on the recorded texts flatters it.
    """

    label: str
    drafter: str | None
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What would change the answer of a cell, and what a better drafter would be worth.

    Attributes:
        scenarios: costs and acceptance a tenth off, either way.
        break_even: share of its accepted drafts that the planned policy may lose before plain decoding is as fast; None
            for plain decoding.
        needed: for plain decoding, the speculative policy that lacks least; None for other policies, and where none
            would be as fast even if all its drafts were accepted.
        worth_per_percent: relative gain in speed of the planned policy per percent more accepted drafts.
        perfect_tokens_per_s: of a drafter that is always right at the planned drafter's cost, with the best chain the
            measured forwards allow, verified whole or from an exit's states as the plan does; for plain decoding the
            fastest such drafter. None where no chain was measured.
        perfect_length: of that chain.
        neighbours: what the planned shape, kind and drafter are better than.
    """

    scenarios: tuple[Scenario, ...]
    break_even: float | None
    needed: Challenger | None
    worth_per_percent: float
    perfect_tokens_per_s: float | None
    perfect_length: int | None = None
    neighbours: tuple[Neighbour, ...] = ()

    def __post_init__(self) -> None:
        if self.break_even is not None and not 0.0 <= self.break_even <= 1.0:
            raise PlanError(f"the share of drafts a policy may lose lies in 0..1, got {self.break_even}")
        if (self.perfect_tokens_per_s is None) != (self.perfect_length is None):
            raise PlanError(
                f"a perfect drafter has a speed and a length or neither, got {self.perfect_tokens_per_s} and "
                f"{self.perfect_length}"
            )
