"""Answers on their way to clients, who may go away at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ...errors import DeviceError, SpectuneError
from ...runtime.engine.settings import Completion
from .told import DONE, TextResponse, error_of, sse
from .worker import TextAnswer


class Streamed(StreamingResponse):
    """Server-sent events; whatever becomes of their reader, their answers are left at the end."""

    def __init__(self, events: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def events_of(answers: Sequence[TextAnswer], told: TextResponse, *, tells_usage: bool) -> AsyncIterator[bytes]:
    """Yield all answers as server-sent events, and their usage where that is wanted."""
    news: asyncio.Queue[bytes | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_followed(news, place, one, told)) for place, one in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            event = await news.get()
            if event is None:
                left -= 1
            else:
                yield event
        done = [(answer, answer.completion) for answer in answers if answer.completion is not None]
        if tells_usage:
            yield sse(told.last(done))
        yield DONE
    finally:
        for task in tasks:
            task.cancel()


async def _followed(news: asyncio.Queue[bytes | None], place: int, answer: TextAnswer, told: TextResponse) -> None:
    is_first = True
    try:
        async for piece, done in answer.pieces():
            if done is not None:
                require_decoded(done)
            reason = None if done is None else done.finish_reason
            news.put_nowait(sse(told.chunk(place, piece, reason, is_first=is_first)))
            is_first = False
    except SpectuneError as error:
        news.put_nowait(sse(error_of(str(error), "server_error")))
    finally:
        news.put_nowait(None)


def require_decoded(done: Completion) -> None:
    """Raise DeviceError where a prompt could not be read, or the endpoint ended in the middle of its answer."""
    if done.finish_reason == "failed":
        raise DeviceError(f"the prompt could not be read: {done.error}")
    if done.finish_reason == "cancelled":
        raise DeviceError("the answer was cancelled")


async def unless_gone(request: HttpRequest, done: asyncio.Future[list[Completion]]) -> list[Completion] | None:
    """Return what is waited for; None where the client goes away before."""
    gone = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        gone.cancel()
        done.cancel()
        with suppress(asyncio.CancelledError, SpectuneError):
            await done


async def _until_gone(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
