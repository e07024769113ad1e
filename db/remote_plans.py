"""Plans at a service: those that were read are stored for when it does not answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..errors import NoPlanError, PlanError, StoreError
from ..profiler.records.device import Device
from ..profiler.records.wire import to_json
from .plans import PlanRow
from .remote_http import RefusedError
from .remote_outcomes import RemoteOutcomes
from .remote_service import ABSENT, CONFLICT, Params
from .shelf import PlanEvent
from .sources import PlanSource
from .wire import Decision, NewPlan, Resolved, Resolving, Rollback


class RemotePlans(RemoteOutcomes):
    """Plans and their states; each method is that of a store in a database."""

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
        """Store a plan's text, byte for byte, with hash and sources, and return its id, as `Plans.add_plan`."""
        new = NewPlan(
            document=plan_json,
            device=device,
            device_kind=device_kind,
            target=target,
            workload=workload,
            temperature=float(temperature),
            sources=tuple(sources),
        )
        return self._service.ask(PlanRow, "/v1/plans", new).id

    def find_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> PlanRow:
        """Return the plan that counts for a setup, as `Plans.find_plan`, with its errors."""
        if (device is None) == (device_kind is None):
            raise StoreError(f"give device or device_kind, one of them, got {device!r} and {device_kind!r}")
        setup: Params = {"target": target, "workload": workload, "temperature": float(temperature)}
        try:
            place: Params = {"device": device, "device_kind": device_kind}
            return self._reader.get(PlanRow, "/v1/plans/find", {**place, **setup})
        except RefusedError as error:
            if error.status != ABSENT:
                raise
        where = f"device {device}" if device_kind is None else f"device kind {device_kind}"
        raise NoPlanError(f"target {target} on {where}, workload {workload!r}, temperature {temperature:g}", self.url)

    def plan(self, plan_id: int) -> str:
        """Return a plan's text, byte for byte; raise StoreError where it is missing or no longer has its hash."""
        return self._reader.text(f"/v1/plans/{plan_id:d}")

    def plan_row(self, plan_id: int) -> PlanRow:
        """Return the store's row of one plan; raise StoreError where there is none."""
        return self._reader.get(PlanRow, f"/v1/plans/{plan_id:d}/row")

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return a plan's sources, none for an older version's plan; raise StoreError where there is no such plan."""
        return self._service.all(PlanSource, f"/v1/plans/{plan_id:d}/sources")

    def plan_events(self, plan_id: int) -> list[PlanEvent]:
        """Return everything that happened to a plan's state, oldest first."""
        return self._service.all(PlanEvent, f"/v1/plans/{plan_id:d}/events")

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
        """Return the store's rows of plans, oldest first, filtered as by `Plans.plans`."""
        wanted: Params = {
            "device": device,
            "device_kind": device_kind,
            "target": target,
            "workload": workload,
            "temperature": None if temperature is None else float(temperature),
            "state": state,
        }
        return self._service.all(PlanRow, "/v1/plans", wanted, limit, after, get=self._reader.get)

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> Resolved:
        """Return the plan that the service finds best for a device, and how well it fits.

        `workload` None means any. On each rung plans for the number format `dtype` come first; None takes any.

        Raises:
            NoPlanError: the store holds none.
            PlanError: it holds some, and none can be used.
        """
        wanted = Resolving(device=device, target=target, workload=workload, temperature=float(temperature), dtype=dtype)
        try:
            return self._reader.ask("/v1/resolve", to_json(wanted), self._resolved)
        except RefusedError as error:
            if error.status == ABSENT:
                words = "any workload" if workload is None else f"workload {workload!r}"
                setup = f"target {target} on {device.label}, {words}, temperature {temperature:g}"
                raise NoPlanError(setup, self.url) from error
            raise PlanError(str(error)) if error.status == CONFLICT else error from error

    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count from now on, by someone for a reason; StoreError where missing or retired."""
        self._decide("promote", plan_id, by, reason)

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more; raise StoreError where there is none or it is retired."""
        self._decide("retire", plan_id, by, reason)

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan, else StoreError, be one of its setup's again; it counts where newest or promoted."""
        self._decide("restore", plan_id, by, reason)

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan that counts and return the one before, which counts now; StoreError changes nothing."""
        back = Rollback(
            device=device, target=target, workload=workload, temperature=float(temperature), reason=reason, by=by
        )
        return self._service.ask(PlanRow, "/v1/plans/rollback", back)

    def _decide(self, action: str, plan_id: int, by: str, reason: str) -> None:
        self._service.write("POST", f"/v1/plans/{plan_id:d}/{action}", Decision(reason=reason, by=by))

    def _resolved(self, body: str) -> Resolved:
        """Return an answer whose plan is a JSON value as a record whose plan is a text; numbers stay what they are."""
        try:
            answer = json.loads(body)
            answer["plan"] = json.dumps(answer["plan"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(f"{self.url} answered with something that holds no plan; see its log") from error
        return self._service.read(Resolved, json.dumps(answer).encode())
