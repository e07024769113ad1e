"""Measurements made elsewhere, read from a file; docs/import.md describes what it may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from ...db.rows import Records
from ...errors import RequestError, SpectuneError
from .csv_table import read_csv
from .json_object import read_json
from .told import Given

Format = Literal["csv", "json"]

READERS: Mapping[Format, Callable[[str, Path, Given], Records]] = {"csv": read_csv, "json": read_json}


def format_of(path: Path) -> Format:
    """Return the format that a file's suffix names; raise RequestError where it names none."""
    for known in READERS:
        if path.suffix.lower() == f".{known}":
            return known
    raise RequestError(f"the name of {path} does not end in .csv or .json; say which it is with --format")


def read_import(path: Path, given: Given, file_format: Format | None = None) -> Records:
    """Return a file's records, each checked; `given` fills in what it leaves out, a suffix names the format.

    Raises:
        RequestError: the file cannot be read, or a record is wrong: line and column, or place in the JSON, are named.
    """
    reader = READERS[file_format or format_of(path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read {path} ({reason}); give a .csv or .json file") from error
    try:
        return reader(text, path.absolute().parent, given)
    except SpectuneError as error:
        raise RequestError(f"{path}, {error}") from error
