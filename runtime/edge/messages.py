"""The messages between a device and a server: one JSON object a line.

All are relative to places in the text: a draft names the length of the text before it, an answer where its tokens
begin. So repeated, late and lost messages do no harm. A draft behind the server's text is answered by the tokens there,
and an answer that the device has is not news. Only the server extends a text, so both agree on all that both know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...errors import RequestError, SpectuneError
from ...planner.edge.setting import DeviceDrafting
from ...profiler.records.wire import from_json, to_json
from ..batch.sequence import Request

MOST_BYTES = 1 << 23  # of a line: a prompt of a million tokens
MOST_NAME, MOST_STOPS = 64, 1024
VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A device introduces itself."""

    drafter: str  # ModelIdentity.key
    draft_ms: float  # a drafted token takes
    tokenizer: str = ""  # how it numbers tokens, see `vocabulary_hash`; "" where it is not known
    rtt_ms: float | None = None  # to the server and back; None where it is not known yet: then nothing is answered
    token: str = ""  # a secret that the server may ask for
    version: int = VERSION
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """How the device is to draft, by the server, and why."""

    drafting: DeviceDrafting
    most_drafted: int  # tokens of one draft that it verifies
    reason: str
    stop: tuple[int, ...] = ()  # tokens that end the target's texts
    vocabulary: int = 0  # of the target, padding included
    kind: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A device measures its distance from the server."""

    number: int
    kind: Literal["ping"] = "ping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The server answers a ping."""

    number: int
    kind: Literal["pong"] = "pong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A device starts a text; a text begun elsewhere is all prompt, since draws depend on the place alone."""

    session: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[int, ...] = ()
    kind: Literal["open"] = "open"

    def __post_init__(self) -> None:
        _require_name(self.session)
        if len(self.stop) > MOST_STOPS:
            raise RequestError(f"a text ends at no more than {MOST_STOPS} tokens, got {len(self.stop)}; name fewer")

    @property
    def request(self) -> Request:
        """The request for the target; RequestError if its values are not valid."""
        names = ("prompt", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        return Request(**{name: getattr(self, name) for name in names}, stop=frozenset(self.stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A device sends a draft behind the first `base` tokens of a text for verification."""

    session: str
    base: int
    tokens: tuple[int, ...]
    kind: Literal["draft"] = "draft"

    def __post_init__(self) -> None:
        _require_name(self.session)
        if self.base < 1:
            raise RequestError(f"a draft follows at least one token, got {self.base}; open the session first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The server's tokens behind the first `base` of a text."""

    session: str
    base: int
    tokens: tuple[int, ...]
    is_finished: bool
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The server cannot do this: `is_unknown` sessions may be opened again, `is_passing` refusals be tried again."""

    session: str
    reason: str
    is_unknown: bool = False
    is_passing: bool = False
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """A device is done with a text."""

    session: str
    kind: Literal["close"] = "close"

    def __post_init__(self) -> None:
        _require_name(self.session)


FromDevice = Hello | Ping | Open | Draft | Close
FromServer = Welcome | Pong | Answer | Refused


def to_line(message: FromDevice | FromServer) -> bytes:
    """Return a message as a line; RequestError if it is too long."""
    line = to_json(message).encode() + b"\n"
    if len(line) > MOST_BYTES:
        raise RequestError(f"a message has at most {MOST_BYTES} bytes, this one {len(line)}; shorten the prompt")
    return line


def open_of(session: str, request: Request) -> Open:
    """Return the message that starts a text."""
    return Open(
        session=session,
        prompt=request.prompt,
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=tuple(sorted(request.stop)),
    )


def from_device(line: bytes) -> FromDevice:
    """Return a device's message; RequestError if it is not one."""
    message: FromDevice = _read(FromDevice, line)
    return message


def from_server(line: bytes) -> FromServer:
    """Return a server's message; RequestError if it is not one."""
    message: FromServer = _read(FromServer, line)
    return message


def _read(kinds: Any, line: bytes) -> Any:  # Any: a union of records has no type of its own
    try:
        named = {kind.__dataclass_fields__["kind"].default: kind for kind in get_args(kinds)}
        told = json.loads(line)
        kind = named.get(told.get("kind")) if isinstance(told, dict) else None
        if kind is None:
            raise RequestError(f"its kind is none of {', '.join(named)}")
        return from_json(kind, line)
    except (SpectuneError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"a message cannot be read ({reason}); both ends must run one version") from error


def _require_name(session: str) -> None:
    if not 0 < len(session) <= MOST_NAME:
        raise RequestError(f"a session's name has 1 to {MOST_NAME} characters, got {len(session)}; take another one")
