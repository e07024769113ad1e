"""Ways from a device to a server that need no network, and ways that lose, double and hold back what is sent."""

from __future__ import annotations

import random
from collections import deque
from functools import partial

from spectune.errors import ServerAwayError
from spectune.planner.edge.setting import BatchRule, DeviceDrafting
from spectune.runtime.edge.messages import (
    Close,
    Draft,
    FromDevice,
    FromServer,
    Hello,
    Open,
    Ping,
    Pong,
    Refused,
    Welcome,
    from_device,
    from_server,
    to_line,
)
from spectune.runtime.edge.verification_queue import VerificationQueue
from spectune.runtime.edge.verifier import EdgeVerifier
from spectune.runtime.models.forward import CausalModel

ALONE = BatchRule()


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def desk_of(
    target: CausalModel,
    *,
    slots: int = 3,
    capacity: int = 60,
    most_drafted: int = 8,
    rule: BatchRule = ALONE,
    clock: Clock | None = None,
    token: str = "",
    tokenizer: str = "",
) -> VerificationQueue:
    verifier = EdgeVerifier(target, slots=slots, capacity=capacity, most_drafted=most_drafted)

    def welcome(hello: Hello) -> Welcome:
        return Welcome(drafting=DeviceDrafting(), most_drafted=most_drafted, reason=f"for {hello.draft_ms:g} ms")

    return VerificationQueue(verifier, rule, welcome, clock=clock or Clock(), token=token, tokenizer=tokenizer)


class LocalLink:
    """Hands messages, as lines, to a desk that works whenever somebody waits for an answer."""

    def __init__(self, desk: VerificationQueue) -> None:
        self.desk = desk
        self.sent: list[FromDevice] = []
        self._came = deque[FromServer]()

    def send(self, message: FromDevice) -> None:
        self.sent.append(message)
        self.deliver(message)

    def deliver(self, message: FromDevice) -> None:
        heard = from_device(to_line(message))
        if isinstance(heard, Ping):
            self.take(Pong(number=heard.number))
        elif isinstance(heard, Hello):
            self.take(self.desk.greeted(heard))
        else:
            assert isinstance(heard, Open | Draft | Close)
            self.desk.hear(heard, self.take)

    def take(self, message: FromServer) -> None:
        self._came.append(from_server(to_line(message)))

    def renew(self) -> None:
        """There is but one way."""

    def receive(self, timeout_s: float) -> FromServer | None:
        if not self._came and timeout_s > 0.0:
            self.desk.work()
        return self._came.popleft() if self._came else None


class FaultyLink(LocalLink):
    """Loses, doubles and holds back messages of both directions, by a seed; never two in a row."""

    def __init__(self, desk: VerificationQueue, seed: int) -> None:
        super().__init__(desk)
        self._dice, self._lost = random.Random(seed), {"there": False, "back": False}
        self._late: list[FromServer | FromDevice] = []

    def deliver(self, message: FromDevice) -> None:
        for _ in range(self._copies("there")):
            super().deliver(message)
        if self._late and self._dice.random() < 0.3:
            old = self._late.pop(self._dice.randrange(len(self._late)))
            if isinstance(old, Open | Draft):
                super().deliver(old)
            elif not isinstance(old, Hello | Ping | Close):
                super().take(old)
        if isinstance(message, Open | Draft) and self._dice.random() < 0.3:
            self._late.append(message)

    def take(self, message: FromServer) -> None:
        for _ in range(self._copies("back")):
            super().take(message)
        if self._dice.random() < 0.3:
            self._late.append(message)

    def _copies(self, way: str) -> int:
        """Return how often a message arrives."""
        copies = self._dice.choice((1, 1, 2) if self._lost[way] else (0, 0, 1, 1, 1, 2))
        self._lost[way] = copies == 0
        return copies


class SilentLink(LocalLink):
    """Loses all that is sent in a span of its messages, pings not counted."""

    def __init__(self, desk: VerificationQueue, silent: range, *, is_cut: bool = False) -> None:
        super().__init__(desk)
        self._silent, self._is_cut, self._count = silent, is_cut, 0

    def deliver(self, message: FromDevice) -> None:
        self._count += not isinstance(message, Ping)
        if self._count - 1 not in self._silent:
            super().deliver(message)
        elif self._is_cut:
            raise ServerAwayError("nobody is there")


class DeafLink(LocalLink):
    """Takes pings alone where so many drafts are sent, as a server whose target is busy."""

    def __init__(self, desk: VerificationQueue, times: int) -> None:
        super().__init__(desk)
        self._left = times

    def deliver(self, message: FromDevice) -> None:
        if isinstance(message, Draft) and self._left:
            self._left -= 1
        else:
            super().deliver(message)


class BusyLink(LocalLink):
    """Refuses every draft so often at first, because the server is busy, and counts the waits for what never comes."""

    def __init__(self, desk: VerificationQueue, times: int = 1) -> None:
        super().__init__(desk)
        self.refused, self.vain = 0, 0
        self._times, self._left = times, times

    def deliver(self, message: FromDevice) -> None:
        if isinstance(message, Draft) and self._left:
            self._left -= 1
            self.refused += 1
            self.take(Refused(session=message.session, reason="busy", is_passing=True))
        else:
            self._left = self._times
            super().deliver(message)

    def receive(self, timeout_s: float) -> FromServer | None:
        found = super().receive(timeout_s)
        self.vain += found is None and timeout_s > 0.0
        return found


def forgetful(link: LocalLink, desks: list[VerificationQueue], after: int) -> LocalLink:
    """Return the link with another desk from its `after`-th message on, as if the server had begun anew."""
    send = link.send

    def sending(link: LocalLink, message: FromDevice) -> None:
        if len(link.sent) == after:
            link.desk = desks[0]
        send(message)

    link.send = partial(sending, link)  # type: ignore[method-assign]
    return link
