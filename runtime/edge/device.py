"""A device that drafts for a target elsewhere: it drafts, sends, drafts on while it waits, and takes the answer.

The text is the target's own. Only if the server is silent for long, and the caller allows it, does the device's own
drafter go on alone (fallback). Those tokens are marked, and the target continues behind them.

Source: Li et al. 2025, arXiv:2506.09397 (SLED): speculation controller, asynchronous drafting, timeout and fallback.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...errors import RequestError, ServerAwayError
from ...planner.edge.setting import DeviceDrafting
from ..batch.sequence import Request
from ..models.forward import CausalModel
from ..sampling.acceptance import borne_out
from .edge_drafter import EdgeDrafter
from .link import Link
from .messages import Answer, Close, Draft, FromDevice, FromServer, Ping, Pong, Refused, open_of
from .patience import MOST_SILENT, RetryPolicy, Tries


@dataclass(slots=True, kw_only=True)
class EdgeRun:
    """The record of one text, so far.

    Attributes:
        tokens, own: emitted tokens; indices of those by the device's drafter alone, which the target did not verify.
        rounds, drafted, accepted: answers with new tokens; tokens sent; tokens of these that were right.
    """

    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    answers_ms: list[float] = field(default_factory=list)  # from sending a draft to its answer
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0
    asked_again: int = 0  # timeouts, and refusals for now

    def cut(self, count: int) -> None:
        """Drop all but the first `count` tokens: a stop string ends the text there."""
        del self.tokens[count:]
        self.own = [place for place in self.own if place < count]


class RemoteTarget:
    """One drafter and its link to a server; one text at a time."""

    def __init__(
        self,
        drafter: CausalModel,
        link: Link,
        drafting: DeviceDrafting,
        *,
        most_drafted: int,
        patience: RetryPolicy | None = None,
    ) -> None:
        """Use what `introduce` has agreed; the drafter has the target's vocabulary."""
        self._drafter, self._link, self._drafting = drafter, link, drafting
        self._most_drafted, self._patience = most_drafted, patience or RetryPolicy()

    def stream(self, request: Request, run: EdgeRun | None = None) -> Generator[list[int], None, None]:
        """Yield the tokens of a text, without images, as they become known; `run` records what happens.

        Raises:
            RequestError: the server refuses the text.
            ServerAwayError: it does not answer, and no fallback is allowed.
            ModelError: the drafter's scores are not numbers.
        """
        run = run or EdgeRun()
        most_ahead = self._most_drafted + self._drafting.ahead + 1
        guesser = EdgeDrafter(self._drafter, request, most_ahead=most_ahead)
        text = _Text(self._link, request, self._patience)
        try:
            yield from self._emitted(text.begin(guesser, run), run)
            while not text.is_finished:
                yield from self._emitted(self._round(text, guesser, run), run)
        finally:
            run.forwards = guesser.forwards
            text.close()

    def generate(self, request: Request) -> EdgeRun:
        """Return the record of a whole text."""
        run = EdgeRun()
        for _ in self.stream(request, run):
            pass
        return run

    def _emitted(self, tokens: list[int], run: EdgeRun) -> Iterator[list[int]]:
        run.tokens += tokens
        if tokens:
            yield tokens

    def _round(self, text: _Text, guesser: EdgeDrafter, run: EdgeRun) -> list[int]:
        """Draft, send, and draft on until the answer comes; return the new tokens."""
        chain = self._chain(text, guesser)
        tries = Tries(self._patience)
        while tries.left:
            text.ask(chain, run)
            answer = tries.settled(self._drafting_on(text, guesser, len(chain)), is_there=text.is_there)
            if answer is not None:
                return text.take(answer, chain, guesser, run)
            run.asked_again += 1
            chain = tuple(guesser.guesses[: self._room(text)])  # with what was drafted meanwhile
        return text.go_on_alone(guesser, run)

    def _room(self, text: _Text) -> int:
        return max(min(self._most_drafted, text.left - 1), 0)

    def _chain(self, text: _Text, guesser: EdgeDrafter) -> tuple[int, ...]:
        chain, room = self._drafting.chain, self._room(text)
        length = 0
        while length < min(chain.length, room):
            if length == len(guesser.guesses):
                guesser.guess()
            length += 1
            if guesser.is_doubted(length - 1, chain.confidence):
                break
        return tuple(guesser.guesses[:length])

    def _drafting_on(self, text: _Text, guesser: EdgeDrafter, sent: int) -> FromServer | None:
        """Draft on until an answer comes, even a refusal; None where none comes in time."""
        until = time.monotonic() + self._patience.timeout_s
        most = sent + self._drafting.ahead
        while (answer := text.heard(0.0)) is None and len(guesser.guesses) < most and text.left > len(guesser.guesses):
            guesser.guess()
        return answer if answer is not None else text.heard(max(until - time.monotonic(), 0.0))


class _Text:
    def __init__(self, link: Link, request: Request, patience: RetryPolicy) -> None:
        self._link, self._request, self._patience = link, request, patience
        self._session = secrets.token_hex(8)
        self._tokens = list(request.prompt)
        self._left_behind = deque[str](maxlen=MOST_SILENT)  # sessions of this text that nobody needs any more
        self._asked_s = self._answered_s = time.monotonic()
        self._is_ended = False
        self._is_asking = False  # what was asked last got no answer yet
        self._reason = ""  # why the server has not done what it was asked last, where it told

    @property
    def left(self) -> int:
        return self._request.max_new_tokens - (len(self._tokens) - len(self._request.prompt))

    @property
    def is_finished(self) -> bool:
        return self._is_ended or self.left <= 0

    @property
    def is_there(self) -> bool:
        """Whether the server has answered something since the last message to it."""
        return bool(self._reason)

    def begin(self, guesser: EdgeDrafter, run: EdgeRun) -> list[int]:
        asked = replace(self._request, prompt=tuple(self._tokens), max_new_tokens=self.left)
        tries = Tries(self._patience)
        while tries.left:
            self._ask(*self._closes(), open_of(self._session, asked))
            answer = tries.settled(self.heard(self._patience.timeout_s), is_there=self.is_there)
            if answer is not None:
                return self.take(answer, None, guesser, run)
            run.asked_again += 1
        return self.go_on_alone(guesser, run)

    def ask(self, chain: tuple[int, ...], run: EdgeRun) -> None:
        self._ask(Draft(session=self._session, base=len(self._tokens), tokens=chain))
        run.drafted += len(chain)
        self._asked_s = time.monotonic()

    def heard(self, timeout_s: float) -> FromServer | None:
        """Return the server's next news of this text; None where none comes in time; RequestError if it refuses."""
        until = time.monotonic() + timeout_s
        while (message := self._link.receive(max(until - time.monotonic(), 0.0))) is not None:
            if isinstance(message, Refused) and not message.session:
                raise RequestError(f"the server refuses: {message.reason}")
            if isinstance(message, Pong):
                self._reason = "it answers pings and nothing else; it may have too much to do"
            if not isinstance(message, Answer | Refused) or message.session != self._session:
                continue
            if isinstance(message, Refused) and message.is_passing:
                self._is_asking, self._reason = False, message.reason
                return message
            if isinstance(message, Refused) or self._is_news(message):
                self._is_asking, self._answered_s = False, time.monotonic()
                return message
        if timeout_s > 0.0 and not self.is_there:
            self._link.renew()  # a connection may be dead without anybody's knowing
        return None

    def _is_news(self, answer: Answer) -> bool:
        known = answer.base + len(answer.tokens)
        return known > len(self._tokens) or (answer.is_finished and known == len(self._tokens))

    def take(self, message: FromServer, chain: tuple[int, ...] | None, guesser: EdgeDrafter, run: EdgeRun) -> list[int]:
        """Take the answer to a chain, or to the opening where `chain` is None; return the new tokens."""
        if isinstance(message, Refused):
            if not message.is_unknown:
                raise RequestError(f"the server refuses: {message.reason}")
            self._rename()  # it has lost the text, which goes on as a new one
            return self.begin(guesser, run)
        assert isinstance(message, Answer)
        new = guesser.learn(message.base, message.tokens)
        if chain is not None:
            run.answers_ms.append(1000.0 * (time.monotonic() - self._asked_s))
            run.rounds += 1
            run.accepted += borne_out(chain, new)
        self._tokens += new
        self._is_ended = message.is_finished
        return new

    def go_on_alone(self, guesser: EdgeDrafter, run: EdgeRun) -> list[int]:
        """Emit some tokens without the target; the next session lets it continue behind them.

        Raises RequestError or, if the server is silent, ServerAwayError where no fallback is allowed.
        """
        count = min(self._patience.fallback, self.left)
        if count == 0:
            silent_s = time.monotonic() - self._answered_s
            if self._reason:
                raise RequestError(f"the server cannot go on since {silent_s:.3g} s: {self._reason}")
            raise ServerAwayError(f"the server was silent for {silent_s:.3g} s; try again later, or allow a fallback")
        while len(guesser.guesses) < count:
            guesser.guess()
        own = guesser.guesses[:count]
        ends = [place for place, token in enumerate(own, 1) if token in self._request.stop]
        own, self._is_ended = (own[: ends[0]], True) if ends else (own, False)
        guesser.learn(len(self._tokens), own)
        run.own.extend(range(len(run.tokens), len(run.tokens) + len(own)))
        self._tokens += own
        self._rename()  # the server must not go on with the text it has: it is asked anew
        return own

    def close(self) -> None:
        self._say(*self._closes(), Close(session=self._session))

    def _closes(self) -> list[Close]:
        return [Close(session=session) for session in self._left_behind]

    def _rename(self) -> None:
        self._left_behind.append(self._session)
        self._session = secrets.token_hex(8)

    def _ask(self, *messages: FromDevice) -> None:
        """Send what needs an answer, with a ping if the last had none: a busy server still answers pings."""
        self._say(*messages, *((Ping(number=0),) if self._is_asking else ()))
        self._is_asking, self._reason = True, ""

    def _say(self, *messages: FromDevice) -> None:
        """Send messages; a failure loses one and those behind it, like any message that does not arrive."""
        with suppress(ServerAwayError):
            for message in messages:
                self._link.send(message)
