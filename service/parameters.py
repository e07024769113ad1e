"""Parameters that several operations share, bounded, and long lists in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Header, Path, Query

from ..db.wire import MOST_ITEMS, Page
from .writes import KEY

MOST_ID = 2**31 - 1  # of the databases' whole numbers
Number = Annotated[int, Path(ge=1, le=MOST_ID)]
KeyPath = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
Key = Annotated[str, Query(min_length=1, max_length=80)]
Name = Annotated[str, Query(min_length=1, max_length=120)]
PartName = Annotated[str, Path(min_length=1, max_length=120)]
Hash = Annotated[str | None, Query(max_length=80, description="A fingerprint or key.")]
LONGEST_WORD = 120
Word = Annotated[str | None, Query(max_length=LONGEST_WORD)]
Temperature = Annotated[float, Query(ge=0, le=1000, allow_inf_nan=False)]
OptionalTemperature = Annotated[float | None, Query(ge=0, le=1000, allow_inf_nan=False)]
Once = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=f"^{KEY.pattern}$",
        description="Your name for this write: sent again, it is answered as the first time and written once.",
    ),
]
KnownTag = Annotated[str | None, Header(alias="If-None-Match")]


Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="Most items of the page.")]
After = Annotated[int | None, Query(ge=0, le=MOST_ID, description="`next` of the page before; none begins anew.")]
Newest = Annotated[bool, Query(description="Whether the page is of the newest items, and the only one.")]
USUAL_LIMIT = 100


def page_by_place(items: Sequence[Item], limit: int, after: int | None) -> Page[Item]:
    """Return a page of a list that only grows at its end; `next` is a place in it."""
    begin = after or 0
    end = begin + limit
    return Page(items=tuple(items[begin:end]), next=end if end < len(items) else None)


def page_by_id(items: Sequence[Any], limit: int) -> Page[Any]:  # Any: rows with an id
    """Return a page of rows that were read one beyond the limit; `next` is the last id of the page."""
    has_more = len(items) > limit
    shown = tuple(items[:limit])
    return Page(items=shown, next=shown[-1].id if has_more else None)


def whole(items: Sequence[Item]) -> Page[Item]:
    """Return a list as its only page."""
    return Page(items=tuple(items))
