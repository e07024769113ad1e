"""Frozen tables of n-grams as files: made from a corpus, read by plans that use them."""

from __future__ import annotations

from pathlib import Path

from ..errors import PlanError, SpectuneError
from ..planner.records.frozen_table import FrozenTable
from ..profiler.records.wire import from_json, to_json


def write_table(path: Path, table: FrozenTable) -> None:
    """Write a table as JSON; raise PlanError where the file cannot be written."""
    try:
        path.write_text(to_json(table) + "\n", encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot write the table {path} ({error}); name another file") from error


def read_table(path: Path) -> FrozenTable:
    """Return the table of a file; raise PlanError where it cannot be read or holds none."""
    try:
        return from_json(FrozenTable, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the table {path} ({error}); make one: spectune train cacheback") from error
    except SpectuneError as error:
        raise PlanError(f"{path} holds no table of n-grams: {error}; make one: spectune train cacheback") from error
