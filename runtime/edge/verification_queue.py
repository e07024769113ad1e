"""The server's side of the protocol without a network: sessions, queued requests and their replies.

A desk answers at once what needs no forward, such as a stale draft or an unknown session. Prompts to read, and the
newest draft of each session, wait until the batch rule says that they are due. `work` does the next thing; between two
pieces of prompts all due drafts are verified.

Source: Li et al. 2025, arXiv:2506.09397 (SLED): request queue, batch planner, verification executor.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import RequestError
from ...planner.edge.setting import BatchRule
from ..batch.reason import told
from ..batch.sequence import Sequence
from ..engine.prefill import Prefill
from ..sampling.acceptance import borne_out
from .messages import VERSION, Answer, Close, Draft, FromServer, Hello, Open, Refused, Welcome
from .verifier import EdgeVerifier


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals of a server since it began."""

    sessions: int = 0
    rounds: int = 0
    drafts: int = 0  # verified
    drafted: int = 0  # tokens of them
    accepted: int = 0  # of these
    emitted: int = 0  # tokens
    waited_s: float = 0.0  # drafts, before they were verified
    verify_s: float = 0.0
    read_s: float = 0.0  # prompts
    failed: int = 0  # drafts that could not be verified, for want of memory mostly


Reply = Callable[[FromServer], None]
Clock = Callable[[], float]  # seconds
MOST_REMEMBERED = 256  # finished texts whose last answer may have been lost
MOST_OPENING = 64  # prompts that wait to be read
ACTIVE_S = 5.0  # whose device was heard so lately is waited for


@dataclass(slots=True)
class _Session:
    opened: Open
    text: Sequence
    heard_s: float


@dataclass(slots=True)
class _Opening:
    opened: Open
    reply: Reply
    reading: Prefill | None = None  # None until it begins


@dataclass(frozen=True, slots=True)
class _Waiting:
    draft: Draft
    reply: Reply
    since_s: float


class VerificationQueue:
    """Sessions of devices over one target; used by one thread at a time."""

    def __init__(
        self,
        verifier: EdgeVerifier,
        rule: BatchRule,
        welcome: Callable[[Hello], Welcome],  # gives a device its way to draft
        *,
        idle_s: float = 60.0,  # silence after which a session may have to make room for another
        token: str = "",  # a secret that devices must know; "" for none
        tokenizer: str = "",  # the target's `vocabulary_hash`; "" where unknown
        stop: tuple[int, ...] = (),  # tokens that end the target's texts
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin without sessions."""
        self.counters = Counters()
        self._verifier, self._rule, self._welcome = verifier, rule, welcome
        self._idle_s, self._token, self._clock = idle_s, token, clock
        self._tokenizer, self._stop = tokenizer, stop
        self._has_read = False  # something of a prompt, since drafts were verified
        self._sessions: dict[str, _Session] = {}
        self._ended: dict[str, _Session] = {}
        self._opening: dict[str, _Opening] = {}  # of which the first is read
        self._waiting: dict[str, _Waiting] = {}  # by session, the longest waiting first

    def is_welcome(self, hello: Hello) -> bool:
        """Whether a device knows the secret, if there is one."""
        return not self._token or hmac.compare_digest(hello.token.encode(), self._token.encode())

    def greeted(self, hello: Hello) -> FromServer:
        """Return the reply to a device's introduction; callable from any thread, unlike all else."""
        if hello.version != VERSION:
            reason = f"the device speaks version {hello.version} and the server {VERSION}; run one version of spectune"
            return Refused(session="", reason=reason)
        if self._tokenizer and hello.tokenizer and hello.tokenizer != self._tokenizer:
            reason = "the drafter numbers its tokens otherwise than the target; take one with the target's tokenizer"
            return Refused(session="", reason=reason)
        try:
            return replace(self._welcome(hello), stop=self._stop, vocabulary=self._verifier.vocabulary)
        except Exception as error:  # the device has to know, whatever it is
            return Refused(session="", reason=told(error))

    def hear(self, message: Open | Draft | Close, reply: Reply) -> None:
        """Take a message; any answer, now or later, goes to `reply`."""
        match message:
            case Open():
                self._hear_open(message, reply)
            case Draft():
                self._hear_draft(message, reply)
            case Close():
                self._forget(message.session)

    def due_in_s(self) -> float | None:
        """Return in how many seconds there is work: 0 for now, None for none."""
        if self._opening:
            return 0.0
        if not self._waiting:
            return None
        return self._drafts_due_in_s()

    def _drafts_due_in_s(self) -> float:
        oldest_s = self._clock() - min(waiting.since_s for waiting in self._waiting.values())
        if self._rule.is_due(len(self._waiting), 1000.0 * oldest_s) or self._is_everybody_waiting():
            return 0.0
        return max(self._rule.wait_ms / 1000.0 - oldest_s, 0.0)

    def work(self) -> None:
        """Read a piece of a prompt, or verify all waiting drafts, if there is either."""
        is_their_turn = self._has_read and self._waiting and self._drafts_due_in_s() == 0.0
        if self._opening and not is_their_turn:
            self._has_read = True
            self._read_on()
        elif self._waiting:
            self._has_read = False
            self._verify_waiting()

    def _is_everybody_waiting(self) -> bool:
        """Whether no other draft is expected: all recently heard devices wait for one."""
        since_s = self._clock() - ACTIVE_S
        return all(name in self._waiting or session.heard_s < since_s for name, session in self._sessions.items())

    def _hear_open(self, message: Open, reply: Reply) -> None:
        name = message.session
        known = self._sessions.get(name) or self._ended.get(name) or self._opening.get(name)
        if known is not None and known.opened != message:
            reply(Refused(session=name, reason="this session is another text; take another name"))
        elif isinstance(known, _Opening):
            known.reply = reply
        elif known is not None:
            known.heard_s = self._clock()
            reply(_answer(name, known.text, len(message.prompt)))
        elif len(self._opening) < MOST_OPENING:
            self._opening[name] = _Opening(message, reply)
        else:
            reason = f"{MOST_OPENING} prompts wait to be read; try again later"
            reply(Refused(session=name, reason=reason, is_passing=True))

    def _hear_draft(self, message: Draft, reply: Reply) -> None:
        known = self._sessions.get(message.session) or self._ended.get(message.session)
        if known is None:
            if message.session not in self._opening:
                reply(_unknown(message.session))
            return
        known.heard_s = self._clock()
        if message.base > len(known.text.tokens):
            reply(_unknown(message.session))  # the device knows more of the text than is here
        elif message.base < len(known.text.tokens) or known.text.is_finished:
            reply(_answer(message.session, known.text, message.base))
        elif (wrong := self._wrong(message)) is not None:
            reply(Refused(session=message.session, reason=wrong))
        else:
            since = self._waiting.pop(message.session, None)
            first_s = since.since_s if since is not None else self._clock()
            self._waiting[message.session] = _Waiting(message, reply, first_s)

    def _wrong(self, draft: Draft) -> str | None:
        most = self._verifier.most_drafted
        if len(draft.tokens) > most:
            return f"a draft has at most {most} tokens here, got {len(draft.tokens)}; send fewer"
        if not self._verifier.is_known(draft.tokens):
            return "a draft holds tokens that the target does not know; its drafter has another vocabulary"
        return None

    def _read_on(self) -> None:
        name, opening = next(iter(self._opening.items()))
        start_s = self._clock()
        try:
            reading = opening.reading = opening.reading or self._begun(opening.opened)
            self._verifier.read(reading)
        except Exception as error:  # a prompt that cannot be read is the device's to know; the others go on
            self._forget(name)
            opening.reply(Refused(session=name, reason=told(error), is_passing=isinstance(error, _FullError)))
            return
        self.counters.read_s += self._clock() - start_s
        if reading.left:
            return
        del self._opening[name]
        self.counters.sessions += 1
        self.counters.emitted += 1
        self._keep(name, _Session(opening.opened, reading.sequence, self._clock()))
        opening.reply(_answer(name, reading.sequence, len(opening.opened.prompt)))

    def _begun(self, opened: Open) -> Prefill:
        request = opened.request
        if not self._verifier.is_known(request.prompt):
            raise RequestError("the prompt holds tokens that the target does not know; use the target's tokenizer")
        if len(request.prompt) + request.max_new_tokens > self._verifier.capacity:
            raise RequestError(
                f"prompt and answer have {len(request.prompt) + request.max_new_tokens} tokens and there is room for "
                f"{self._verifier.capacity}; ask for less, or serve with a larger --capacity"
            )
        if not self._verifier.has_room:
            self._make_room()
        return self._verifier.open(request)

    def _make_room(self) -> None:
        name, session = min(self._sessions.items(), key=lambda item: item[1].heard_s)
        silent_s = self._clock() - session.heard_s
        if silent_s < self._idle_s or name in self._waiting:
            raise _FullError(f"all {len(self._sessions)} places are taken; try again later, or serve with more --slots")
        self._forget(name)

    def _verify_waiting(self) -> None:
        taken, self._waiting = self._waiting, {}
        try:
            self._verify(taken)
        except Exception as error:
            if len(taken) > 1:  # one of them may be the cause: the others must not suffer from it
                for name, waiting in taken.items():
                    self._waiting = {name: waiting}
                    self._verify_waiting()
                return
            ((name, waiting),) = taken.items()  # nothing was committed: the device asks again
            self.counters.failed += 1
            reason = f"the verification failed: {told(error)}"
            waiting.reply(Refused(session=name, reason=reason, is_passing=True))

    def _verify(self, taken: dict[str, _Waiting]) -> None:
        start_s = self._clock()
        texts = {name: self._sessions[name].text for name in taken}
        before = {name: len(text.tokens) for name, text in texts.items()}
        self._verifier.verify([(texts[name], waiting.draft.tokens) for name, waiting in taken.items()])
        counters = self.counters
        counters.rounds += 1
        counters.verify_s += self._clock() - start_s
        counters.failed += len(self._verifier.faults)
        self._verifier.faults.clear()
        for name, waiting in taken.items():
            text, grown = texts[name], texts[name].tokens[before[name] :]
            counters.drafts += 1
            counters.drafted += len(waiting.draft.tokens)
            counters.accepted += borne_out(waiting.draft.tokens, grown)
            counters.emitted += len(grown)
            counters.waited_s += start_s - waiting.since_s
            self._keep(name, self._sessions[name])
            waiting.reply(_answer(name, text, waiting.draft.base))

    def _keep(self, name: str, session: _Session) -> None:
        if not session.text.is_finished:
            self._sessions[name] = session
            return
        self._sessions.pop(name, None)
        self._ended[name] = session
        while len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _forget(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._ended.pop(name, None)
        opening, session = self._opening.pop(name, None), self._sessions.pop(name, None)
        if opening is not None and opening.reading is not None:
            self._verifier.close(opening.reading.sequence)
        if session is not None:
            self._verifier.close(session.text)


class _FullError(RequestError):
    """There is no place for another text right now."""


def _answer(session: str, text: Sequence, base: int) -> Answer:
    return Answer(session=session, base=base, tokens=tuple(text.tokens[base:]), is_finished=text.is_finished)


def _unknown(session: str) -> Refused:
    return Refused(session=session, reason="this session is not known here; open it again", is_unknown=True)
