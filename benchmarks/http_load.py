"""A load generator: keep-alive HTTP/1.1 over bare sockets, at a rate of its own or as fast as answers come.

Run as a process, it reads one `Orders` as JSON from standard input and prints one `Told` as JSON. Requests of a rate
are due at fixed moments; how long one took counts from its moment, so that a server that stalls is charged for all who
wait.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from spectune.profiler.records.wire import from_json

END_OF_HEAD = b"\r\n\r\n"
LONGEST_S = 30.0  # to wait for an answer
OK, NOT_MODIFIED = 200, 304
MOST_FAULTS = 10  # that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What to ask, how, and for how long; a rate of 0 is as fast as answers come."""

    host: str
    port: int
    token: str
    paths: tuple[str, ...]  # each is asked in turn, in an order that the seed shuffles
    tags: tuple[str, ...] = ()  # per path, what to send as If-None-Match; empty: nothing
    seconds: float = 0.0  # 0: every path once
    rate: float = 0.0  # requests a second
    connections: int = 16
    seed: int = 0
    keep_every: int = 0  # of the answers, one in so many is told whole; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One answer, whole."""

    path: str
    status: int
    tag: str
    body: str


@dataclass(slots=True, kw_only=True)
class Told:
    """What came back: milliseconds by status, and what went wrong."""

    seconds: float = 0.0
    took_ms: dict[int, list[float]] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)  # of the paths that were answered with one
    kept: list[Kept] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers with lower-case names, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # Any: JSON
        """Return the body's JSON."""
        return json.loads(self.body)


class Wire(asyncio.Protocol):
    """One connection that asks one thing after another."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._asked_for_head = False

    @classmethod
    async def to(cls, host: str, port: int) -> Wire:
        """Return an open connection."""
        _, wire = await asyncio.get_running_loop().create_connection(cls, host, port)
        return wire

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be asked through it."""
        return self._transport is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready to ask."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Hand over an answer once it is whole."""
        self._received += data
        if self._waiting is None or self._waiting.done():
            return
        try:
            answer = self._whole()
        except ValueError as error:
            self._waiting.set_exception(ConnectionError(f"the answer is no HTTP we know: {error}"))
            return
        if answer is not None:
            self._received.clear()
            self._waiting.set_result(answer)

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer.

        Raises:
            ConnectionError: the connection broke, or the answer is no HTTP that this client knows.
            TimeoutError: no answer in time.
        """
        self.send(request)
        assert self._waiting is not None
        return await asyncio.wait_for(self._waiting, LONGEST_S)

    def send(self, request: bytes) -> None:
        """Send a request; who does not wait for its answer closes the connection next."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._asked_for_head = request.startswith(b"HEAD ")
        self._transport.write(request)

    def close(self) -> None:
        """Hang up at once; nobody waits for an answer any more."""
        self._waiting = None
        if self._transport is not None:
            self._transport.abort()

    def _whole(self) -> Answer | None:
        end = self._received.find(END_OF_HEAD)
        if end < 0:
            return None
        first, *lines = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        status = int(first.split(" ", 2)[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        has_body = status not in (204, NOT_MODIFIED) and not self._asked_for_head
        size = int(headers["content-length"]) if has_body and "content-length" in headers else 0
        if has_body and "content-length" not in headers:
            return self._chunked(status, headers, end + len(END_OF_HEAD))
        if len(self._received) < end + len(END_OF_HEAD) + size:
            return None
        return Answer(status=status, headers=headers, body=bytes(self._received[end + len(END_OF_HEAD) :]))

    def _chunked(self, status: int, headers: dict[str, str], at: int) -> Answer | None:
        """Join the chunks once the last one is there."""
        body = bytearray()
        while (line := self._received.find(b"\r\n", at)) >= 0:
            size, at = int(bytes(self._received[at:line]).split(b";")[0], 16), line + 2
            if len(self._received) < at + size + 2:
                return None
            body += self._received[at : at + size]
            at += size + 2
            if size == 0:
                return Answer(status=status, headers=headers, body=bytes(body))
        return None


def request_of(method: str, path: str, host: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Return the bytes of a request."""
    sized = {**headers, "Content-Length": str(len(body))} if body or method != "GET" else headers
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in sized.items())]
    return "\r\n".join(lines).encode() + END_OF_HEAD + body


class Generator:
    """Asks what it was ordered to ask, over several connections at once."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._told = Told()
        self._requests = [self._request(place) for place in range(len(orders.paths))]
        self._answered = 0

    async def run(self) -> Told:
        """Ask until the time is over or every path has been asked."""
        orders = self._orders
        dues: asyncio.Queue[tuple[float, int] | None] = asyncio.Queue(maxsize=0 if orders.rate else orders.connections)
        started = time.perf_counter()
        workers = [asyncio.create_task(self._work(dues)) for _ in range(orders.connections)]
        async for due, place in self._dues(started):
            await dues.put((due, place))
        for _ in workers:
            await dues.put(None)
        await asyncio.gather(*workers)
        self._told.seconds = time.perf_counter() - started
        return self._told

    async def _dues(self, started: float) -> AsyncIterator[tuple[float, int]]:
        """Yield when each request is due and which path it asks for."""
        for number, place in enumerate(self._places()):
            due = started + number / self._orders.rate if self._orders.rate else time.perf_counter()
            if self._orders.seconds and due > started + self._orders.seconds:
                return
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            yield due, place

    def _places(self) -> Sequence[int] | itertools.chain[int]:
        order = list(range(len(self._requests)))
        random.Random(self._orders.seed).shuffle(order)
        return itertools.chain.from_iterable(itertools.repeat(order)) if self._orders.seconds else order

    async def _work(self, dues: asyncio.Queue[tuple[float, int] | None]) -> None:
        wire: Wire | None = None
        while (ordered := await dues.get()) is not None:
            due, place = ordered
            try:
                wire = wire or await Wire.to(self._orders.host, self._orders.port)
                began = due if self._orders.rate else time.perf_counter()
                answer = await wire.ask(self._requests[place])
                self._note(place, answer, 1e3 * (time.perf_counter() - began))
            except (OSError, TimeoutError) as error:
                self._note_fault(f"{type(error).__name__}: {error}")
                if wire is not None:
                    wire.close()
                wire = None
                await asyncio.sleep(0.01)
        if wire is not None:
            wire.close()

    def _note(self, place: int, answer: Answer, took_ms: float) -> None:
        told, orders = self._told, self._orders
        told.took_ms.setdefault(answer.status, []).append(took_ms)
        if answer.status not in (OK, NOT_MODIFIED):
            self._note_fault(f"{answer.status}: {answer.body[:200].decode(errors='replace')}")
        path, tag = orders.paths[place], answer.headers.get("etag", "")
        told.tags[path] = tag
        self._answered += 1
        if orders.keep_every and self._answered % orders.keep_every == 0:
            told.kept.append(Kept(path=path, status=answer.status, tag=tag, body=answer.body.decode()))

    def _note_fault(self, fault: str) -> None:
        known = self._told.faults
        name = fault if fault in known or len(known) < MOST_FAULTS else "others"
        known[name] = known.get(name, 0) + 1

    def _request(self, place: int) -> bytes:
        orders = self._orders
        headers = {"Authorization": f"Bearer {orders.token}"}
        if orders.tags:
            headers["If-None-Match"] = orders.tags[place]
        return request_of("GET", orders.paths[place], f"{orders.host}:{orders.port}", headers)


def summary(took_ms: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and longest."""
    ordered = sorted(took_ms)
    if not ordered:
        return {"count": 0}
    quantiles = {"p50_ms": 0.5, "p99_ms": 0.99}
    places = {
        name: ordered[min(len(ordered), math.ceil(share * len(ordered))) - 1] for name, share in quantiles.items()
    }
    return {"count": len(ordered), **places, "max_ms": ordered[-1]}


def run_soon(coroutine: Any) -> Any:  # Any: whatever the coroutine returns
    """Run a coroutine on uvloop where it is installed, as the service does."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def main() -> None:
    """Carry out the orders of standard input."""
    orders = from_json(Orders, sys.stdin.read())
    told = json.dumps(asdict(run_soon(Generator(orders).run())))
    with open(sys.stdout.fileno(), "w", closefd=False) as out:  # with PYTHONUNBUFFERED, print may lose a megabyte's end
        out.write(told)


if __name__ == "__main__":
    main()
