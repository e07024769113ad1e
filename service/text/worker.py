"""The thread that decodes: requests reach it from an event loop, and their text goes back there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread

from ...errors import DeviceError, SpectuneError
from ...runtime.batch.faults import reason_of
from ...runtime.batch.sequence import Request
from ...runtime.engine.scheduler import Scheduler
from ...runtime.engine.settings import Completion, Event
from ..log import LOGGER

Refusal = Callable[[Exception], None]
INTERVAL_S = 0.02  # between two pieces of a streamed answer, of which the first comes at once
STOP_S = 30.0  # for a round under way
STOPPING = "the endpoint is being stopped; ask again once it runs"
ENDED = "nothing decodes here any more; see the log for the reason, start the endpoint again"


class BusyError(SpectuneError):
    """As many requests are waiting as may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the thread is to do, or to say where it does nothing any more."""

    run: Callable[[Scheduler], None]
    refuse: Refusal = lambda error: None


class TextAnswer:
    """What becomes known of one request, read by one task: in pieces if `is_streamed`, and as the whole once ended."""

    def __init__(self, request: Request, *, is_streamed: bool) -> None:
        self.request, self.is_streamed = request, is_streamed
        self.completion: Completion | None = None
        self._news, self._lock = asyncio.Event(), Lock()
        self._piece, self._has_begun = "", False
        self._failure: Exception | None = None

    def tell(self, event: Event) -> bool:
        """Take what became known, in any thread; return whether a reader waits for it: the first piece, or the end."""
        with self._lock:
            self._piece += event.piece
            self.completion = event.completion
            is_first, self._has_begun = not self._has_begun, True
        return event.completion is not None or (is_first and self.is_streamed)

    def fail(self, error: Exception) -> None:
        """Take that nothing more comes."""
        self._failure = error

    def hear(self) -> None:
        """Let the reader know that there is more; only the event loop's thread may."""
        self._news.set()

    async def pieces(self) -> AsyncIterator[tuple[str, Completion | None]]:
        """Yield the text as it comes, with the last piece, maybe empty, the whole; SpectuneError if it broke off."""
        while True:
            await self._news.wait()
            self._news.clear()
            with self._lock:
                piece, self._piece, done = self._piece, "", self.completion
            if piece or done is not None:
                yield piece, done
            if self._failure is not None:
                raise self._failure
            if done is not None:
                return

    async def whole(self) -> Completion:
        """Return the whole at its end; raise SpectuneError where it was not decoded to its end."""
        async for _, done in self.pieces():
            if done is not None:
                return done
        raise AssertionError("pieces end with the whole or an error")


@dataclass(slots=True)
class ServedCounts:
    """What was served since the beginning."""

    ended: Counter[str] = field(default_factory=Counter)  # requests, by why they ended
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of prompts, that were not read anew
    new_tokens: int = 0

    def note(self, request: Request, done: Completion) -> None:
        """Count a request that has ended."""
        self.ended[done.finish_reason] += 1
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += done.cached_tokens
        self.new_tokens += len(done.tokens)


class TextWorker:
    """Decodes in its own thread, which alone counts `served`; after a failed session it begins another."""

    def __init__(self, make: Callable[[], Scheduler], *, most: int) -> None:
        self.served = ServedCounts()
        self._make, self._most = make, most
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._answers: dict[int, TextAnswer] = {}  # by handle in the session; the thread's
        self._open = 0  # requests under way, as the event loop knows
        self._loop: asyncio.AbstractEventLoop | None = None  # in which answers are read
        self._unheard: dict[TextAnswer, None] = {}  # of which more is known than readers were told; the thread's
        self._heard_s = 0.0  # when they were told last
        self._is_stopping = False
        self._has_ended = False  # the thread; who orders something then is refused
        self._thread = Thread(target=self._run, name="spectune-text", daemon=True)
        self._begun: SimpleQueue[Exception | None] = SimpleQueue()

    def start(self) -> None:
        """Make the session and begin to decode; raise SpectuneError where memory has no room."""
        self._thread.start()
        failure = self._begun.get()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End every request, and the thread behind the round under way; a second call waits for that alone."""
        self._is_stopping = True
        self._orders.put(None)
        self._thread.join(STOP_S)

    @property
    def is_alive(self) -> bool:
        """Whether it decodes."""
        return self._thread.is_alive() and not self._has_ended

    @property
    def open(self) -> int:
        """Requests that run or wait."""
        return self._open

    async def ask(self, requests: Sequence[Request], stop: tuple[str, ...], *, is_streamed: bool) -> list[TextAnswer]:
        """Let requests be decoded, all or none; return what streams their texts, always in the same event loop.

        RequestError: one does not fit. BusyError: too many wait already. DeviceError: nothing decodes any more.
        """
        if self._is_stopping:
            raise DeviceError(STOPPING)
        if self._open + len(requests) > self._most:
            raise BusyError(f"{self._open} requests run or wait, of {self._most} that may; ask again later")
        answers = [TextAnswer(request, is_streamed=is_streamed) for request in requests]
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            with suppress(RuntimeError):  # the loop has ended, and who asked with it
                loop.call_soon_threadsafe(_settle, taken, error)

        def submit(session: Scheduler) -> None:
            handles: list[int] = []
            try:
                for answer in answers:
                    handles.append(session.enqueue(answer.request, stop))
            except Exception as error:  # of one that does not fit: the others of it are taken back
                for handle in handles:
                    session.cancel(handle)
                settle(error)
                return
            self._answers.update(zip(handles, answers, strict=True))
            settle(None)

        self._open, self._loop = self._open + len(answers), loop
        try:
            self._orders.put(Order(run=submit, refuse=settle))
            if self._has_ended:  # it may have looked for orders before this one came
                raise self._end
            await taken
        except BaseException:
            self.leave(answers)
            raise
        return answers

    def leave(self, answers: Sequence[TextAnswer]) -> None:
        """Note that answers have no reader any more; they are cancelled where they have not ended."""
        self._open -= len(answers)
        left = {id(answer) for answer in answers if answer.completion is None}

        def cancel(session: Scheduler) -> None:
            for handle, answer in self._answers.items():
                if id(answer) in left:
                    session.cancel(handle)

        if left:
            self._orders.put(Order(run=cancel))

    def _run(self) -> None:
        try:
            session = self._make()
        except Exception as error:
            self._begun.put(error)
            return
        self._begun.put(None)
        try:
            while not self._has_decoded(session):
                del session  # its caches make room for the next one's
                session = self._make()
        except Exception:  # it was there before, and is no more
            LOGGER.exception("decoding has ended")
        finally:
            self._has_ended = True
            self._fail(self._end)
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None:
                    order.refuse(self._end)

    @property
    def _end(self) -> DeviceError:
        return DeviceError(STOPPING if self._is_stopping else ENDED)

    def _has_decoded(self, session: Scheduler) -> bool:
        """Decode until it is time to end; return whether it was that, and no failure, that ended it."""
        try:
            while self._obeyed(session):
                if not session.is_idle:
                    is_awaited = [self._told(event) for event in session.step()]
                    self._let_hear(at_once=any(is_awaited))
        except Exception as error:  # whatever it is, those who wait are told, and the next ones served
            LOGGER.exception("decoding failed")
            self._fail(DeviceError(f"decoding failed: {reason_of(error)}"))
            return False
        return True

    def _obeyed(self, session: Scheduler) -> bool:
        """Do what was ordered, waiting for something where nothing is to be decoded; return whether to go on."""
        while not self._orders.empty() or session.is_idle:
            order = self._orders.get()
            if order is None:
                return False
            order.run(session)
        return True

    def _told(self, event: Event) -> bool:
        answer = self._answers.get(event.handle)
        if answer is None:  # of one that was taken back
            return False
        if event.completion is not None:
            del self._answers[event.handle]
            self.served.note(answer.request, event.completion)
        if answer.is_streamed or event.completion is not None:
            self._unheard[answer] = None
        return answer.tell(event)

    def _let_hear(self, *, at_once: bool) -> None:
        """Wake the event loop for all answers of which more is known, seldom: it takes turns with what decodes."""
        now_s = time.monotonic()
        if not self._unheard or not (at_once or now_s - self._heard_s >= INTERVAL_S):
            return
        unheard, self._unheard, self._heard_s = self._unheard, {}, now_s
        assert self._loop is not None, "somebody asked"
        with suppress(RuntimeError):  # the loop has ended, and who read with it
            self._loop.call_soon_threadsafe(_wake, list(unheard))

    def _fail(self, error: Exception) -> None:
        for answer in self._answers.values():
            answer.fail(error)
            self._unheard[answer] = None
        self.served.ended["failed"] += len(self._answers)
        self._answers.clear()
        self._let_hear(at_once=True)


def _wake(answers: list[TextAnswer]) -> None:
    for answer in answers:
        answer.hear()


def _settle(taken: asyncio.Future[None], error: Exception | None) -> None:
    if taken.done():  # who asked has gone
        return
    if error is None:
        taken.set_result(None)
    else:
        taken.set_exception(error)
