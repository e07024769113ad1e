"""The stored plan for a device: from the highest rung of the ladder with a sound one.

1. this device: exactly its fingerprint.
2. same kind of device: the same hardware under other settings or versions, the nearest of them.
3. nearest device: another kind of hardware that is near enough (see nearness.py); a guess.
4. estimate: a plan on computed or foreign surfaces for this device, filed under `what-if:`; a guess.

On each rung, plans for the wanted number format come first, if one is given. Among them, if no workload is named, come
those for "default", then the last promoted one, then the newest. Retired plans do not count. The reason is recorded for
each plan that is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from ..db.rows import WHAT_IF, PlanRow, mark_of
from ..db.store import Store
from ..errors import DeviceError, NoPlanError, PlanError, StoreAwayError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan
from ..profiler.catalogue import Catalogued, catalogued
from ..profiler.records.device import Device
from ..profiler.records.limits import DeviceLimits
from ..profiler.records.match import DeviceMatch, match_devices
from ..profiler.records.model import ModelIdentity
from .batch.reason import told

Rung = Literal["this device", "same kind of device", "nearest device", "estimate"]
FIRST_WORKLOAD = "default"
SAME_TEMPERATURE = 1e-9
MOST_TOLD = 3  # plans that were passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a plan must fit; a workload or number format of None is any."""

    target: ModelIdentity
    device: Device
    workload: str | None
    temperature: float
    dtype: str | None = None  # of the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan of the store, its rung, and the reasons why others were passed over."""

    plan: Plan
    plan_id: int
    rung: Rung
    match: DeviceMatch
    passed: tuple[str, ...]


def find_plan(store: Store, wanted: Wanted, parse: Callable[[str], Plan] = plan_from_json) -> Found:
    """Return the best plan of a store.

    `parse` may cache plans, and of each only one cell; else it is as `plan_from_json`.

    Raises:
        NoPlanError: there is none for this target, workload and temperature on this device or a near one.
        PlanError: there are some, and none can be used; the message says why.
        StoreError: it cannot be read.
    """
    search = _Search(store, wanted, parse)
    for rung, belongs in _rungs(wanted.device).items():
        found = list(search.plans(rung, belongs))
        if found:
            return min(found, key=search.place)  # of equal ones the first
    if search.passed:
        raise PlanError(in_short(search.passed))
    raise NoPlanError(_in_words(wanted, search.too_far), store.url)


def found_in(store: Store, wanted: Wanted) -> Found:
    """Return the best plan of a store, which a service searches for itself; errors as in `find_plan`."""
    answer = store.resolve(wanted.device, wanted.target.key, wanted.workload, wanted.temperature, wanted.dtype)
    if answer is None:
        return find_plan(store, wanted)
    plan = plan_from_json(answer.plan)
    plan.cell(1, 0)  # as in `_require_sound`
    if answer.rung not in get_args(Rung):
        raise PlanError(f"{store.url} found it on the rung {answer.rung!r}, which is not known here; update spectune")
    return Found(
        plan=plan, plan_id=answer.plan_id, rung=cast(Rung, answer.rung), match=answer.match, passed=answer.passed
    )


def in_short(reasons: Sequence[str]) -> str:
    """Return the first few reasons as one line."""
    more = len(reasons) - MOST_TOLD
    return "; ".join([*reasons[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


class _Search:
    def __init__(self, store: Store, wanted: Wanted, parse: Callable[[str], Plan]) -> None:
        self.passed: list[str] = []
        self.too_far: list[str] = []  # devices
        self._store, self._wanted, self._parse = store, wanted, parse
        self._rows = [row for row in reversed(store.plans()) if self._is_meant(row)]  # the newest first

    def _is_meant(self, row: PlanRow) -> bool:
        wanted = self._wanted
        is_workload = wanted.workload is None or row.workload == wanted.workload
        is_temperature = abs(row.temperature - wanted.temperature) <= SAME_TEMPERATURE
        return row.target == wanted.target.key and is_workload and is_temperature and row.state != "retired"

    def plans(self, rung: Rung, belongs: Callable[[PlanRow], bool]) -> Iterator[Found]:
        """Yield the best usable plan of every device of a rung."""
        rows = sorted(filter(belongs, self._rows), key=self._weight)
        self._rows = [row for row in self._rows if not belongs(row)]
        for device in dict.fromkeys(row.device for row in rows):
            found = self._best(rung, [row for row in rows if row.device == device])
            if found is not None:
                yield found

    def place(self, found: Found) -> tuple[bool, tuple[int, ...]]:
        """Return the sort key of a rung's devices: the wanted number format first, then the nearest."""
        return not self._is_in_dtype(found.plan), found.match.distance

    def _weight(self, row: PlanRow) -> tuple[bool, int]:
        """Return the sort key of a rung's plans: the first workload, then the last promoted."""
        promoted = self._store.plan_events(row.id)[-1].id if row.state == "promoted" else 0
        return row.workload != FIRST_WORKLOAD, -promoted

    def _best(self, rung: Rung, rows: Sequence[PlanRow]) -> Found | None:
        """Return a device's first usable plan in the wanted number format, else its first in any."""
        other: Found | None = None
        for row in rows:
            found = self._sound(rung, row)
            if found is None:
                continue
            if rung == "nearest device" and not is_near(self._wanted.device, found.plan.device, found.plan.dtype):
                self.too_far.append(found.plan.device.label)
                if not is_near_in_any_dtype(self._wanted.device, found.plan.device):
                    break
            elif self._is_in_dtype(found.plan):
                return found
            else:
                other = other or found
        return other

    def _is_in_dtype(self, plan: Plan) -> bool:
        return self._wanted.dtype in (None, plan.dtype)

    def _sound(self, rung: Rung, row: PlanRow) -> Found | None:
        try:
            plan = self._parse(self._store.plan(row.id))
            match = match_devices(self._wanted.device, plan.device)
            self._require_sound(rung, plan, match)
        except StoreAwayError:  # says nothing about the plan
            raise
        except Exception as error:  # whatever is wrong with one plan, there are others
            self.passed.append(f"plan {row.id}: {told(error)}")
            return None
        return Found(plan=plan, plan_id=row.id, rung=rung, match=match, passed=tuple(self.passed))

    def _require_sound(self, rung: Rung, plan: Plan, match: DeviceMatch) -> None:
        plan.cell(1, 0)  # compares all cells, so that no decoder meets one that cannot be compared
        if plan.target.key != self._wanted.target.key:
            raise PlanError(f"it is filed under this model, but was made for {plan.target.name}; plan again")
        if rung in ("this device", "same kind of device") and match.grade == "other":
            raise PlanError(f"it is filed under this kind of device, but was made on another: {match}; plan again")


def _rungs(device: Device) -> dict[Rung, Callable[[PlanRow], bool]]:
    twin = catalogued_as(device)
    kinds = {device.kind_key} if twin is None else {device.kind_key, twin.device.kind_key}
    estimated = {f"{WHAT_IF}{kind}" for kind in kinds}
    own, own_kind = device.fingerprint, device.kind_key  # hashes, so not computed for every row
    return {
        "this device": lambda row: row.device == own,
        "same kind of device": lambda row: row.device_kind == own_kind,
        "nearest device": lambda row: not mark_of(row.device_kind),
        "estimate": lambda row: row.device_kind in estimated,
    }


def _in_words(wanted: Wanted, too_far: Sequence[str]) -> str:
    workload = "any workload" if wanted.workload is None else f"workload {wanted.workload!r}"
    others = f" (those for {in_short(list(dict.fromkeys(too_far)))} are too far)" if too_far else ""
    return (
        f"target {wanted.target.key} on {wanted.device.label}, {workload}, temperature {wanted.temperature:g}{others}"
    )


NEAR = 1.25  # most by which bandwidths, or arithmetic, of two near devices differ as a factor; a convention
HARMLESS = {"memory (GiB)"}  # hardware that may differ without changing a latency


def is_near(wanted: Device, have: Device, dtype: str) -> bool:
    """Return whether forwards on two devices of different kinds take similar shares of a round.

    What a plan chooses depends on how much more a forward of many tokens costs than one of few, so on the ratio of
    arithmetic to bandwidth. Two grounds are sound enough: the devices differ only in memory size; or the catalogue
    knows both, whole, of one sort, and bandwidth and arithmetic are each within a factor of `NEAR`.
    """
    match = match_devices(wanted, have)
    if {one.field for one in match.differences if one.aspect == "hardware"} <= HARMLESS:
        return True
    here, there = catalogued_as(wanted), catalogued_as(have)
    if here is None or there is None or wanted.kind != have.kind:
        return False
    return _are_close(here.limits, there.limits, dtype)


def is_near_in_any_dtype(wanted: Device, have: Device) -> bool:
    """Return whether any number format's plans are near; if not, the device's other plans need no check."""
    there = catalogued_as(have)
    known = () if there is None else there.limits.flops_per_s
    return any(is_near(wanted, have, dtype) for dtype, _ in known)


def catalogued_as(device: Device) -> Catalogued | None:
    """Return the catalogue's entry for a device; None where it has none, or only a part of the device is used."""
    try:
        found = catalogued(device.name)
    except DeviceError:
        return None
    is_whole = device.mig_profile is None and device.cpu_quota is None and device.cores == found.device.cores
    return found if is_whole and found.device.name == device.name else None


def _are_close(one: DeviceLimits, other: DeviceLimits, dtype: str) -> bool:
    arithmetic = [dict(limits.flops_per_s).get(dtype, 0.0) for limits in (one, other)]
    bandwidths = [limits.reads[0].bytes_per_s for limits in (one, other)]
    return all(0.0 < max(pair) <= NEAR * min(pair) for pair in (arithmetic, bandwidths))
