"""A store in a database: SQLite for one machine, PostgreSQL for a team."""

from __future__ import annotations

from ..profiler.records.device import Device
from .identities import Identities
from .imports import Imports
from .measurements import Measurements
from .plans import Plans
from .profiles import Profiles
from .surface_rows import SurfaceRows
from .traces import Traces


class SqlStore(Identities, Imports, Measurements, SurfaceRows, Profiles, Traces, Plans):
    """Everything spectune remembers, in one database; open it with `open_store`, use it as a context manager."""

    @property
    def note(self) -> str:
        """What a reader should know about what was read: nothing, a database answers or it fails."""
        return ""

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> None:
        """Return None: a database finds no plan by itself; climb the ladder of `runtime/ladder.py` on its plans."""
