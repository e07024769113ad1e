"""A store that has just failed gets no request at once: all who waited would wait as long, one by one."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from ..errors import StoreAwayError, StoreError

REST_S = 0.5


class Setback:
    """Remembers for a moment that the store failed; its block is then refused with the same words."""

    def __init__(self) -> None:
        self._told = ""
        self._failed_at = float("-inf")

    def __enter__(self) -> None:
        if monotonic() - self._failed_at < REST_S:
            raise StoreAwayError(self._told)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, StoreError):
            self._told, self._failed_at = str(error), monotonic()
