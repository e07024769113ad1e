"""One open service, which says once who it is, and is closed once."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from .remote_cache import AnswerCache
from .remote_folder import service_folder
from .remote_http import OPENING, Transport
from .remote_queue import ObservationQueue
from .remote_reader import CachedReader
from .remote_service import Service, require_spoken
from .remote_url import ServiceUrl
from .wire import ServiceInfo


class RemoteClient:
    """A service that speaks this client's language, and what this machine stores of it."""

    def __init__(self, url: ServiceUrl, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
        """Ask the service who it is, or take its last answer; `sleep` waits seconds before another attempt.

        Raises:
            AwayError: it does not answer, and no earlier answer is here.
            StoreError: it refuses, is no planner service, or speaks another language.
        """
        self._folder = service_folder(url)
        self._transport = Transport(url, sleep)
        self._service = Service(self._transport)
        self._reader = CachedReader(self._service, AnswerCache(self._folder / "answers"), clock)
        self._clock = clock
        self._queue = ObservationQueue(self._folder / "observations")
        try:
            require_spoken(self._reader.get(ServiceInfo, "/v1", patience=OPENING), self.url)
        except BaseException:
            self._transport.close()
            raise

    @property
    def url(self) -> str:
        """Where the service is, for people: without the token."""
        return self._service.url

    @property
    def note(self) -> str:
        """What a reader should know: that the service did not answer, and from when the answers are; or ""."""
        return self._reader.note

    def close(self) -> None:
        """Give up every connection; a second call does nothing."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
