"""The load client: requests over OpenAI's API, streamed, at a concurrency or at a rate.

A closed loop holds a fixed number of requests in flight: whenever one ends, its worker sends the next. An open loop
sends at random moments (Poisson), however many are in flight. Per answer

    TTFT = first token - request        TPOT = (last token - first token) / (tokens - 1)

The server counts tokens (`usage`), since one event may hold several of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from ..db.remote.certificates import tls_fault, trusted
from ..errors import MeasurementError, RequestError
from ..profiler.prompt import Prompt
from .answers import LoadResult, RequestResult
from .command import HIDDEN
from .limits import STALL_S

CONNECT_S = 10.0
MOST_SAID = 320  # characters of an error that a server gave
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings of every request: temperature 0 is greedy; `more` holds other fields of the body, e.g. top_p.

    With `ignore_eos` an answer goes on behind its end, up to `max_tokens`.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_tokens < 2 or self.temperature < 0.0:
            raise RequestError(f"an answer has 2 tokens or more, at a temperature of at least 0; got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """A prompt of token ids, the path that takes them, and fields of the body beside those of the load."""

    path: str
    tokens: tuple[int, ...]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server answers: `url` without /v1, and the `model` that requests name.

    `key` is the API's, "" for none; it is in no text of this record.
    """

    url: str
    model: str = ""
    key: str = field(default="", repr=False)

    def client(self, stall_s: float = STALL_S) -> httpx.AsyncClient:
        """Return a client with a new connection for every request: a server may end an idle one as it is used."""
        return httpx.AsyncClient(**self._settings(stall_s), limits=httpx.Limits(max_keepalive_connections=0))

    def get(self, path: str, timeout_s: float = CONNECT_S) -> httpx.Response:
        """Return the answer at a path; MeasurementError where there is none."""
        return self._asked("GET", path, None, timeout_s)

    def post(self, path: str, body: Json, timeout_s: float = STALL_S) -> Any:
        """Return the JSON answer to a JSON body; MeasurementError where there is none, or it is an error."""
        answer = self._asked("POST", path, body, timeout_s)
        if answer.is_error:
            said = self.hidden(answer.text.strip())[:MOST_SAID]
            raise MeasurementError(f"{self.url}{path} answers {answer.status_code}: {said}; look at the server's log")
        return answer.json()

    def hidden(self, text: str) -> str:
        """Return a text of the server without the key."""
        return text.replace(self.key, HIDDEN) if self.key else text

    def _asked(self, method: str, path: str, body: Json | None, timeout_s: float) -> httpx.Response:
        try:
            with httpx.Client(**self._settings(timeout_s)) as client:
                return client.request(method, path, json=body)
        except httpx.HTTPError as error:
            said = tls_fault(error) or f"{_said(error)}; is the server up?"
            raise MeasurementError(f"{self.url}{path} does not answer: {said}") from error

    def _settings(self, stall_s: float) -> Json:
        is_local = urlsplit(self.url).hostname in LOOPBACK
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.key}"} if self.key else {},
            "timeout": httpx.Timeout(stall_s, connect=CONNECT_S),
            "trust_env": not is_local,
            "verify": trusted() if self.url.startswith("https://") else False,  # certificates take time to read
        }


Prompts = Sequence[Prompt] | Sequence[TokenPrompt]


def closed_loop(
    address: Address, prompts: Prompts, concurrency: int, sampling: SamplingParams, *, stall_s: float = STALL_S
) -> LoadResult:
    """Send every prompt once, `concurrency` at a time."""

    async def run(client: httpx.AsyncClient, ask: Ask) -> None:
        ahead = iter(range(len(prompts)))  # shared: each worker takes the next one

        async def work() -> None:
            for number in ahead:
                await ask(client, number)

        await asyncio.gather(*(work() for _ in range(min(concurrency, len(prompts)))))

    return _run(address, prompts, sampling, run, stall_s, concurrency=concurrency)


def open_loop(
    address: Address,
    prompts: Prompts,
    rate: float,
    sampling: SamplingParams,
    *,
    seed: int = 0,
    stall_s: float = STALL_S,
) -> LoadResult:
    """Send every prompt once, at random moments, `rate` a second on average."""
    drawn = random.Random(seed)

    async def run(client: httpx.AsyncClient, ask: Ask) -> None:
        due_s, began_s = 0.0, time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(len(prompts)):
                await asyncio.sleep(max(0.0, began_s + due_s - time.perf_counter()))
                group.create_task(ask(client, number))
                due_s += drawn.expovariate(rate)

    return _run(address, prompts, sampling, run, stall_s, rate=rate)


Ask = Callable[[httpx.AsyncClient, int], Coroutine[Any, Any, None]]


def _run(
    address: Address,
    prompts: Prompts,
    sampling: SamplingParams,
    run: Callable[[httpx.AsyncClient, Ask], Coroutine[Any, Any, None]],
    stall_s: float,
    **kind: Any,  # concurrency or rate
) -> LoadResult:
    if not prompts:
        raise RequestError("a load needs a prompt; give some with --prompts FILE")
    found: dict[int, RequestResult] = {}

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        one = await _answer(client, address.model, prompts[number], number, sampling)
        found[number] = replace(one, failure=address.hidden(one.failure)[:MOST_SAID])

    async def whole() -> tuple[float, float]:
        async with address.client(stall_s) as client:
            began, busy = time.perf_counter(), time.process_time()
            await run(client, ask)
            return time.perf_counter() - began, time.process_time() - busy

    wall_s, busy_s = asyncio.run(whole())
    answers = tuple(found[number] for number in sorted(found))
    return LoadResult(answers=answers, wall_s=wall_s, client_share=busy_s / wall_s, **kind)


async def _answer(
    client: httpx.AsyncClient, model: str, prompt: Prompt | TokenPrompt, number: int, sampling: SamplingParams
) -> RequestResult:
    path, body = _request(model, prompt, sampling)
    began = time.perf_counter()
    first = last = 0.0
    tokens = 0
    is_whole, parts, events, timings = False, list[str](), list[tuple[int, ...]](), dict[str, Any]()
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.is_error:
                text = (await response.aread()).decode(errors="replace").strip()
                return RequestResult(prompt=number, failure=f"status {response.status_code}: {text}")
            async for event in _events(response):
                if "error" in event:
                    return RequestResult(prompt=number, failure=str(event["error"]))
                tokens = int((event.get("usage") or {}).get("completion_tokens", tokens))
                timings = event.get("timings") or (event.get("sglext") or {}).get("spec_tokens_details") or timings
                for choice in event.get("choices", [event] if "content" in event else ()):
                    is_whole = is_whole or choice.get("finish_reason") is not None or bool(choice.get("stop"))
                    text, ids = _text(choice), tuple(choice.get("token_ids") or choice.get("tokens") or ())
                    if text or ids:
                        last = time.perf_counter()
                        first = first or last
                        events.append(ids)
                        parts.append(text)
    except (httpx.HTTPError, ValueError) as error:
        return RequestResult(prompt=number, failure=_said(error))
    if not is_whole:
        return RequestResult(prompt=number, failure=f"the answer broke off after {len(events)} events")
    if not events:
        return RequestResult(prompt=number, failure="the answer holds no text")
    return RequestResult(
        prompt=number,
        ttft_ms=1000.0 * (first - began),
        e2e_ms=1000.0 * (last - began),
        tokens=tokens or max(sum(map(len, events)), len(events)),
        digest=hashlib.sha256("".join(parts).encode(errors="replace")).hexdigest()[:16],
        text="".join(parts),
        events=tuple(events) if any(events) else (),
        timings=timings,
    )


def _request(model: str, prompt: Prompt | TokenPrompt, sampling: SamplingParams) -> tuple[str, Json]:
    body: Json = {
        **({"model": model} if model else {}),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if sampling.ignore_eos else {}),
        **sampling.more,
    }
    if isinstance(prompt, TokenPrompt):
        return prompt.path, {**body, **prompt.more, "prompt": list(prompt.tokens)}
    if not prompt.messages:
        return "/v1/completions", {**body, "prompt": prompt.text}
    turns = [{"role": turn.role, "content": turn.content, **turn.extra} for turn in prompt.messages]
    return "/v1/chat/completions", {**body, "messages": turns}


async def _events(response: httpx.Response) -> AsyncIterator[Json]:
    if response.headers.get("Content-Type", "").startswith("application/json"):  # of a form that is not streamed
        yield json.loads(await response.aread())
        return
    async for line in response.aiter_lines():
        if line.startswith("data:") and (told := line[5:].strip()) != "[DONE]":
            yield json.loads(told)


def _text(choice: Json) -> str:
    delta = choice.get("delta") or {}
    told = delta.get("content") or delta.get("reasoning_content")
    return str(choice.get("text") or told or choice.get("content") or "")  # the last one is llama.cpp's own form


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
