"""What stores exchange: every row of one as a record of plain JSON, with the moment it was first stored."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from .sources import PlanSource
from .tables import content_hash

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?\+00:00")

Format = Literal[1]  # raised when what follows changes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """One device and its software."""

    kind: Literal["device"] = "device"
    format: Format = 1
    created: str  # UTC, ISO 8601
    device: Device

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel:
    """One set of weights."""

    kind: Literal["model"] = "model"
    format: Format = 1
    created: str  # UTC, ISO 8601
    model: ModelIdentity

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCell:
    """One timing of one cell; cells with the same `profile` were timed together, None: added one by one."""

    created: str  # UTC, ISO 8601
    profile: int | None
    measurement: Measurement

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSurface:
    """Every cell ever timed of one surface, oldest first."""

    kind: Literal["surface"] = "surface"
    format: Format = 1
    surface: SurfaceKey
    cells: tuple[SharedCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOverhead:
    """Host time per round of one target on one device."""

    kind: Literal["overhead"] = "overhead"
    format: Format = 1
    created: str  # UTC, ISO 8601
    overhead: RoundOverhead

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTrace:
    """What one drafter proposed along one target's own text."""

    kind: Literal["trace"] = "trace"
    format: Format = 1
    created: str  # UTC, ISO 8601
    trace: AcceptanceTrace

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPairwise:
    """How often the models of one group agree."""

    kind: Literal["pairwise"] = "pairwise"
    format: Format = 1
    created: str  # UTC, ISO 8601
    pairwise: PairwiseAcceptance

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEvent:
    """One change of a plan's state."""

    action: Literal["promoted", "retired", "restored"]
    by: str
    reason: str
    created: str  # UTC, ISO 8601

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOutcome:
    """What was seen of a plan, as text."""

    created: str  # UTC, ISO 8601
    document: str

    def __post_init__(self) -> None:
        require_moment(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """One plan with where it comes from and what became of it.

    Attributes:
        plan: the plan's document, where its text is this value as indented JSON; else None.
        text: the plan's text in all other cases.
    """

    kind: Literal["plan"] = "plan"
    format: Format = 1
    created: str  # UTC, ISO 8601
    device: str  # Device.fingerprint
    device_kind: str  # Device.kind_key
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    content_hash: str  # sha256 of the text, 64 hex digits
    sources: tuple[PlanSource, ...] = ()
    events: tuple[SharedEvent, ...] = ()
    observations: tuple[SharedOutcome, ...] = ()
    validations: tuple[SharedOutcome, ...] = ()
    plan: Any = None  # Any: a JSON value
    text: str | None = None

    def __post_init__(self) -> None:
        require_moment(self.created)
        if content_hash(self.document) != self.content_hash:
            raise StoreError(
                f"a plan for target {self.target} no longer has its hash {self.content_hash}; export it again"
            )

    @property
    def document(self) -> str:
        """The plan's text, byte for byte."""
        return indented(self.plan) if self.text is None else self.text


Shared = SharedDevice | SharedModel | SharedSurface | SharedOverhead | SharedTrace | SharedPairwise | SharedPlan

KINDS: dict[str, type[Shared]] = {  # in the order in which they are merged: a plan's sources before the plan
    "device": SharedDevice,
    "model": SharedModel,
    "surface": SharedSurface,
    "overhead": SharedOverhead,
    "trace": SharedTrace,
    "pairwise": SharedPairwise,
    "plan": SharedPlan,
}


def indented(value: Any) -> str:  # Any: a JSON value
    """Return a JSON value as plans are written."""
    return json.dumps(value, indent=1)


def require_moment(created: str) -> None:
    """Raise StoreError unless a text is a moment as stores write it."""
    if not MOMENT.fullmatch(created):
        raise StoreError(f"{created[:80]!r} is no moment in UTC like 2026-01-31T12:00:00.000000+00:00")
