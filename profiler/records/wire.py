"""Records to JSON and back, bit for bit; what does not belong to a record is refused."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...errors import SpectuneError, StoreError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Record = TypeVar("Record")


def to_json(record: object, kind: Any = None, *, without: dict[str, Any] | None = None) -> str:
    """Return a frozen record as compact JSON; `kind` may view it as a union of records.

    `without` names what is left out, as pydantic's `exclude` does.
    """
    seen_as: Any = type(record) if kind is None else kind
    exclude: Any = {0: without} if without else None
    return _adapter(seen_as).dump_json((record,), exclude=exclude).decode()[1:-1]


@overload
def from_json(kind: type[Record], text: str | bytes) -> Record: ...
@overload
def from_json(kind: Any, text: str | bytes) -> Any: ...
def from_json(kind: Any, text: str | bytes) -> Any:  # Any: a union of records has no type of its own
    """Return the validated record of `to_json`'s text for a class or a union; numbers come back bit for bit.

    StoreError: not JSON, a missing or unknown field, or a value of another type; SpectuneError where a value the record
    itself refuses.
    """
    from pydantic import ValidationError

    body = text if isinstance(text, str) else text.decode(errors="replace")
    try:
        (record,) = _adapter(kind).validate_json(f"[{body}]")
    except ValidationError as error:
        name = kind.__name__ if isinstance(kind, type) else "record of the union"
        raise StoreError(f"this is not a {name}: {_first_fault(error.errors()[0])}; write it again") from error
    return record


def readable(kind: type[Record], texts: Iterable[str]) -> list[Record]:
    """Return the records of those texts that are some; one that cannot be read hides no other."""
    found = []
    for text in texts:
        with suppress(SpectuneError):
            found.append(from_json(kind, text))
    return found


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Return the adapter of (record,): pydantic takes no settings for a bare dataclass, but does for a tuple of one."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _first_fault(fault: Any) -> str:  # Any: pydantic's ErrorDetails, imported only when needed
    place = ".".join(str(part) for part in fault["loc"][1:]) or "the whole text"
    return f"{place}: {fault['msg']}"
