"""From a drafter and a server's address to a device that decodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...errors import RequestError, ServerAwayError
from ...planner.edge.setting import EdgeDevice
from ...profiler.records.model import ModelIdentity
from ..batch.sequence import Request
from ..models.forward import CausalModel
from ..models.vocabulary import FittedModel
from .device import RemoteTarget
from .edge_drafter import EdgeDrafter
from .link import Link, TcpLink
from .messages import FromServer, Hello, Ping, Pong, Refused, Welcome
from .patience import RetryPolicy

INTRODUCTION_S = 60.0  # the first device of its kind waits for a plan


@contextmanager
def joined(
    address: tuple[str, int],
    identity: ModelIdentity,
    drafter: CausalModel,
    *,
    tokenizer: str,
    token: str,
    patience: RetryPolicy,
) -> Iterator[tuple[RemoteTarget, Introduced]]:
    """Connect a drafter to a server; yield the target behind it and the introduction's results.

    The drafter's vocabulary may be padded differently from the target's. `tokenizer` is its `vocabulary_hash`, `token`
    the server's secret, "" for none. RequestError where the server refuses the device; ServerAwayError where it does
    not answer.
    """
    hello = Hello(drafter=identity.key, draft_ms=draft_ms_of(drafter), tokenizer=tokenizer, token=token)
    link = TcpLink(*address, greeting=lambda: hello, connect_s=patience.timeout_s)
    try:
        known = introduce(link, hello, timeout_s=max(patience.timeout_s, INTRODUCTION_S))
        told = known.welcome
        fits = drafter.vocabulary == told.vocabulary
        fitted = drafter if fits else FittedModel(drafter, told.vocabulary)
        yield RemoteTarget(fitted, link, told.drafting, most_drafted=told.most_drafted, patience=patience), known
    finally:
        link.close()


PINGS = 9
PROBED = 16  # tokens drafted to learn what one takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """The results of an introduction."""

    welcome: Welcome
    device: EdgeDevice


def draft_ms_of(drafter: CausalModel) -> float:
    """Return the median milliseconds of a drafted token on this device."""
    guesser = EdgeDrafter(drafter, Request(prompt=(0,) * PROBED, max_new_tokens=PROBED), most_ahead=PROBED)
    times = []
    for _ in range(PROBED):
        start = time.perf_counter()
        guesser.guess()
        times.append(1000.0 * (time.perf_counter() - start))
    return statistics.median(times)


def introduce(link: Link, hello: Hello, *, timeout_s: float = 60.0) -> Introduced:
    """Introduce a device to a server, with the round trip measured here; return how to draft.

    `timeout_s` is for all answers: the first device of its kind waits for a search. The link greets by itself.
    RequestError where the server refuses the device; ServerAwayError where it does not answer.
    """
    until = time.monotonic() + timeout_s
    rtt_ms = statistics.median(_ping_ms(link, number, until) for number in range(PINGS))
    link.send(replace(hello, rtt_ms=rtt_ms))
    while not isinstance(message := _next(link, until), Welcome):
        pass
    return Introduced(welcome=message, device=EdgeDevice(draft_ms=hello.draft_ms, rtt_ms=rtt_ms))


def _ping_ms(link: Link, number: int, until: float) -> float:
    start = time.monotonic()
    link.send(Ping(number=number))
    while _next(link, until) != Pong(number=number):
        pass
    return 1000.0 * (time.monotonic() - start)


def _next(link: Link, until: float) -> FromServer:
    message = link.receive(max(until - time.monotonic(), 0.0))
    if message is None:
        raise ServerAwayError("the server has gone, or does not answer; is it one of spectune's? try again later")
    if isinstance(message, Refused) and not message.session:
        raise RequestError(f"the server refuses: {message.reason}")
    return message
