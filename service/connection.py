"""One connection of a client, bounded before any request is there: uvicorn takes heads of any length, for ever."""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024  # of a head, or of fields behind a body, beyond the piece of it that came first
HEAD_S = 30.0  # from a connection's beginning, or the first byte behind an answer, to the end of the next head


class BoundedConnection(HttpToolsProtocol):
    """HTTP/1.1 whose heads are bounded in size and time; bodies and silence behind an answer are so elsewhere."""

    _timer: TimerHandle | None = None  # runs while a head is awaited
    _loose_bytes = 0  # that have come since a head was complete or a piece of a body was there

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless they are too many for what they are."""
        cycle = self.cycle  # None before the first request
        is_answering = cycle is not None and not cycle.response_complete  # type: ignore[redundant-expr]
        if self._timer is None and not is_answering:
            self._await_head()
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A request's head has at most {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._loose_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Take a whole head."""
        self._stop_waiting()
        self._loose_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._loose_bytes = 0
        super().on_body(body)

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
