"""What the trees of a policy look like in the rounds of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFacts:
    """Means over rounds, by depth of the drafted token: entry 0 is depth 1, the tokens after the committed text."""

    verified: tuple[float, ...]  # nodes per sequence that the target verifies there
    reached: tuple[float, ...]  # share of rounds in which the target takes one of them; never rising
    taken: tuple[float, ...] = ()  # of a fixed tree, share by node, the root's 1.0 first; else empty

    def __post_init__(self) -> None:
        if len(self.verified) != len(self.reached):
            raise PlanError(f"a shape needs as many depths in verified as in reached, got {self}")
        above = (1.0, *self.reached)
        if not all(0.0 <= share <= more + 1e-9 for share, more in zip(self.reached, above, strict=False)):
            raise PlanError(f"the shares of rounds that reach a depth must fall from 1 to 0, got {self.reached}")
        if self.taken and not (self.taken[0] == 1.0 and all(0.0 <= share <= 1.0 for share in self.taken)):
            raise PlanError(f"every round takes the root and nodes are taken in 0..1 of them, got {self.taken}")
