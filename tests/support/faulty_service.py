"""A planner service in memory that misbehaves on purpose: it forgets to answer, answers late, half or not yet."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

Json = Any  # JSON values
Reply = tuple[int, bytes]
Fault = Literal["drop before", "drop after", "cut", "slow", 401, 403, 429, 500, 502, 503, 504]
TOKEN = "st_a-token-of-the-faulty-service"


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass
class FaultyService:
    """What it remembers, and what will go wrong: `faults[method]` are taken one by one, None is no fault."""

    faults: dict[str, deque[Fault | None]] = field(default_factory=lambda: defaultdict(deque))
    retry_after: str | None = None
    is_mistaken: bool = False  # its texts do not have the hashes it tells
    page: bytes = b""  # what a proxy in front of it shows in its place
    etag: str = '"{}"'  # how a proxy in front of it leaves the hash
    seen: list[Seen] = field(default_factory=list)
    receipts: dict[str, Reply] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)  # what a GET of a list's name answers
    unknown: tuple[str, ...] = ()  # fields of validations that it is too old for
    outcomes: list[Json] = field(default_factory=list)
    traces: list[Json] = field(default_factory=list)
    visits: dict[int, Json] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    surfaces: list[Json] = field(default_factory=list)
    uploads: dict[str, tuple[Json, bytearray]] = field(default_factory=dict)
    begun: str = "then"
    state: str = "none"  # of the one profile it can have
    info: Json = field(default_factory=lambda: {"spectune": "1", "schema": "0004", "api": 1})
    enough: Event = field(default_factory=Event)  # ends what is slow
    url: str = ""
    lock: Lock = field(default_factory=Lock)

    def told(self, method: str, end: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method and seen.path.endswith(end)]

    def answer(self, seen: Seen) -> Reply:
        """Do what is asked, once per key."""
        with self.lock:
            if seen.headers.get("authorization", f"Bearer {TOKEN}") != f"Bearer {TOKEN}":
                return problem(401, "the token is not known")
            key = seen.headers.get("idempotency-key")
            if key is None or key not in self.receipts:
                reply = self.done(seen.method, seen.path.removeprefix("/v1"), seen)
                if key is None:
                    return reply
                self.receipts[key] = reply
            return self.receipts[key]

    def done(self, method: str, path: str, seen: Seen) -> Reply:
        match method, path.strip("/").split("/"):
            case "GET", [""]:
                return said(200, self.info)
            case "GET", [name] if name in self.records:
                return 200, self.records[name].encode()
            case "GET", ["plans"]:
                rows = [row(number, text) for number, text in self.plans.items()]
                after, most = int(seen.query.get("after", ["0"])[0]), min(2, int(seen.query["limit"][0]))
                rest = [each for each in rows if each["id"] > after]
                return said(200, {"items": rest[:most], "next": rest[most - 1]["id"] if len(rest) > most else None})
            case "GET", ["plans", number] if int(number) in self.plans:
                return 200, self.plans[int(number)].encode()
            case "POST", ["plans", number, "observations"] if int(number) in self.plans:
                self.outcomes.append(json.loads(seen.body)["document"])
                return said(201, {})
            case "POST", ["plans", number, "validations"] if int(number) in self.plans:
                told = json.loads(json.loads(seen.body)["document"])
                if unknown := [name for each in told["rows"] for name in each if name in self.unknown]:
                    return problem(422, f"the document is refused: unknown field {unknown[0]!r}")
                self.outcomes.append(told)
                return said(201, {})
            case "POST", ["traces"]:
                self.traces.append(json.loads(seen.body))
                return said(201, {})
            case "POST", ["uploads"]:
                self.uploads["an upload"] = json.loads(seen.body), bytearray()
                return said(201, {"key": "an upload", "received": 0})
            case _, ["uploads", name, *rest]:
                return self.uploading(method, *self.uploads[unquote(name)], rest, seen)
            case "POST", ["profiles"]:
                is_resumed, self.state = self.state == "open", "open"
                return said(200, {"profile_id": 1, "is_resumed": is_resumed, "begun": self.begun})
            case _, ["profiles", "1", *rest]:
                return self.profiling(method, rest, seen)
        return problem(404, f"there is no {path}")

    def uploading(self, method: str, new: Json, received: bytearray, rest: list[str], seen: Seen) -> Reply:
        if method == "PATCH":
            if int(seen.headers["upload-offset"]) != len(received):
                return problem(409, "wrong offset")
            received += seen.body
        if rest == ["finish"]:
            assert sha256(received).hexdigest() == new["sha256"]
            target = Seen(new["method"], new["target"], {}, {}, bytes(received))
            return self.done(target.method, target.path.removeprefix("/v1"), target)
        return said(200, {"key": "an upload", "received": len(received)})

    def profiling(self, method: str, rest: list[str], seen: Seen) -> Reply:
        if method != "GET" and self.state != "open":
            return problem(409, f"profile 1 in the store is {self.state} and takes nothing more")
        match method, [unquote(each) for each in rest]:
            case "GET", ["visits"]:
                return said(200, {"items": [self.visits[each] for each in sorted(self.visits)], "next": None})
            case "POST", ["visits"]:
                new = {each["ordinal"]: each for each in json.loads(seen.body)["visits"]}
                if new.keys() & self.visits.keys():
                    return problem(409, "a visit is already there")
                self.visits.update(new)
            case "GET", ["parts", name]:
                return (200, self.parts[name].encode()) if name in self.parts else problem(404, "no such part")
            case "PUT", ["parts", name]:
                self.parts[name] = seen.body.decode()
            case "POST", ["surfaces"]:
                self.surfaces += json.loads(seen.body)["surfaces"]
                self.visits, self.parts["surfaces"] = {}, json.dumps(self.surfaces)
            case "POST", ["finish"]:
                self.state = "finished"
        return said(200, {})


def said(status: int, value: Json) -> Reply:
    return status, json.dumps(value).encode()


def problem(status: int, detail: str) -> Reply:
    return said(status, {"type": "about:blank", "title": "no", "status": status, "detail": detail})


def row(number: int, text: str) -> Json:
    names = ("device", "device_kind", "target", "workload", "created")
    facts = {"id": number, "version": 1, "temperature": 0.0, "state": "kept"}
    return {**facts, **dict.fromkeys(names, "x"), "content_hash": sha256(text.encode()).hexdigest()}


class Handler(BaseHTTPRequestHandler):
    service: FaultyService
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        url, length = urlsplit(self.path), int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(length)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        seen = Seen(self.command, url.path, parse_qs(url.query), headers, body)
        self.service.seen.append(seen)
        faults = self.service.faults[self.command]
        fault = faults.popleft() if faults else None
        if fault == "drop before":
            return self._drop()
        if isinstance(fault, int):
            return self._send(*problem(fault, "not now"))
        if self.service.page:
            return self._send(200, self.service.page)
        if fault == "slow":
            self.service.enough.wait(10.0)
        status, answer = self.service.answer(seen)
        if fault == "drop after":
            return self._drop()
        return self._send(status, answer, is_cut=fault == "cut")

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # the name http.server calls for a method
            return self.handle_any
        raise AttributeError(name)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _send(self, status: int, body: bytes, is_cut: bool = False) -> None:
        tag = self.service.etag.format(sha256(body + b"!" * self.service.is_mistaken).hexdigest())
        if self.command == "GET" and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        self.send_response(status)
        if self.service.retry_after is not None and status >= 400:
            self.send_header("Retry-After", self.service.retry_after)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body) + (5 if is_cut else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.close_connection or is_cut

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A dropped connection is what was asked for."""


@contextmanager
def served(
    service: FaultyService, prepare: Callable[[ThreadingHTTPServer], None] = lambda _: None
) -> Iterator[FaultyService]:
    """Serve on this machine for one block; at its end the port answers no more."""
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"service": service}))
    prepare(server)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.enough.set()
        server.shutdown()
        server.server_close()
        thread.join()
