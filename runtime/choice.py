"""Find the plan for a target on a device, and say why it is this one or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ..db.store import Store, open_store
from ..errors import NoPlanError, PlanError, RequestError, StoreError
from ..planner.plan import Plan, plan_from_json
from ..profiler.records.device import Device
from ..profiler.records.match import DeviceMatch, match_devices, nearest
from ..profiler.records.model import ModelIdentity

Source = Literal["this device", "same kind of device", "file", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan, or none for plain decoding, and the reason in one line."""

    plan: Plan | None
    source: Source
    reason: str
    match: DeviceMatch | None = None  # of the plan's device with this one; None without a plan


def choose_plan(
    plan: str, *, target: ModelIdentity, device: Device, store: str | None, workload: str, temperature: float
) -> Choice:
    """Return the plan to decode with.

    "auto" takes the newest plan of the store for exactly this device, else that of the nearest device of the
    same kind under other settings or versions, else none; a store that cannot be read means none. "none" is
    plain decoding. Anything else is a plan file, which must be for this target and this kind of device.
    Whatever differs between the plan's device and this one is named.

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
    match = match_devices(wanted=device, have=plan.device)
    if match.grade == "other":
        raise PlanError(
            f"{path} is a plan for another device ({plan.device.label}), this is {device.label}: {match}; "
            "profile and plan on this one"
        )
    return Choice(plan=plan, source="file", reason=f"plan from {path}{_caution(match)}", match=match)


def _from_store(target: ModelIdentity, device: Device, store: str | None, workload: str, temperature: float) -> Choice:
    with open_store(store) as opened:
        find = partial(opened.newest_plan, target=target.key, workload=workload, temperature=temperature)
        try:
            plan = plan_from_json(find(device=device.fingerprint))
            source: Source = "this device"
        except NoPlanError:
            plan = _nearest_plan(device, opened, find)
            source = "same kind of device"
    match = match_devices(wanted=device, have=plan.device)
    if match.grade == "other":
        raise PlanError(f"it is filed under this kind of device, but was made on another: {match}; plan again")
    return Choice(plan=plan, source=source, reason=f"plan made on {source}{_caution(match)}", match=match)


def _nearest_plan(device: Device, store: Store, find: Callable[..., str]) -> Plan:
    """Return the newest plan of the device that is nearest among those of this kind; the newest among equals.

    Raises:
        NoPlanError: no device of this kind has one.
    """
    find(device_kind=device.kind_key)  # raises where there is none
    plans = list(_plans_of_kind(device.kind_key, store, find))
    best = nearest(device, [plan.device for plan in plans])
    return next(plan for plan in plans if plan.device is best)


def _plans_of_kind(kind_key: str, store: Store, find: Callable[..., str]) -> Iterator[Plan]:
    """Yield the newest plan of every device of a kind, the newest first."""
    fingerprints = dict.fromkeys(row.device for row in reversed(store.plans()) if row.device_kind == kind_key)
    for fingerprint in fingerprints:
        with suppress(NoPlanError):  # its plans are for other requests
            yield plan_from_json(find(device=fingerprint))


def _caution(match: DeviceMatch) -> str:
    return "" if match.grade == "same" else f" with {match}; its prediction may be off"
