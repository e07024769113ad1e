"""Devices and a server over real connections: several at once, broken ones, strangers, and a quiet end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from edge_thread import serve_in_thread

from spectune.errors import RequestError, ServerAwayError
from spectune.planner.edge.setting import BatchRule
from spectune.runtime.batch.sequence import Request
from spectune.runtime.edge import server as edge_server
from spectune.runtime.edge.device import EdgeRun, RemoteTarget
from spectune.runtime.edge.joining import Introduced, draft_ms_of, introduce, joined
from spectune.runtime.edge.link import TcpLink
from spectune.runtime.edge.messages import (
    MOST_BYTES,
    Answer,
    FromDevice,
    Hello,
    Ping,
    Pong,
    Refused,
    from_server,
    open_of,
    to_line,
)
from spectune.runtime.edge.patience import RetryPolicy
from spectune.runtime.edge.server import MOST_UNHEARD, EdgeServer
from spectune.runtime.edge.verification_queue import VerificationQueue
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import random_requests, run
from ...support.edge_links import desk_of
from ...support.synthetic import model
from ...support.tiny_models import perturbed, tiny_llama
from ..test_fitted import TARGET as FEW_ROWS
from ..test_fitted import TOKENS, like_target

LLAMA = tiny_llama(layers=2, seed=0)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.08))
HELLO = Hello(drafter="it", draft_ms=1.0)
LONG_S = 60.0


@contextmanager
def served(target: CausalModel = TARGET, **desk: object) -> Iterator[tuple[EdgeServer, VerificationQueue]]:
    """Serve, and let nothing be left of it."""
    behind = desk_of(target, **desk)  # type: ignore[arg-type]
    server = EdgeServer(behind)
    thread = serve_in_thread(server)
    try:
        yield server, behind
    finally:
        server.stop()
        thread.join(LONG_S)
        assert not thread.is_alive()


def link_to(server: EdgeServer, hello: Hello = HELLO) -> TcpLink:
    return TcpLink("127.0.0.1", server.port, greeting=lambda: hello)


def introduced(server: EdgeServer, hello: Hello = HELLO) -> Introduced:
    with closing(link_to(server, hello)) as link:
        return introduce(link, hello)


def decoded(server: EdgeServer, asked: Request) -> EdgeRun:
    link = link_to(server)
    known = introduce(link, HELLO)
    patience = RetryPolicy(timeout_s=LONG_S)
    remote = RemoteTarget(DRAFTER, link, known.welcome.drafting, most_drafted=8, patience=patience)
    try:
        return remote.generate(asked)
    finally:
        link.close()


def test_devices_at_once_get_the_target_s_own_texts() -> None:
    requests = random_requests(6, tokens=16, temperature=0.8)
    found: dict[int, EdgeRun] = {}
    with served(slots=3, rule=BatchRule(size=3, wait_ms=20.0)) as (server, desk):

        def decode(place: int) -> None:
            for one in range(place, len(requests), 3):
                found[one] = decoded(server, requests[one])

        devices = [threading.Thread(target=decode, args=(place,), daemon=True) for place in range(3)]
        for device in devices:
            device.start()
        for device in devices:
            device.join(LONG_S)
    assert [tuple(found[place].tokens) for place in range(6)] == run(TARGET, requests, slots=1).outputs
    assert desk.counters.sessions == 6 and desk.counters.drafts >= desk.counters.rounds > 0


def test_a_connection_that_breaks_in_the_middle_of_a_text_is_made_anew() -> None:
    (asked,) = random_requests(1, tokens=20)
    with served() as (server, _):
        link = link_to(server)
        remote = RemoteTarget(
            DRAFTER, link, introduce(link, HELLO).welcome.drafting, most_drafted=8, patience=RetryPolicy(timeout_s=0.5)
        )
        tokens: list[int] = []
        for place, new in enumerate(remote.stream(asked)):
            tokens += new
            if place == 1:
                assert link._socket is not None
                link._socket.shutdown(socket.SHUT_RDWR)
        link.close()
    assert tuple(tokens) == run(TARGET, [asked]).outputs[0]


@pytest.mark.parametrize("rows", [TOKENS + 7, TOKENS - 6])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_whose_table_is_padded_otherwise_drafts_for_the_target(rows: int, temperature: float) -> None:
    target, drafter = LeanModel(FEW_ROWS), LeanModel(like_target(rows))
    requests = random_requests(4, tokens=20, temperature=temperature)
    with served(target) as (server, desk):
        patience, address = RetryPolicy(timeout_s=LONG_S), ("127.0.0.1", server.port)
        with joined(address, model("small"), drafter, tokenizer="", token="", patience=patience) as (remote, _):
            found = [tuple(remote.generate(asked).tokens) for asked in requests]
    assert found == run(target, requests, slots=1).outputs
    assert max(map(max, found)) >= TOKENS - 6 and desk.counters.accepted > 0


def test_a_device_measures_itself_and_its_way() -> None:
    with served() as (server, _):
        link = link_to(server)
        known = introduce(link, replace(HELLO, draft_ms=draft_ms_of(DRAFTER)))
        link.close()
    assert 0.0 < known.device.draft_ms < 1000.0 and 0.0 < known.device.rtt_ms < 1000.0
    assert known.welcome.reason.endswith("ms")


def test_who_does_not_know_the_secret_is_refused() -> None:
    with served(token="secret") as (server, _):
        with pytest.raises(RequestError, match="asks for a token; set SPECTUNE_EDGE_TOKEN"):
            introduced(server)
        known = introduced(server, replace(HELLO, token="secret"))
    assert known.welcome.reason


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"{}\n", b"\xff\xfe\n", b'{"kind": "answer"}\n'])
def test_who_speaks_another_language_is_told_and_cut_off(said: bytes) -> None:
    with served() as (server, _), socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as stranger:
        stranger.sendall(said)
        answer = stranger.makefile("rb").readline()
        found = from_server(answer)
        assert isinstance(found, Refused) and "cannot be read" in found.reason
        assert stranger.recv(1) == b""


def test_a_line_without_an_end_is_cut_off() -> None:
    with served() as (server, _), socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as stranger:
        try:
            stranger.sendall(b"x" * (2 * MOST_BYTES))
            said = stranger.makefile("rb").read()  # to the end: it may be told why, or be cut off before
            assert not said or f"a line has at most {MOST_BYTES} bytes" in said.decode()
        except ConnectionError:
            pass
        assert introduced(server).welcome.reason


@pytest.mark.parametrize("said", [Ping(number=1), open_of("a", Request(prompt=(1,), max_new_tokens=4))])
def test_whoever_has_not_said_hello_is_refused(said: FromDevice) -> None:
    with served() as (server, desk), socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as stranger:
        stranger.sendall(to_line(said))
        found = from_server(stranger.makefile("rb").readline())
        assert isinstance(found, Refused) and found.reason == "say hello first"
        assert stranger.recv(1) == b"" and desk.counters.sessions == 0


def test_whoever_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_server, "GREETING_S", 0.05)
    with served() as (server, _), socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as stranger:
        found = from_server(stranger.makefile("rb").readline())
        assert isinstance(found, Refused) and "say hello first" in found.reason


def test_a_device_that_knows_a_secret_may_come_where_none_is_asked_for() -> None:
    with served() as (server, _):
        assert introduced(server, replace(HELLO, token="secret")).welcome.reason


def test_a_drafter_with_another_tokenizer_is_refused() -> None:
    with served(tokenizer="one") as (server, _):
        with pytest.raises(RequestError, match="numbers its tokens otherwise than the target"):
            introduced(server, replace(HELLO, tokenizer="two"))
        assert introduced(server, replace(HELLO, tokenizer="one")).welcome.reason


def flood(connection: socket.socket) -> None:
    """Ask again and again, and read no answer."""
    much, until = to_line(Ping(number=10**4000)) * 100, time.monotonic() + LONG_S
    while time.monotonic() < until:
        connection.sendall(much)


def test_whoever_does_not_read_is_cut_off_and_the_server_ends_all_the_same() -> None:
    with served() as (server, _), socket.socket() as stranger:
        stranger.settimeout(LONG_S)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # soon full
        stranger.connect(("127.0.0.1", server.port))
        stranger.sendall(to_line(HELLO))
        with pytest.raises(OSError):
            flood(stranger)


def test_pings_are_answered_while_the_target_works_however_often_it_was_asked_meanwhile() -> None:
    is_begun, is_over = threading.Event(), threading.Event()

    class Busy(VerificationQueue):
        def work(self) -> None:
            is_begun.set()
            assert is_over.wait(LONG_S)
            super().work()

    behind = desk_of(TARGET)
    behind.__class__ = Busy
    server = EdgeServer(behind)
    thread = serve_in_thread(server)
    link, opening = link_to(server), open_of("a", Request(prompt=(1,), max_new_tokens=4))
    link.send(opening)
    assert is_begun.wait(LONG_S)
    for _ in range(2 * MOST_UNHEARD):
        link.send(opening)
    link.send(Ping(number=3))
    assert link.receive(LONG_S) == Pong(number=3)
    is_over.set()
    assert isinstance(link.receive(LONG_S), Answer)
    link.close()
    server.stop()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_server_whose_work_fails_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = desk_of(TARGET)
    monkeypatch.setattr(behind, "due_in_s", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(EdgeServer(behind).serve())


def test_a_connection_that_is_silent_for_long_is_made_anew() -> None:
    """The first connection leads to somebody who takes everything and says nothing, as a dead one does."""
    (asked,) = random_requests(1, tokens=12)
    with served() as (server, _), socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        link = link_to(server)
        drafting = introduce(link, HELLO).welcome.drafting
        link.close()
        link._address = ("127.0.0.1", hole.getsockname()[1])
        patience = RetryPolicy(timeout_s=0.2)
        stream = RemoteTarget(DRAFTER, link, drafting, most_drafted=8, patience=patience).stream(asked)
        renew = link.renew

        def renewed() -> None:
            link._address = ("127.0.0.1", server.port)
            renew()

        link.renew = renewed  # type: ignore[method-assign]
        tokens = [token for new in stream for token in new]
        link.close()
    assert tuple(tokens) == run(TARGET, [asked]).outputs[0]


def test_where_nobody_serves_that_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerAwayError, match=f"no server answers at 127.0.0.1:{port}"):
        introduce(TcpLink("127.0.0.1", port), HELLO)


def test_a_server_that_sends_no_lines_is_told() -> None:
    is_told = threading.Event()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def babble() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"x" * (MOST_BYTES + 65536))
                is_told.wait(LONG_S)

        threading.Thread(target=babble, daemon=True).start()
        with (
            closing(TcpLink("127.0.0.1", other.getsockname()[1])) as link,
            pytest.raises(RequestError, match="sends no lines"),
        ):
            introduce(link, HELLO)
        is_told.set()


def test_a_port_that_is_taken_is_told() -> None:
    with served() as (server, _), pytest.raises(OSError):
        serve_in_thread(EdgeServer(desk_of(TARGET), port=server.port))
