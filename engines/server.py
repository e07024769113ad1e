"""A server under load: one that is started and then stopped, or one at a URL, which is never stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import MeasurementError, RequestError
from .answers import LoadResult
from .command import environment_secrets, port_of, secrets, value_of
from .counters import Counts
from .limits import STALL_S, START_S
from .load import Address, Json, Prompts, SamplingParams, closed_loop, open_loop
from .process import ServerProcess
from .server_engine import ServerEngine, placed

TLS = ("--ssl-keyfile", "--ssl-key-file")  # of vLLM and of llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeouts:
    """Seconds that a server may take: to start, and without a byte of an answer."""

    start_s: float = START_S
    stall_s: float = STALL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A load's answers and the server's counts meanwhile.

    `copied` are the tokens per round that n-gram drafts would yield on the answers; None where unknown.
    """

    load: LoadResult
    counts: Counts
    copied: float | None = None


class Server:
    """A running server; `measure` puts it under load."""

    def __init__(
        self, engine: ServerEngine, address: Address, limits: ServerTimeouts, process: ServerProcess | None = None
    ) -> None:
        self.engine, self.address = engine, address
        self._limits, self._process = limits, process

    @property
    def version(self) -> str:
        """The engine's version."""
        return self.engine.version(self.address)

    def measure(
        self, prompts: Prompts, sampling: SamplingParams, *, concurrency: int = 0, rate: float = 0.0, seed: int = 0
    ) -> Measured:
        """Send prompts, as a closed loop or at a rate, and return the answers and counts.

        MeasurementError if a request fails or the server ends; `NoRoomError` if memory was short.
        """
        stall_s = self._limits.stall_s
        with self._alive():
            before = self.engine.page(self.address)
            if concurrency:
                load = closed_loop(self.address, prompts, concurrency, sampling, stall_s=stall_s)
            else:
                load = open_loop(self.address, prompts, rate, sampling, seed=seed, stall_s=stall_s)
            after = self.engine.page(self.address)
            counts = self.engine.counts(after, before, load.require_whole(), self.address.model)
            return Measured(load=load, counts=counts)

    def post(self, path: str, body: Json) -> Any:  # Any: JSON values
        """Return the JSON answer to a JSON body; errors as of `measure`."""
        with self._alive():
            return self.address.post(path, body, self._limits.stall_s)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Raise the end of the process instead of what it led to."""
        try:
            yield
        except MeasurementError:
            if self._process is not None:
                self._process.require_alive()
            raise


@contextmanager
def started(
    engine: ServerEngine, command: Sequence[str], limits: ServerTimeouts, *, model: str = "", key: str = ""
) -> Iterator[Server]:
    """Yield a server that a command starts; it is always stopped behind the block.

    No shell reads the command. The server must serve `model`, "" takes its first; an empty `key` takes the command's.
    MeasurementError if it does not start, RequestError if it serves another model.
    """
    if value_of(command, TLS) is not None:
        raise RequestError(
            f"the command serves TLS by {' or '.join(TLS)}; leave that out: it is measured on the loopback"
        )
    if not command:
        raise RequestError(f"no command starts the server; write it behind --, for example -- {engine.example}")
    with TemporaryDirectory(prefix="spectune-") as folder:
        process = ServerProcess(
            engine.name,
            placed(command, Path(folder)),
            is_up=engine.health,
            advice=engine.advice,
            start_s=limits.start_s,
            port=port_of(command),
            secrets=[*secrets(command), *([key] if key else []), *environment_secrets()],
        )
        try:
            known = Address(url=process.url, key=key or value_of(command, ("--api-key",)) or "")
            yield Server(engine, _named(known, model), limits, process)
        finally:
            process.close()


def reached(engine: ServerEngine, url: str, limits: ServerTimeouts, *, model: str = "", key: str = "") -> Server:
    """Return a server at a URL; MeasurementError if it does not answer, RequestError for a bad URL or another model."""
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"{url!r} is no URL of a server; write for example http://127.0.0.1:8000")
    address = Address(url=url.rstrip("/").removesuffix("/v1"), key=key)
    return Server(engine, _named(address, model), limits)


def _named(address: Address, model: str) -> Address:
    answer = address.get("/v1/models")
    if answer.status_code in (401, 403):
        raise RequestError(
            f"{address.url} refuses the API key ({answer.status_code}); give it in SPECTUNE_API_KEY or OPENAI_API_KEY"
        )
    try:
        served = [str(one["id"]) for one in answer.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"{address.url}/v1/models lists no models; give the URL of an OpenAI server") from error
    if model and model not in served:
        raise RequestError(
            f"{address.url} serves {', '.join(served)}, not {model}; give one of these with --model-name"
        )
    return Address(url=address.url, model=model or served[0], key=address.key)
