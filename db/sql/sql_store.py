"""A store in a database: SQLite for one machine, PostgreSQL for a team."""

from __future__ import annotations

from .identities import IdentityRows, Imports
from .measurements import Measurements, Traces
from .plans import Plans
from .profiles import Profiles


class SqlStore(IdentityRows, Imports, Measurements, Profiles, Traces, Plans):
    """Everything spectune remembers, in one database; open it with `open_store`, use it as a context manager."""
