"""What was timed on a device, that of the newest cell first: a store lists surfaces as they were begun."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..profiler.records.role import origin_of

if TYPE_CHECKING:
    from ..db.rows import SurfaceRow
    from ..db.store import Store
    from ..profiler.records.surface import LatencySurface


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSurfaces:
    """The measured surfaces of one device; estimates and imports are none of them."""

    store: Store
    rows: tuple[SurfaceRow, ...]  # newest first

    def of(self, model: str, role: str, dtype: str = "") -> list[SurfaceRow]:
        """Return which surfaces of a model in a role there are, newest first; of any number format where it is ""."""
        return [row for row in self.rows if (row.model, row.role) == (model, role) and dtype in ("", row.dtype)]

    def surface(self, row: SurfaceRow) -> LatencySurface:
        """Return a surface with its cells."""
        (found,) = self.store.surfaces(**asdict(row.key))
        return found


def timed_on(device: str, store: Store) -> DeviceSurfaces:
    """Return what a store holds of a device, given its Device.fingerprint."""
    rows = [row for row in store.surface_rows(device=device) if origin_of(row.regime) == "measured"]
    return DeviceSurfaces(store=store, rows=tuple(sorted(rows, key=lambda row: (row.newest, row.id), reverse=True)))
