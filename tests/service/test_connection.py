"""One connection: heads, and what stands behind bodies, are bounded before anybody is asked for a token."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from spectune.db.jobs.jobs import Jobs
from spectune.service import server as connection
from spectune.service.app import create_app
from spectune.service.server import MOST_HEAD_BYTES
from spectune.service.settings import ServiceSettings

from ..support.fresh_store import fresh_store
from ..support.served_store import ServedStore, served_store

WAIT_S = 20.0
FIELDS = b"X-Field: " + b"x" * 1000 + b"\r\n"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    with served_store(tmp_path) as running:
        yield running


def connected(served: ServedStore) -> socket.socket:
    place = urlsplit(served.url)
    return socket.create_connection((place.hostname, place.port), timeout=WAIT_S)


def flooded(opened: socket.socket, piece: bytes) -> int:
    """Send a piece again and again until nobody takes it any more, and return how many bytes were sent."""
    sent = 0
    while sent < 32 * 2**20:
        try:
            opened.sendall(piece)
        except OSError:  # closed at the other end
            break
        sent += len(piece)
    return sent


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 4096),
        (b"GET / HTTP/1.1\r\n", FIELDS),
        (b"GET /", b"x" * 4096),
        (b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", FIELDS),
    ],
    ids=["one field", "fields", "path", "fields behind a body"],
)
def test_a_head_without_end_is_refused_before_it_fills_the_memory(
    served: ServedStore, begun: bytes, piece: bytes
) -> None:
    with connected(served) as opened:
        opened.sendall(begun)
        assert flooded(opened, piece) < 16 * 2**20  # what fits into buffers of the system


def test_heads_within_the_bound_are_answered_one_after_the_other(served: ServedStore) -> None:
    head = WHOLE[:-2] + FIELDS * (MOST_HEAD_BYTES // len(FIELDS) - 1) + b"\r\n"
    with connected(served) as opened:
        for _ in range(3):
            for at in range(0, len(head), 1000):
                opened.sendall(head[at : at + 1000])
            assert opened.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begun", [b"", b"G", WHOLE], ids=["nothing", "a byte", "an answered request"])
def test_whoever_does_not_end_a_head_in_time_is_hung_up_on(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    with connected(served) as opened:
        opened.sendall(begun)
        if begun == WHOLE:
            assert opened.recv(65536).startswith(b"HTTP/1.1 200")
            opened.sendall(b"G")
        assert opened.recv(65536) == b""


def test_an_answer_may_take_longer_than_a_head(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    monkeypatch.setattr("spectune.service.jobs.LOOK_S", 0.05)
    jobs = Jobs(served.behind)
    job = jobs.add("plan", "{}", "ci")
    with httpx.stream("GET", f"{served.url}/v1/jobs/{job.key}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: progress"
        time.sleep(0.7)
        jobs.cancel(job.key)
        assert any('"state":"cancelled"' in line for line in lines)


def test_what_is_told_of_a_job_ends_whole_when_the_service_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectune.service.jobs.LOOK_S", 0.05)
    with ExitStack() as running:
        served = running.enter_context(served_store(tmp_path))
        job = Jobs(served.behind).add("plan", "{}", "ci")
        with httpx.stream("GET", f"{served.url}/v1/jobs/{job.key}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: progress"
            ending = Thread(target=running.close)
            ending.start()
            assert not any("event" in line for line in lines)  # it raises where an answer is cut off
        ending.join()


def test_a_client_that_hangs_up_within_its_body_is_no_mistake_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(f"nobody is there to be told {message}")

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/sign-in",
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    with caplog.at_level(logging.INFO, logger="spectune.service"), fresh_store(tmp_path) as store:
        asyncio.run(create_app(store, ServiceSettings(workers=0))(scope, receive, send))
    assert [record.facts["status"] for record in caplog.records] == [499]  # type: ignore[attr-defined]  # as `tell` gives them
