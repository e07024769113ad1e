"""Plans at a service: those that were read are kept for when it does not answer."""

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
        """Keep a plan's text with its hash and what it was computed from, and return its id.

        Args:
            plan_json: the plan, returned byte for byte.
            device: Device.fingerprint.
            device_kind: Device.kind_key.
            target: ModelIdentity.key.
            workload: name of the prompts.
            temperature: of the requests; within 1e-9 is the same setup.
            sources: the records it was computed from.
        """
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
        """Return the plan of a setup that counts, made on exactly this device or on any device of this kind.

        Raises:
            NoPlanError: the store holds none.
            StoreError: not exactly one of device and device_kind is given.
        """
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
        """Return the text of one plan, byte for byte as it was added.

        Raises:
            StoreError: there is no such plan, or its text no longer has its hash.
        """
        return self._reader.text(f"/v1/plans/{plan_id:d}")

    def plan_row(self, plan_id: int) -> PlanRow:
        """Return what the store says about one plan.

        Raises:
            StoreError: there is no such plan.
        """
        return self._reader.get(PlanRow, f"/v1/plans/{plan_id:d}/row")

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return what a plan was computed from; nothing is known of plans that an older version kept.

        Raises:
            StoreError: there is no such plan.
        """
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
        """Return what the store says about plans, oldest first.

        Args:
            limit: at most so many; all where absent.
            after: only plans whose id is greater than this.
            device: only this Device.fingerprint.
            device_kind: only this Device.kind_key.
            target: only this ModelIdentity.key.
            workload: only for these prompts.
            temperature: only within 1e-9 of this.
            state: only "kept", "promoted", "retired" or "restored".
        """
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

        Args:
            device: what it is to run on.
            target: ModelIdentity.key.
            workload: name of the prompts; any where None.
            temperature: of the requests.
            dtype: number format of the weights: plans made for it go first on each rung; any does where None.

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
        """Let a plan count for its setup from now on.

        Args:
            plan_id: the plan.
            by: who says so, at most 120 characters.
            reason: why, for people.

        Raises:
            StoreError: there is no such plan, or it is retired.
        """
        self._decide("promote", plan_id, by, reason)

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more.

        Raises:
            StoreError: there is no such plan, or it is retired.
        """
        self._decide("retire", plan_id, by, reason)

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan be one of its setup's again; it counts where it is the newest or is promoted.

        Raises:
            StoreError: there is no such plan, or it is not retired.
        """
        self._decide("restore", plan_id, by, reason)

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan of a setup that counts, and return the one that counts now: the one that did before.

        Raises:
            StoreError: no plan of the setup counts, or there is none to go back to; nothing was changed.
        """
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
