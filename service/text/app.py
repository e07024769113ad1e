"""The routes of a target's endpoint."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...errors import DeviceError, RequestError, SpectuneError
from ...runtime.batch.sequence import Request, Sampling, seed_behind
from ...runtime.engine.generator import Generator
from ...runtime.engine.scheduler import Scheduler
from ...runtime.engine.settings import GenerationSettings
from ...runtime.watch.prometheus import MetricFamily, exposition
from ...runtime.watch.watch import Watch
from ..body import read_body, require_json
from ..metrics import MEDIA_TYPE
from ..problem import RETRY_S, ProblemError
from ..settings import ServiceSettings
from .asked import AskedChat, AskedCompletion, AskedText, asked_of
from .streaming import Streamed, events_of, require_decoded, unless_gone
from .told import Form, TextResponse, error_of
from .worker import BusyError, TextWorker

API_KEY = re.compile(r"[!-~]+")  # what a header can carry
OPEN_PATHS = ("/health",)  # nobody needs a key there
GONE = 499  # in logs: whoever asked has gone
Handler = Callable[[HttpRequest], Awaitable[Response]]
Prepare = Callable[[GenerationSettings], Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """How a target is served."""

    name: str  # of the model for clients
    slots: int = 8  # requests decoded at once
    longest: int | None = None  # tokens of a request, prompt and new ones; None: as `Generator.session` has it
    most: int = 256  # requests that may run or wait
    temperature: float = 0.0  # of requests that name none
    api_key: str | None = None  # required of all; None: of none
    hosts: tuple[str, ...] = ()  # its names, any where empty: keeps foreign web pages, whose browsers use theirs, out
    prefix_caching: bool = True  # this and the next two: see `Generator.session`
    spare_slots: int = 0
    warm: bool = True

    def __post_init__(self) -> None:
        Sampling(temperature=self.temperature)  # refuses one that is out of range
        if self.api_key is not None and not API_KEY.fullmatch(self.api_key):
            raise RequestError("an API key is of printable ASCII characters without blanks, one at least; give another")


class TextEndpoint:
    """One target, its session, and the requests of everybody."""

    def __init__(self, generator: Generator, settings: EndpointSettings) -> None:
        self._generator, self._settings, self._bounds = generator, settings, ServiceSettings()
        self._longest = 0
        self.worker = TextWorker(self._session, most=settings.most)

    @property
    def app(self) -> Starlette:
        """The application; once it has started, and until it ends."""
        posts: dict[str, Handler] = {"/v1/completions": self.complete, "/v1/chat/completions": self.chat}
        gets: dict[str, Handler] = {"/v1/models": self.models, "/health": self.health, "/metrics": self.metrics}
        routes = [Route(path, self._guarded(path, handler), methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, self._guarded(path, handler), methods=["GET"]) for path, handler in gets.items()]
        refusals: dict[Any, Any] = {HTTPException: _refuse_path, Exception: _tell_failure}
        return Starlette(routes=routes, exception_handlers=refusals, lifespan=self._living)

    def start(self) -> None:
        """Begin to decode; raise SpectuneError where memory or the model has no room for it."""
        self._generator.request("a", GenerationSettings())  # a tokenizer may set itself up at its first text
        self.worker.start()

    async def complete(self, request: HttpRequest) -> Response:
        """Go on with texts."""
        asked = asked_of(AskedCompletion, await self._body(request))
        for prompt in asked.prompts:
            self._generator.require_short([prompt], self._longest)
        prompts = [partial(self._generator.request, prompt) for prompt in asked.prompts]
        return await self._answered(request, asked, prompts, "completion")

    async def chat(self, request: HttpRequest) -> Response:
        """Answer a conversation."""
        asked = asked_of(AskedChat, await self._body(request))
        turns = [message.message for message in asked.messages]
        self._generator.require_short([turn.content for turn in turns], self._longest)
        return await self._answered(request, asked, [partial(self._generator.chat_request, turns)], "chat")

    async def models(self, request: HttpRequest) -> Response:
        """Name the one model."""
        known = {"id": self._settings.name, "object": "model", "created": 0, "owned_by": "spectune"}
        return JSONResponse({"object": "list", "data": [{**known, "max_model_len": self._longest}]})

    async def health(self, request: HttpRequest) -> Response:
        """Say whether texts are decoded."""
        if not self.worker.is_alive:
            raise DeviceError("nothing decodes any more; see the log for the reason")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: HttpRequest) -> Response:
        """Count what was served, and what the plan's cells did."""
        served, watch = self.worker.served, self._generator.observer
        ended = [({"finish_reason": reason}, float(count)) for reason, count in sorted(served.ended.items())]
        told = exposition(
            [
                _family("requests_open", "gauge", "Requests that run or wait.", self.worker.open),
                MetricFamily(
                    name="spectune_requests_total", kind="counter", about="Requests that ended.", samples=ended
                ),
                _family("prompt_tokens_total", "counter", "Tokens of prompts.", served.prompt_tokens),
                _family("cached_prompt_tokens_total", "counter", "Those not read anew.", served.cached_tokens),
                _family("new_tokens_total", "counter", "Tokens of answers.", served.new_tokens),
            ]
        )
        return PlainTextResponse(told + (watch.prometheus() if isinstance(watch, Watch) else ""), media_type=MEDIA_TYPE)

    async def _body(self, request: HttpRequest) -> bytes:
        require_json(request)
        try:
            return await read_body(request, self._bounds)
        except ProblemError as problem:
            told = {
                413: f"the body has more than {self._bounds.body_bytes} bytes; send less",
                408: f"the body was not here after {self._bounds.body_timeout_s:g} s; send less",
            }
            raise ProblemError(problem.status, problem.kind, told.get(problem.status, problem.detail)) from None

    def _session(self) -> Scheduler:
        own = self._settings
        made = self._generator.session(
            slots=own.slots,
            longest=own.longest,
            prefix_caching=own.prefix_caching,
            spare_slots=own.spare_slots,
            warm=own.warm,
        )
        self._longest = made.longest
        return made

    @asynccontextmanager
    async def _living(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self.worker.stop)

    def _guarded(self, path: str, handler: Handler) -> Handler:
        async def guarded(request: HttpRequest) -> Response:
            try:
                self._require_host(request)
                if path not in OPEN_PATHS:
                    self._require_key(request)
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=GONE)
            except BusyError as error:
                return _refusal(429, str(error), "rate_limit_error", headers={"Retry-After": str(RETRY_S)})
            except RequestError as error:
                return _refusal(400, str(error), "invalid_request_error")
            except ProblemError as error:
                return _refusal(error.status, error.detail, "invalid_request_error", error.kind)
            except SpectuneError as error:
                return _refusal(503, str(error), "server_error")

        return guarded

    def _require_host(self, request: HttpRequest) -> None:
        hosts, host = self._settings.hosts, re.sub(r":\d+$", "", request.headers.get("host", "").lower())
        if hosts and host not in hosts:
            told = f"this endpoint is not {host[:100]!r}; ask it as {' or '.join(hosts)}"
            raise ProblemError(421, "wrong_host", told)

    def _require_key(self, request: HttpRequest) -> None:
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_known = hmac.compare_digest(given.strip().encode("latin-1"), key.encode())
        if scheme.lower() != "bearer" or not is_known:
            told = "no such API key; send the one the endpoint was started with: Authorization: Bearer KEY"
            raise ProblemError(401, "invalid_api_key", told)

    async def _answered(
        self, request: HttpRequest, asked: AskedText, prompts: Sequence[Prepare], form: Form
    ) -> Response:
        own = self._settings
        if asked.model != own.name:
            told = f"there is no model {asked.model!r:.80} here; this is {own.name}"
            raise ProblemError(404, "model_not_found", told)
        if not prompts:
            raise RequestError("prompt: there is none; write one text at least")
        if len(prompts) * asked.choices > own.most:
            raise RequestError(
                f"{len(prompts)} prompts with {asked.choices} answers each are more than the {own.most} requests that "
                "may run or wait here; ask for fewer at once"
            )
        wanted = await asyncio.to_thread(self._requests, asked, prompts)
        told_as = TextResponse(form=form, model=own.name, choices=asked.choices)
        answers = await self.worker.ask(wanted, tuple(asked.stops), is_streamed=bool(asked.stream))
        if asked.stream:
            return Streamed(
                events_of(answers, told_as, tells_usage=asked.tells_usage), partial(self.worker.leave, answers)
            )
        try:
            done = await unless_gone(request, asyncio.gather(*(answer.whole() for answer in answers)))
        finally:
            self.worker.leave(answers)
        if done is None:
            return Response(status_code=GONE)
        for completion in done:
            require_decoded(completion)
        return JSONResponse(told_as.whole(list(zip(answers, done, strict=True))))

    def _requests(self, asked: AskedText, prompts: Sequence[Prepare]) -> list[Request]:
        """Return every prompt in tokens, as often as there are to be answers; each draws with a seed of its own."""
        found: list[Request] = []
        for prepare in prompts:
            read = prepare(asked.settings(self._settings.temperature, 1))
            settings = asked.settings(self._settings.temperature, self._longest - len(read.prompt))
            whole = replace(read, max_new_tokens=settings.max_new_tokens, seed=settings.seed)
            if asked.ignore_eos:
                whole = replace(whole, stop=frozenset())
            found += [replace(whole, seed=seed_behind(whole.seed, len(found) + n)) for n in range(asked.choices)]
        return found


def _family(name: str, kind: Literal["counter", "gauge"], about: str, value: int) -> MetricFamily:
    return MetricFamily(name=f"spectune_{name}", kind=kind, about=about, samples=[({}, float(value))])


async def _refuse_path(request: HttpRequest, error: HTTPException) -> Response:
    told = {404: "there is nothing at this path; it has /v1/completions, /v1/chat/completions and /v1/models"}
    message = told.get(error.status_code, error.detail)
    return _refusal(error.status_code, message, "invalid_request_error", headers=dict(error.headers or {}))


async def _tell_failure(request: HttpRequest, error: Exception) -> Response:
    return _refusal(500, "the endpoint failed at this request; its log tells why", "server_error")


def _refusal(
    status: int, message: str, kind: str, code: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse(error_of(message, kind, code), status, headers)
