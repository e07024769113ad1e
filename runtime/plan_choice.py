"""The plan by which a target decodes on a device, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..db import open_store
from ..db.rows import WHAT_IF
from ..errors import NoPlanError, PlanError, RequestError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan, PlanCell
from ..planner.plans.schedule import Place, reachable, reachable_at
from ..planner.reasons.verdict import warnings_of
from ..profiler.records.device import Device
from ..profiler.records.match import DeviceMatch, match_devices
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import ROUND
from .batch.reason import told
from .batch.step_config import PLAIN, StepConfig, plain_setup, setup_of
from .device_match import Found, Wanted, catalogued_as, found_in, in_short, is_near

Source = Literal["this device", "same kind of device", "nearest device", "estimate", "number", "file", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan, or none for plain decoding, and the reason in one line.

    Attributes:
        substitutes: by (batch, context), setups of cells that cannot run as planned.
        rivals: by (batch, context), other setups that a cell tries while it runs; see `fallbacks.py`.
    """

    plan: Plan | None
    source: Source  # "nearest device" and "estimate" are guesses
    reason: str
    match: DeviceMatch | None = None  # of the plan's device with this one; None without a plan
    plan_id: int | None = None  # number in the store; None for a file, and without a plan
    dtype: str | None = None  # requested number format of the weights; None: the plan's
    substitutes: tuple[tuple[Place, StepConfig], ...] = ()
    rivals: tuple[tuple[Place, tuple[StepConfig, ...]], ...] = ()

    @property
    def is_in_planned_dtype(self) -> bool:
        """Whether the weights have the plan's number format."""
        return self.plan is not None and self.dtype in (None, self.plan.dtype)

    @property
    def is_guess(self) -> bool:
        """Whether no part of the plan was measured on this kind of device."""
        return self.source in ("nearest device", "estimate")

    @property
    def setups(self) -> tuple[StepConfig, ...]:
        """Every setup that a round may have: plain, padded or not, and those of cells."""
        return self._ways(() if self.plan is None else self.plan.cells)

    def setups_within(self, batch: int, context: int) -> tuple[StepConfig, ...]:
        """Return every setup of a round with at most so many sequences and tokens of context."""
        return self._ways(() if self.plan is None else reachable(self.plan, batch, context))

    def setups_at(self, batch: int, context: int) -> tuple[StepConfig, ...]:
        """Return every setup of a round with so many sequences and at most so many tokens of context."""
        return self._ways(() if self.plan is None else reachable_at(self.plan, batch, context))

    def _ways(self, cells: Sequence[PlanCell]) -> tuple[StepConfig, ...]:
        rivals = (rival for cell in cells for rival in self.rivals_of(cell))
        return tuple(dict.fromkeys((PLAIN, *map(plain_setup, cells), *map(self.setup, cells), *rivals)))

    def setup(self, cell: PlanCell) -> StepConfig:
        """Return the setup by which a cell of the plan runs."""
        return dict(self.substitutes).get((cell.batch, cell.context)) or setup_of(cell)

    def rivals_of(self, cell: PlanCell) -> tuple[StepConfig, ...]:
        """Return the other setups that a cell of the plan tries while it runs."""
        return dict(self.rivals).get((cell.batch, cell.context), ())


def plainly(reason: str) -> Choice:
    """Return the choice of plain decoding."""
    return Choice(plan=None, source="none", reason=reason)


def choose_plan(
    plan: str,
    *,
    target: ModelIdentity,
    device: Device,
    store: str | None,
    workload: str | None,
    temperature: float,
    dtype: str | None = None,
) -> Choice:
    """Return the plan to decode with; where a plan or store is of no use, plain decoding and the reason.

    `plan`: "auto" searches the store along the ladder of `device_match.py`; "none" is plain decoding; a whole number is
    a plan of the store; a URL is another store; else a plan file. `workload` None is "default", else the newest.
    RequestError where there is no such plan file, or no plan of that number in the store.
    """
    if plan == "none":
        return plainly("plain decoding was asked for")
    wanted = Wanted(target=target, device=device, workload=workload, temperature=temperature, dtype=dtype)
    is_url, is_number = "://" in plan, plan.isdecimal()
    is_named = not (plan == "auto" or is_url)  # one plan, whatever else there is
    if is_named and not is_number and not Path(plan).is_file():
        raise RequestError(f"cannot read the plan {plan}, there is no such file; write one with: spectune plan -o FILE")
    try:
        if not is_named:
            return _warned(_from_store(wanted, plan if is_url else store))
        return _warned(_numbered(int(plan), wanted, store) if is_number else _from_file(Path(plan), wanted))
    except RequestError:
        raise
    except NoPlanError as error:
        return plainly(f"plain decoding: {told(error)}")
    except Exception as error:  # a plan only makes things faster: without one the target goes on
        which = f"the plan {plan}" if is_named else "the stored plan"
        return plainly(f"plain decoding, {which} is of no use: {told(error)}")


def _warned(choice: Choice) -> Choice:
    warnings = [] if choice.plan is None else warnings_of(choice.plan)
    return replace(choice, reason="; ".join([choice.reason, *warnings]))


def _from_store(wanted: Wanted, store: str | None) -> Choice:
    with open_store(store, writes=False) as opened:
        found, note = found_in(opened, wanted), opened.note
    return Choice(
        plan=found.plan,
        source=found.rung,
        reason=_reason(found, wanted) + (f"; {note}" if note else ""),
        match=found.match,
        plan_id=found.plan_id,
    )


def _reason(found: Found, wanted: Wanted) -> str:
    workload = "" if wanted.workload is not None else f" for the workload {found.plan.workload!r}"
    passed = f"; passed over: {in_short(found.passed)}" if found.passed else ""
    return f"{_origin(found.rung, found.plan, found.match)}{workload}{passed}"


def _origin(source: Source, plan: Plan, match: DeviceMatch) -> str:
    if source == "estimate":
        return f"a guess: plan estimated for {plan.device.label}, not measured on this device"
    if source == "nearest device":
        return f"a guess: plan made on {plan.device.label}, which is near this device{_caution(match)}"
    return f"plan made on {source}{_caution(match)}"


def _caution(match: DeviceMatch) -> str:
    return "" if match.grade == "same" else f" with {match}; its prediction may be off"


def _numbered(number: int, wanted: Wanted, store: str | None) -> Choice:
    with open_store(store, writes=False) as opened:
        row = next((row for row in opened.plans() if row.id == number), None)
        if row is None:
            raise RequestError(f"{opened.url} has no plan {number}; spectune list shows those it has")
        found = _fitting(opened.plan(number), wanted, f"{number} of {opened.url}")
        reason = found.reason + (f"; {opened.note}" if opened.note else "")
    if row.device.startswith(WHAT_IF):
        assert found.plan is not None and found.match is not None
        words = f"{_origin('estimate', found.plan, found.match)}, {reason}"
        return replace(found, source="estimate", reason=words, plan_id=number)
    source: Source = "number" if found.source == "file" else found.source
    return replace(found, source=source, reason=reason, plan_id=number)


def _from_file(path: Path, wanted: Wanted) -> Choice:
    return _fitting(path.read_text(encoding="utf-8"), wanted, f"from {path}")


def _fitting(text: str, wanted: Wanted, place: str) -> Choice:
    plan = plan_from_json(text)
    plan.cell(1, 0)  # compares all cells, so that no decoder meets one that cannot be compared
    if plan.target.key != wanted.target.key:
        raise PlanError(f"it is for {plan.target.told_from(wanted.target)}")
    if any(source.role.startswith(ROUND) for source in plan.provenance.surfaces):
        raise PlanError("it is for another engine, whose rounds priced it; plan without --engine")
    match = match_devices(wanted=wanted.device, have=plan.device)
    other = "" if plan.temperature == wanted.temperature else f", made for temperature {plan.temperature:g}"
    if wanted.workload not in (None, plan.workload):
        other += f", made for the workload {plan.workload!r}"
    made = Choice(plan=plan, source="file", reason=f"plan {place}{_caution(match)}{other}", match=match)
    if match.grade != "other":
        return made
    twin = catalogued_as(wanted.device)
    if twin is not None and twin.device.kind_key == plan.device.kind_key:
        return replace(made, source="estimate", reason=f"{_origin('estimate', plan, match)}, {place}{other}")
    if is_near(wanted.device, plan.device, plan.dtype):
        words = f"{_origin('nearest device', plan, match)}, {place}{other}"
        return replace(made, source="nearest device", reason=words)
    raise PlanError(
        f"it is for another device ({plan.device.label}), this is {wanted.device.label}: {match}; "
        "profile and plan on this one"
    )
