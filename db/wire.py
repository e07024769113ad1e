"""The bodies of requests and answers between a planner service and its clients, one record each.

`profiler.records.wire` turns them into JSON and back, bit for bit; records of lower floors lie in them as JSON values,
and texts that must survive byte for byte (plans, parts, observations, validations) as strings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.match import DeviceMatch
from ..profiler.records.measurement import Measurement
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from ..profiler.records.visit import Visit
from .sources import PlanSource

API = 1  # the number in front of every path: /v1
MOST_BODY_BYTES = 8 * 2**20  # of one body as a client sends it; larger ones go as uploads
MOST_ITEMS = 1000  # of one page
UPLOAD_OFFSET = "Upload-Offset"
IDEMPOTENCY_KEY = "Idempotency-Key"
TOO_MANY_TIMINGS = "too-many-timings"  # how it ends where surfaces are too much for one answer
NO_PLAN = "no-plan"  # how the type of a problem ends where a store holds no plan for a setup

TAG = re.compile(r'(?:W/)?"([^"]*?)(?:--?[a-z]+)?"')  # W/"hash" of nginx, "hash-gzip" of Apache, "hash--gzip" of Jetty

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """What a service says of itself."""

    spectune: str  # version of the program
    schema: str  # revision of its database
    api: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str  # the SpectuneError's own text
    instance: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """A part of a list; `next` is what to ask for as `after`, None at the end."""

    items: tuple[Item, ...]
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMeasurements:
    """Cells of one surface."""

    surface: SurfaceKey
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """How many rows a write has added."""

    added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    """A plan as it is to be stored, and what it was computed from."""

    document: str  # byte for byte
    device: str  # Device.fingerprint
    device_kind: str  # Device.kind_key
    target: str  # ModelIdentity.key
    workload: str
    temperature: float
    sources: tuple[PlanSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why a plan changes its state, and who says so; an empty `by` is the owner of the token."""

    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Whose promoted plan makes room for the one before it, and why."""

    device: str
    target: str
    workload: str
    temperature: float
    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolving:
    """What a plan is wanted for; any workload where None, and plans of a number format first where one is named."""

    device: Device
    target: str  # ModelIdentity.key
    workload: str | None = None
    temperature: float = 0.0
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The plan, and the rung of the ladder on which it was found (docs/explain/runtime.md)."""

    plan_id: int
    rung: str
    match: DeviceMatch
    passed: tuple[str, ...]  # plans that could not be used, and why
    plan: str  # JSON text; in an answer the plan itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that is stored byte for byte: an observation or a validation of a plan."""

    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOpening:
    """Which profile is to be resumed or begun."""

    key: str
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedProfile:
    """The profile that was resumed or begun."""

    profile_id: int
    is_resumed: bool
    begun: str  # UTC, ISO 8601, to the microsecond: tells it from another profile that once had its number


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """Timed calls of an open profile: all of them are stored, or none."""

    visits: tuple[Visit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surfaces:
    """The finished surfaces of an open profile."""

    surfaces: tuple[LatencySurface, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What a profile ends with."""

    overhead: RoundOverhead | None = None
    traces: tuple[AcceptanceTrace, ...] = ()
    pairwise: tuple[PairwiseAcceptance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUpload:
    """A body that comes in pieces, and the request it belongs to."""

    kind: str  # for people: "trace", "records", "finish", "part", ...
    size: int  # bytes
    sha256: str  # of the whole body, 64 hex digits
    target: str  # path of the request it stands for, e.g. /v1/traces
    method: str = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadState:
    """How much of an upload has arrived."""

    key: str
    received: int  # bytes


def tag_of(etag: str) -> str:
    """Return the tag in an ETag, without what a proxy has added; "" where it is none."""
    found = TAG.fullmatch(etag.strip())
    return found[1] if found else ""


def is_known(asked: str | None, etag: str) -> bool:
    """Say whether the tags of an If-None-Match name an answer's, as weakly as RFC 9110 compares there."""
    return tag_of(etag) in [tag_of(each) for each in (asked or "").split(",")]
