"""The options each engine's versions know, as they were recorded from its source and documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ...errors import PlanError, RequestError
from ...profiler.records.wire import from_json
from .engine import Option

FOLDER = Path(__file__).parent / "schemas"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOption:
    """One option.

    Attributes:
        type: "ranges" are rows of (first batch, last batch, length), "lengths" rows of (batch, length).
        least, most: of a number.
        choices: of a choice.
        since, until: the first and the last recorded version that knows it; empty where all before or behind do.
    """

    type: Kind
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The options of one engine.

    Attributes:
        versions: recorded ones, oldest first.
        sources: where the options were read.
        sections: options by name, by where they are written.
    """

    engine: str
    versions: tuple[str, ...]
    sources: tuple[str, ...]
    sections: dict[str, dict[str, SchemaOption]]

    def knows(self, section: str, name: str, version: str) -> bool:
        """Return whether a recorded version knows an option."""
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
    found: Schema = from_json(Schema, (FOLDER / f"{engine}.json").read_text(encoding="utf-8"))
    return found


def recorded_version(engine: str, version: str | None) -> str:
    """Return the recorded version that answers for a version: itself, or the release it belongs to.

    Args:
        engine: by name.
        version: as its users call it; the newest recorded one where None.

    Raises:
        RequestError: none does.
    """
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


def require_known(engine: str, version: str, options: Iterable[Option]) -> None:
    """Raise PlanError where an option is not of the version's schema, of another type, or out of range."""
    schema = schema_of(engine)
    for section, name, value in options:
        wrong = _wrong(schema, section, name, version, value)
        if wrong:
            raise PlanError(
                f"{engine} {version} would not take {name} = {json.dumps(value)} ({section}): {wrong}; give another "
                "--engine-version, or report this"
            )


def _wrong(schema: Schema, section: str, name: str, version: str, value: object) -> str:
    if not schema.knows(section, name, version):
        return "it has no such option"
    option = schema.sections[section][name]
    if not isinstance(value, TYPES[option.type]) or (isinstance(value, bool) and option.type != "bool"):
        return f"it takes {option.type}"
    if option.choices and value not in option.choices:
        return f"it takes one of {', '.join(option.choices)}"
    if isinstance(value, int | float) and not _is_within(value, option):
        return f"it takes {option.least} to {option.most}"
    return ""


def _is_within(value: float, option: SchemaOption) -> bool:
    return (option.least is None or value >= option.least) and (option.most is None or value <= option.most)
