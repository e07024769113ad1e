"""What is taken where a plan's number format or workload is not named: those that were profiled last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..db.store import Store
from ..profiler.records.device import AUTO_DTYPE, Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import running_of
from .inputs import runnable
from .timed import timed_on

USUAL = "default"  # what a workload is called that nobody named
SAME_TEMPERATURE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """A workload, and the others that might have been meant."""

    last: str
    others: tuple[str, ...] = ()


def dtype_profiled_last(target: ModelIdentity, device: Device, regime: str, store: Store) -> str:
    """Return the dtype of a target's last whole rounds in a regime ("": any) on a device, or `AUTO_DTYPE`."""
    rows = timed_on(device.fingerprint, store).of(target.key, "verify")
    exact = [row for row in rows if row.regime == regime]
    wanted = exact or [row for row in rows if regime in ("", running_of(row.regime))]
    timed = (row.dtype for row in runnable(wanted) if store.host_times(row.device, row.model, row.dtype, row.regime))
    return next(timed, AUTO_DTYPE)


def workload_profiled_last(target: ModelIdentity, temperature: float, store: Store, *, engine: str = "") -> Workloads:
    """Return the workload of a target's last traces, and the earlier ones; of our own decoder without `engine`."""
    from .engines.record import own_workload

    rows = [
        row
        for row in store.trace_rows()
        if row.target == target.key and abs(row.temperature - temperature) <= SAME_TEMPERATURE
    ]
    names = [name for row in rows if (name := own_workload(engine, row.workload)) is not None]
    return _newest(names)


def workload_planned_last(
    target: ModelIdentity, device: Device, temperature: float, store: Store, *, engine: str = ""
) -> Workloads:
    """Return the last profiled workload if it has a plan on the device, else the last planned one."""
    from ..db.rows import ENGINE_PLAN
    from .engines.record import own_workload

    place = f"{ENGINE_PLAN if engine else ''}{device.fingerprint}"
    rows = [
        row
        for row in store.plans()
        if (row.device, row.target) == (place, target.key)
        and row.state != "retired"
        and abs(row.temperature - temperature) <= SAME_TEMPERATURE
    ]
    planned = [name for row in rows if (name := own_workload(engine, row.workload)) is not None]
    profiled = workload_profiled_last(target, temperature, store, engine=engine)
    if not planned:
        return profiled
    return _newest([*planned, profiled.last] if profiled.last in planned else planned)


def _newest(names: Sequence[str]) -> Workloads:
    if not names:
        return Workloads(last=USUAL)
    others = tuple(dict.fromkeys(name for name in names if name != names[-1]))
    return Workloads(last=names[-1], others=others)
