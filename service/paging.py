"""Long lists in pages: what was answered last is where the next page begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from ..db.wire import MOST_ITEMS, Page

MOST_ID = 2**31 - 1  # of the databases' whole numbers

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
