"""What would change a cell's answer: costs or acceptance off by a tenth, a worse drafter, a better one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Change = Literal["verify", "draft", "host", "acceptance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing of the cell scaled, and what would be fastest then.

    Attributes:
        change: which part of a round's cost, or the accepted drafts of every policy.
        factor: it is multiplied by.
        label, drafter: of the policy that is fastest then.
        loss: by how much the planned policy is slower than that one then, relative, at least 0.
    """

    change: Change
    factor: float
    label: str
    drafter: str | None
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What would change the answer of a cell, and what a better drafter would be worth.

    Attributes:
        scenarios: costs and acceptance a tenth off, either way.
        break_even: share of its accepted drafts that the planned policy may lose before plain decoding is as fast; None
            for plain decoding.
        needed: for plain decoding: factor by which accepted drafts of the best speculative policy would have to grow to
            beat it; None for other policies, and where nothing was drafted.
        worth_per_percent: relative gain in speed per percent more accepted drafts.
        perfect_tokens_per_s: of a drafter that is always right at the planned drafter's cost, with the best chain.
    """

    scenarios: tuple[Scenario, ...]
    break_even: float | None
    needed: float | None
    worth_per_percent: float
    perfect_tokens_per_s: float | None
