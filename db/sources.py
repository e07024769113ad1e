"""What a plan was computed from, by the hashes of the records: enough to find them again and to see a change."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import to_json
from .rows import key_of

if TYPE_CHECKING:  # a store opens without the planner
    from ..planner.inputs import PlanInputs

SourceKind = Literal["surface", "overhead", "trace", "pairwise"]
SHA256_HEX = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceManifest(SurfaceKey):
    """Which cells made a surface: its key, and the hashes of its measurements in ascending order."""

    measurements: tuple[str, ...]  # sha256 of each measurement's JSON

    def __post_init__(self) -> None:
        if list(self.measurements) != sorted(self.measurements) or not self.measurements:
            raise StoreError(f"a manifest of {self.model} needs hashes in ascending order; write it again")
        for seen in self.measurements:
            _require_hash(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """One record that a plan was computed from; a surface's hash is that of its manifest."""

    kind: SourceKind
    content_hash: str  # sha256, 64 hex digits
    name: str = ""  # for people, e.g. the drafter's
    manifest: str | None = None  # JSON of a SurfaceManifest, for a surface only
    is_held: bool = False  # whether the store held it when the plan was kept; the store says so

    def __post_init__(self) -> None:
        if self.kind not in get_args(SourceKind):
            raise StoreError(f"a plan's source is a {self.kind!r}; use one of {', '.join(get_args(SourceKind))}")
        _require_hash(self.content_hash)
        if len(self.name) > LONGEST_NAME:
            raise StoreError(f"a source's name has {len(self.name)} characters; use at most {LONGEST_NAME}")
        if (self.manifest is None) == (self.kind == "surface"):
            raise StoreError(
                f"a {self.kind} comes {'without' if self.manifest is None else 'with'} a manifest; "
                "a surface needs one, other sources have none"
            )
        if self.manifest is not None and content_hash(self.manifest) != self.content_hash:
            raise StoreError(f"the manifest of source {self.name!r} does not have the hash {self.content_hash}")


def surface_source(surface: LatencySurface, name: str) -> PlanSource:
    """Return a surface as a plan's source."""
    hashes = tuple(sorted(record_hash(cell) for cell in surface.measurements))
    manifest = to_json(SurfaceManifest(**key_of(surface), measurements=hashes))
    return PlanSource(kind="surface", content_hash=content_hash(manifest), name=name[:LONGEST_NAME], manifest=manifest)


def overhead_source(overhead: RoundOverhead) -> PlanSource:
    """Return host times as a plan's source."""
    return PlanSource(kind="overhead", content_hash=record_hash(overhead), name="host time")


def trace_source(trace: AcceptanceTrace) -> PlanSource:
    """Return a recording as a plan's source, named after its drafter."""
    return PlanSource(kind="trace", content_hash=record_hash(trace), name=trace.drafter_name[:LONGEST_NAME])


def pairwise_source(pairwise: PairwiseAcceptance) -> PlanSource:
    """Return how models agree as a plan's source."""
    return PlanSource(kind="pairwise", content_hash=record_hash(pairwise), name="agreement")


def sources_of_inputs(inputs: PlanInputs) -> list[PlanSource]:
    """Return everything a plan is computed from: surfaces first, the target's before its drafters', then readings."""
    surfaces = [surface_source(inputs.verify, "target")]
    surfaces += [surface_source(surface, drafter.name) for drafter in inputs.drafters for surface in drafter.surfaces]
    names = {drafter.model.key: drafter.name for drafter in inputs.drafters} | {inputs.target.key: "target"}
    surfaces += [surface_source(surface, f"{names.get(key, key)} reading") for key, surface in inputs.readings.items()]
    times = [overhead_source(each) for each in inputs.host_times or (inputs.overhead,)]
    traces = [trace_source(drafter.trace) for drafter in inputs.drafters]
    agreement = [] if inputs.pairwise is None else [pairwise_source(inputs.pairwise)]
    return [*surfaces, *times, *traces, *agreement]


def content_hash(document: str) -> str:
    """Return the sha256 of a document's UTF-8 bytes, 64 hex digits."""
    return hashlib.sha256(document.encode()).hexdigest()


def record_hash(record: object) -> str:
    """Return the hash of a record as this version of spectune writes it."""
    return content_hash(to_json(record))


def _require_hash(seen: str) -> None:
    if not SHA256_HEX.fullmatch(seen):
        raise StoreError(f"{seen[:80]!r} is no hash; a sha256 has 64 hex digits")
