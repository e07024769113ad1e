"""Requests to a planner service: a token that no message shows, patience with a bad network, errors in one line.

StoreError
├── StoreAwayError
│   └── AwayError      the service does not answer; the same request may be sent later
└── RefusedError       it answered, and refused
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any

import httpx

from ...errors import StoreAwayError, StoreError
from ..url import TOKEN_VARIABLE, ServiceUrl
from ..wire import IDEMPOTENCY_KEY
from .certificates import tls_fault, trusted

TIMEOUT = httpx.Timeout(30.0, connect=3.0)  # seconds; of one wait for the network, not of the whole request
AWAY = frozenset({408, 502, 503, 504})  # 408: the body was too slow on its way
TOO_MANY = 429
LONGEST_WAIT_S = 60.0  # a service that asks for more is away
LONGEST_BACKOFF_S = 8.0
LEAST_PACKED_BYTES = 1024  # smaller bodies are sent as they are
MOST_ANSWER_BYTES = 2**30
REDIRECTS = range(300, 400)
NOT_MODIFIED = 304


class AwayError(StoreAwayError):
    """The service does not answer, or not now."""


class RefusedError(StoreError):
    """The service answered that it will not."""

    def __init__(self, message: str, status: int, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind  # type of the problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """How often a request is tried, and how the waits between grow."""

    attempts: int
    first_wait_s: float = 0.25

    def wait_s(self, attempt: int) -> float:
        """Return how long to wait after an attempt, from 0; half of it is chance, so that clients do not march."""
        longest = min(LONGEST_BACKOFF_S, self.first_wait_s * 2.0**attempt)
        return longest * random.uniform(0.5, 1.0)


PATIENT = ExponentialBackoff(attempts=8)  # about twenty seconds where the service refuses at once: it restarts in less
BRISK = ExponentialBackoff(attempts=2)  # where there is something to fall back on
OPENING = ExponentialBackoff(attempts=4)  # two seconds: a wrong URL should not take long to show
ONCE = ExponentialBackoff(attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request; one that writes has a key, the same for all its attempts."""

    method: str
    path: str  # under the service's URL
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer:
    """What a service said."""

    status: int
    body: bytes
    etag: str | None


class Transport:
    """Sends requests to one service; safe to share between threads."""

    def __init__(
        self, url: ServiceUrl, sleep: Callable[[float], None] = time.sleep, timeout: httpx.Timeout = TIMEOUT
    ) -> None:
        """Prepare for requests; nothing is sent yet; StoreError where SPECTUNE_CA_FILE cannot be used."""
        self.url = url
        self._sleep = sleep
        headers = {"User-Agent": f"spectune/{version('spectune')}"}
        if url.token is not None:
            headers["Authorization"] = f"Bearer {url.token}"
        self._client = httpx.Client(
            headers=headers,
            timeout=timeout,
            verify=url.is_encrypted and trusted(),  # without TLS there is nothing to verify
            trust_env=not url.is_loopback,  # a proxy would carry away what is meant to stay on this machine
            follow_redirects=False,  # they would take the token along
        )

    def close(self) -> None:
        """Give up every connection."""
        self._client.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._client.is_closed

    def send(self, ask: Ask, patience: ExponentialBackoff = PATIENT) -> ServiceAnswer:
        """Return the service's answer: 2xx, or 304 where an ETag was sent.

        AwayError: no attempt was answered. Another StoreError: it refuses, or cannot be trusted or understood.
        """
        if self.is_closed:
            raise StoreError(f"{self.url.shown} is closed; open the store again")
        for attempt in range(patience.attempts):
            try:
                return self._judged(*self._attempt(ask))
            except _AgainError as error:
                is_last = attempt + 1 == patience.attempts
                wait_s = max(error.wait_s, patience.wait_s(attempt))
                if is_last or wait_s > LONGEST_WAIT_S:
                    raise AwayError(f"{self.url.shown} {error}") from error.__cause__
                self._sleep(wait_s)
        raise AssertionError("a patience has at least one attempt")

    def _attempt(self, ask: Ask) -> tuple[httpx.Response, bytes]:
        body, headers = _on_the_wire(ask)
        try:
            place = self.url.shown + ask.path
            with self._client.stream(ask.method, place, params=ask.params, content=body, headers=headers) as response:
                return response, self._whole(response)
        except httpx.InvalidURL as error:
            raise StoreError(f"{self.url.shown} is no URL of a service: {error}") from None
        except httpx.DecodingError as error:
            raise _AgainError("answered with a damaged body") from error
        except httpx.TransportError as error:
            if (fault := tls_fault(error)) is not None:
                raise StoreError(f"{self.url.shown} cannot be trusted: {fault}") from error
            raise _AgainError(_in_words(error)) from error

    def _whole(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MOST_ANSWER_BYTES:
                raise StoreError(f"{self.url.shown} answered with more than {MOST_ANSWER_BYTES} bytes; ask for less")
        return bytes(body)

    def _judged(self, response: httpx.Response, body: bytes) -> ServiceAnswer:
        status = response.status_code
        if 200 <= status < 300 or status == NOT_MODIFIED:
            return ServiceAnswer(status=status, body=body, etag=response.headers.get("ETag"))
        problem = _problem(body)
        detail = " ".join(str(problem.get("detail") or response.reason_phrase or "no reason given").split())
        if status in AWAY or status == TOO_MANY:
            what = "takes no more requests of this token for now" if status == TOO_MANY else "is not ready"
            raise _AgainError(f"{what}: {detail}", _wait_s(response.headers.get("Retry-After")))
        if status in REDIRECTS:
            place = response.headers.get("Location", "elsewhere")
            raise RefusedError(f"{self.url.shown} has moved to {place}; name that as the store", status)
        raise RefusedError(self._refusal(status, detail), status, str(problem.get("type") or ""))

    def _refusal(self, status: int, detail: str) -> str:
        if status == 401:
            seen = "this client sent none" if self.url.token is None else "this client's was refused"
            advice = f"set {TOKEN_VARIABLE} to one made with: spectune token create"
            return f"{self.url.shown} asks for a token, and {seen} ({detail}); {advice}"
        if status == 403:
            return f"the token may not do this at {self.url.shown}: {detail}; use one of a wider scope"
        if status >= 500:
            return f"{self.url.shown} failed ({status}): {detail}; see the log of the service"
        return detail if detail else f"{self.url.shown} refused the request ({status})"


class _AgainError(Exception):
    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _on_the_wire(ask: Ask) -> tuple[bytes | None, dict[str, str]]:
    """Return the body, packed where that pays, and the headers."""
    body, headers = ask.body, dict(ask.headers)
    if body is not None:
        headers["Content-Type"] = ask.content_type
        if len(body) >= LEAST_PACKED_BYTES:
            body, headers["Content-Encoding"] = gzip.compress(body, 5), "gzip"
    if ask.key is not None:
        headers[IDEMPOTENCY_KEY] = ask.key
    return body, headers


def _in_words(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "did not answer in time"
    reason = " ".join(str(error).split())
    return f"cannot be reached: {reason or type(error).__name__}"


def _problem(body: bytes) -> dict[str, Any]:  # Any: JSON values of whoever answered
    try:
        problem = json.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _wait_s(retry_after: str | None) -> float:
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0
