"""The options of each engine's versions, recorded from its source and documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ..errors import PlanError, RequestError
from ..profiler.records.wire import from_json
from .base import Option
from .table import ENGINES, folder_of

Kind = Literal["int", "float", "bool", "str", "choice", "ranges", "lengths"]
TYPES: Mapping[Kind, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "choice": str,
    "ranges": tuple,
    "lengths": tuple,
}
ROW_NUMBERS: Mapping[Kind, int] = {"ranges": 3, "lengths": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOption:
    """One option.

    Attributes:
        type: "ranges" are rows of (first batch, last batch, length), "lengths" rows of (last batch, length); batches
            rise from row to row.
        least, most: of a number, or of the lengths of rows.
        since, until: first and last recorded version with it; empty where all before or behind have it.
    """

    type: Kind
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The options of one engine: versions, oldest first; where they were read; options by section and name."""

    engine: str
    versions: tuple[str, ...]
    sources: tuple[str, ...]
    sections: dict[str, dict[str, SchemaOption]]

    def knows(self, section: str, name: str, version: str) -> bool:
        """Return whether a recorded version has an option."""
        option = self.sections.get(section, {}).get(name)
        if option is None:
            return False
        at = self.versions.index(version)
        first = self.versions.index(option.since) if option.since else 0
        last = self.versions.index(option.until) if option.until else len(self.versions)
        return first <= at <= last


@cache
def schema_of(engine: str) -> Schema:
    """Return the recorded options of an engine."""
    found: Schema = from_json(Schema, (folder_of(engine) / "schema.json").read_text(encoding="utf-8"))
    return found


def recorded_version(engine: str, version: str | None) -> str:
    """Return a version's recorded version: itself or its release; None: the newest; RequestError if there is none."""
    known = schema_of(engine).versions
    if version is None:
        return known[-1]
    plain = version.removeprefix("v")
    found = [one for one in known if plain == one or plain.startswith(f"{one}.")]
    if not found:
        raise RequestError(
            f"the options of {engine} {version} were not recorded, those of {', '.join(known)} were; give one of these "
            "with --engine-version if you know that it fits"
        )
    return found[-1]


def nearest_recorded(engine: str, version: str) -> str:
    """Return the newest recorded version not newer than a running one, compared by numbers; else the oldest."""
    known = schema_of(engine).versions
    return max((one for one in known if _numbers(one) <= _numbers(version)), key=_numbers, default=known[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def require_known(engine: str, version: str, options: Iterable[Option]) -> None:
    """Raise PlanError for options unknown to the version, of wrong type or range, or that break a common rule."""
    schema, told = schema_of(engine), list(options)
    for section, name, value in told:
        wrong = _wrong(schema, section, name, version, value)
        if wrong:
            raise PlanError(
                f"{engine} {version} would not take {name} = {json.dumps(value)} ({section}): {wrong}; give another "
                "--engine-version, or report this"
            )
    broken = broken_rule(engine, told)
    if broken:
        raise PlanError(f"{engine} {version} would not take these options together: {broken}; report this")


def _wrong(schema: Schema, section: str, name: str, version: str, value: object) -> str:
    if not schema.knows(section, name, version):
        return "it has no such option"
    option = schema.sections[section][name]
    if not isinstance(value, TYPES[option.type]) or (isinstance(value, bool) and option.type != "bool"):
        return f"it takes {option.type}"
    if option.choices and value not in option.choices:
        return f"it takes one of {', '.join(option.choices)}"
    if isinstance(value, tuple):
        return _wrong_row(value, option)
    if isinstance(value, int | float) and not _is_within(value, option):
        return f"it takes {_range(option)}"
    return ""


def _wrong_row(rows: Sequence[object], option: SchemaOption) -> str:
    """Say what is wrong with the first wrong row; empty where all are right."""
    count, before = ROW_NUMBERS[option.type], 0
    for row in rows:
        if not isinstance(row, tuple) or len(row) != count or any(type(number) is not int for number in row):
            return f"it takes rows of {count} whole numbers, not {row}"
        first, last, length = row[0], row[-2], row[-1]  # where a row has one batch, that is both
        if not before < first <= last:
            return f"it takes batches that rise from row to row, not {first} to {last} behind {before}"
        if not _is_within(length, option):
            return f"it takes lengths of {_range(option)}, not {length}"
        before = last
    return "" if rows else "it takes a row or more"


def _range(option: SchemaOption) -> str:
    least = 0.0 if option.least is None else option.least
    return f"{least:g} or more" if option.most is None else f"{least:g} to {option.most:g}"


def _is_within(value: float, option: SchemaOption) -> bool:
    return (option.least is None or value >= option.least) and (option.most is None or value <= option.most)


def broken_rule(engine: str, options: Sequence[Option]) -> str:
    """Return the first rule that options, each valid by its schema, break together; empty where none."""
    return next((said for holds, said in ENGINES[engine].rules(options) if not holds), "")
