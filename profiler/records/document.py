"""A surface or a trace with the records that its keys mean: written to a file and read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import StoreError
from .acceptance import AcceptanceTrace
from .device import Device
from .model import ModelIdentity
from .overhead import RoundOverhead
from .surface import LatencySurface

ADVICE = "the file was changed, or written by another version of spectune; write it again with: spectune show -o FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceDocument:
    """A latency surface and its identities, None where unknown; a verify surface with its target's host times."""

    surface: LatencySurface
    device: Device | None = None
    model: ModelIdentity | None = None
    overhead: RoundOverhead | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            _require_same("device", self.device.fingerprint, self.surface.device)
        if self.model is not None:
            _require_same("model", self.model.key, self.surface.model)
        if self.overhead is not None:
            _require_same("the host times' device", self.overhead.device, self.surface.device)
            _require_same("the host times' target", self.overhead.target, self.surface.model)
            _require_same("the host times' dtype", self.overhead.dtype, self.surface.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDocument:
    """An acceptance trace and its identities; None where the writer did not know one, or a drafter has no weights."""

    trace: AcceptanceTrace
    target: ModelIdentity | None = None
    drafter: ModelIdentity | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            _require_same("target", self.target.key, self.trace.target)
        if self.drafter is not None:
            _require_same("drafter", self.drafter.key, self.trace.drafter)


def _require_same(what: str, key: str, recorded: str) -> None:
    if key != recorded:
        raise StoreError(f"{what} {key} of a document is not {recorded}, which its record names; {ADVICE}")
