"""What a store promises of plans: they are stored, found, promoted and retired, and so are their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..profiler.records.device import Device

if TYPE_CHECKING:
    from .plans import PlanRow
    from .shelf import PlanEvent
    from .sources import PlanSource
    from .wire import Resolved


class PlanStore(Protocol):
    """What was planned; see `SqlStore`, which says more of each method."""

    def add_plan(
        self,
        plan_json: str,
        *,
        device: str,
        device_kind: str,
        target: str,
        workload: str,
        temperature: float,
        sources: Sequence[PlanSource] = (),
    ) -> int:
        """Keep a plan's text with its hash and what it was computed from, and return its id."""
        ...

    def find_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> PlanRow:
        """Return the plan of a setup that counts, made on exactly this device or on any device of this kind."""
        ...

    def plan(self, plan_id: int) -> str:
        """Return the text of one plan, byte for byte as it was added."""
        ...

    def plan_row(self, plan_id: int) -> PlanRow:
        """Return what the store says about one plan."""
        ...

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return what a plan was computed from; nothing is known of an older version's plans."""
        ...

    def plan_events(self, plan_id: int) -> list[PlanEvent]:
        """Return everything that happened to a plan's state, oldest first."""
        ...

    def plans(
        self,
        limit: int | None = None,
        after: int | None = None,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
        state: str | None = None,
    ) -> list[PlanRow]:
        """Return what the store says about plans, oldest first."""
        ...

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> Resolved | None:
        """Return the plan that the store itself finds best for a device, None where it leaves that to its reader."""
        ...

    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count for its setup from now on."""
        ...

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more."""
        ...

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan be one of its setup's again."""
        ...

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan of a setup that counts, and return the one that counts now: the one that did before."""
        ...

    def add_observation(self, plan_id: int, document: str) -> None:
        """Keep what a decoder saw while it ran a plan."""
        ...

    def observations(self, plan_id: int) -> list[str]:
        """Return every observation of a plan, oldest first."""
        ...

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        """Return the newest observations of a plan, at most so many, oldest first."""
        ...

    def add_validation(self, plan_id: int, document: str) -> None:
        """Keep what a plan delivered when it was measured."""
        ...

    def validations(self, plan_id: int) -> list[str]:
        """Return every validation of a plan, oldest first."""
        ...
