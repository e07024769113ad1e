"""Find the plan for a target on a device, and say why it is this one or none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ..db.store import open_store
from ..errors import NoPlanError, PlanError, RequestError, StoreError
from ..planner.plan import Plan, plan_from_json
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity

Source = Literal["this device", "same kind of device", "file", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan, or none for plain decoding, and the reason in one line."""

    plan: Plan | None
    source: Source
    reason: str


def choose_plan(
    plan: str, *, target: ModelIdentity, device: Device, store: str | None, workload: str, temperature: float
) -> Choice:
    """Return the plan to decode with.

    "auto" takes the newest plan of the store for exactly this device, else for the same kind of device
    under other versions, else none; a store that cannot be read means none. "none" is plain decoding.
    Anything else is a plan file, which must be for this target and this kind of device.

    Raises:
        RequestError: the file cannot be read.
        PlanError: the file is corrupt, or for another target or device.
    """
    if plan == "none":
        return Choice(plan=None, source="none", reason="plain decoding was asked for")
    if plan != "auto":
        return _from_file(Path(plan), target, device)
    try:
        return _from_store(target, device, store, workload, temperature)
    except NoPlanError as error:
        return Choice(plan=None, source="none", reason=f"plain decoding: {error}")
    except (StoreError, PlanError) as error:
        return Choice(plan=None, source="none", reason=f"plain decoding, the stored plan is of no use: {error}")


def _from_file(path: Path, target: ModelIdentity, device: Device) -> Choice:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the plan {path} ({error}); write one with: spectune plan -o FILE") from error
    plan = plan_from_json(text)
    if plan.target.key != target.key:
        raise PlanError(f"{path} is a plan for the model {plan.target.name}, not for {target.name}; plan this model")
    if plan.device.kind_key != device.kind_key:
        raise PlanError(
            f"{path} is a plan for another device ({plan.device.label}), this is {device.label}; "
            "profile and plan on this one"
        )
    return Choice(plan=plan, source="file", reason=f"plan from {path}")


def _from_store(target: ModelIdentity, device: Device, store: str | None, workload: str, temperature: float) -> Choice:
    with open_store(store) as opened:
        find = partial(opened.newest_plan, target=target.key, workload=workload, temperature=temperature)
        try:
            text = find(device=device.fingerprint)
            source: Source = "this device"
        except NoPlanError:
            text = find(device_kind=device.kind_key)
            source = "same kind of device"
    reason = f"plan made on {source}"
    if source != "this device":
        reason += ", under other versions or settings; its prediction may be off"
    return Choice(plan=plan_from_json(text), source=source, reason=reason)
