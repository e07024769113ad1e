"""The server's network: connections of devices in one event loop, the target in one thread beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...errors import SpectuneError
from ..openmp import let_workers_go
from .messages import MOST_BYTES, FromServer, Hello, Ping, Pong, Refused, from_device, to_line
from .verification_queue import VerificationQueue

Value = TypeVar("Value")
QUEUE = 256  # messages on their way to one device; one that does not read them is cut off
MOST_CONNECTIONS = 1024
MOST_GREETINGS = 4  # of one connection, that are answered at once
MOST_UNHEARD = 32  # messages of one connection that the target's thread has not come to; more are lost
GREETING_S = 10.0  # in which a connection must say who it is
PATIENCE_S = 1.0  # with what was told to end
FAREWELL_S = 1.0  # in which what was said last must have arrived


@dataclass(slots=True)
class _Connection:
    writer: asyncio.StreamWriter
    out: asyncio.Queue[FromServer] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    is_greeted: bool = False
    unheard: int = 0  # messages
    greetings: set[asyncio.Task[None]] = field(default_factory=set)


class EdgeServer:
    """Listens for devices and lets a desk serve them in one thread; connections are read meanwhile, for pings."""

    def __init__(self, desk: VerificationQueue, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Do not listen yet; port 0 means any free one."""
        self._desk, self._host, self._port = desk, host, port
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="target")
        self._echo = ThreadPoolExecutor(1, thread_name_prefix="pings")
        self._heard = asyncio.Event()
        self._conversations: set[asyncio.Task[None]] = set()
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    async def serve(self, listening: Callable[[int], None] = lambda _: None) -> None:
        """Serve until `stop` is called; `listening` gets the port once devices may come.

        OSError where the port is taken; Exception: any error that ended the work.
        """
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        let_workers_go()  # this thread has loaded the target, another one decodes
        server = await asyncio.start_server(self._meet, self._host, self._port, limit=MOST_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        worker, stopped = asyncio.create_task(self._work()), asyncio.create_task(self._stopped.wait())
        listening(self._port)
        try:
            await asyncio.wait({worker, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.close()
            await _end({worker, stopped, *self._conversations})
            self._hands.shutdown(wait=True)
            self._echo.shutdown(wait=True)
        if not worker.cancelled():
            worker.result()  # it ends by itself only where something is wrong

    def stop(self) -> None:
        """Let `serve` return; may be called from any thread."""
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _work(self) -> None:
        while True:
            due_s = await self._in_hands(self._work_where_due)
            if due_s == 0.0:
                continue
            self._heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(due_s):  # wait_for may swallow that the server ends
                    await self._heard.wait()

    def _work_where_due(self) -> float | None:
        due_s = self._desk.due_in_s()
        if due_s == 0.0:
            self._desk.work()
        return due_s

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        conversation = asyncio.create_task(self._converse(reader, _Connection(writer)))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        sending = asyncio.create_task(self._send(connection))
        try:
            while line := await self._heard_from(reader, connection):
                if not await self._take(line, connection):
                    break
            await self._flush(connection)
        except OSError:  # broken
            pass
        finally:
            await _end({sending, *connection.greetings})
            connection.writer.transport.abort()  # whatever is on its way to somebody who does not read

    async def _heard_from(self, reader: asyncio.StreamReader, connection: _Connection) -> bytes:
        """Return the next line; empty where the connection is to end."""
        try:
            async with asyncio.timeout(None if connection.is_greeted else GREETING_S):
                return await reader.readline()
        except ValueError:
            self._refuse(connection, f"a line has at most {MOST_BYTES} bytes; send less at once")
        except TimeoutError:
            self._refuse(connection, f"nothing was said for {GREETING_S:g} s; say hello first")
        return b""

    async def _take(self, line: bytes, connection: _Connection) -> bool:
        """Handle a message; return whether to continue the connection."""
        try:
            message = from_device(line)
        except SpectuneError as error:
            return self._refuse(connection, " ".join(str(error).split()))
        if isinstance(message, Hello):
            connection.is_greeted = self._desk.is_welcome(message)
            if not connection.is_greeted:
                return self._refuse(connection, "the server asks for a token; set SPECTUNE_EDGE_TOKEN to it")
        if not connection.is_greeted:
            return self._refuse(connection, "say hello first")
        if isinstance(message, Ping):  # as long a way as a draft's, heard and answered in a thread, but no wait
            await self._in_hands(lambda: None, self._echo)
            await self._in_hands(partial(self._reply, connection, Pong(number=message.number)), self._echo)
        elif isinstance(message, Hello):
            if message.rtt_ms is not None and len(connection.greetings) < MOST_GREETINGS:
                connection.greetings.add(greeting := asyncio.create_task(self._greet(message, connection)))
                greeting.add_done_callback(connection.greetings.discard)
        elif connection.unheard < MOST_UNHEARD:
            assert self._loop is not None
            connection.unheard += 1
            hearing = partial(self._desk.hear, message, partial(self._reply, connection))
            self._loop.run_in_executor(self._hands, hearing).add_done_callback(partial(self._was_heard, connection))
        return True

    def _was_heard(self, connection: _Connection, _: asyncio.Future[None]) -> None:
        connection.unheard -= 1
        self._heard.set()

    async def _greet(self, hello: Hello, connection: _Connection) -> None:
        """Answer an introduction; a search for how to draft runs in a thread of its own."""
        self._put(connection, await asyncio.to_thread(self._desk.greeted, hello))

    def _reply(self, connection: _Connection, answer: FromServer) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._put, connection, answer)

    def _refuse(self, connection: _Connection, reason: str) -> bool:
        self._put(connection, Refused(session="", reason=reason))
        return False

    def _put(self, connection: _Connection, answer: FromServer) -> None:
        try:
            connection.out.put_nowait(answer)
        except asyncio.QueueFull:
            connection.writer.transport.abort()

    async def _send(self, connection: _Connection) -> None:
        with suppress(OSError):
            while True:
                connection.writer.write(to_line(await connection.out.get()))
                connection.out.task_done()
                await connection.writer.drain()

    async def _flush(self, connection: _Connection) -> None:
        """Let the last messages arrive, if possible."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await connection.out.join()
                await connection.writer.drain()
                connection.writer.close()
                await connection.writer.wait_closed()

    async def _in_hands(self, work: Callable[[], Value], hands: ThreadPoolExecutor | None = None) -> Value:
        assert self._loop is not None
        return await self._loop.run_in_executor(hands or self._hands, work)


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again where one swallows it, and wait for their end."""
    while tasks:
        for task in tasks:
            task.cancel()
        ended, tasks = await asyncio.wait(tasks, timeout=PATIENCE_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # who awaits its result is told; nobody else
