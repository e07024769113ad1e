"""A command that starts a server, as `tune` and its validation run it: with drafts, prompts and load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...engines.answers import LoadResult
from ...engines.bundle import Bundle, Setup, digest_of
from ...engines.command import hidden, typed
from ...engines.load import SamplingParams, closed_loop
from ...engines.sentinel import Reading, read_pace
from ...engines.server import Measured, Server, ServerTimeouts, started
from ...engines.server_engine import ServerEngine, Source, Start, written_files
from ...engines.setting import EngineDrafter
from ...engines.table import SERVERS
from ...errors import MeasurementError, RequestError
from ...planner.engines.served import PLAIN
from ...profiler.prompt import Prompt
from ...profiler.records.wire import from_json, to_json
from .copies import mean_tokens_per_round

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJob:
    """A load and the server to put under it.

    `command` is an argument list; `prompts` are of the traffic; each load of a concurrency sends `requests`. `longest`
    counts drafted tokens; `drafters` are draft models by name, beside the command's; `limits` bound waiting. An empty
    `model` takes the server's first; `key` is of its API. `url` is of a server that runs, which has no command.
    """

    engine: ServerEngine
    command: tuple[str, ...]
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    concurrencies: tuple[int, ...]
    requests: int
    longest: int
    drafters: Mapping[str, str] = field(default_factory=dict)
    limits: ServerTimeouts = field(default_factory=ServerTimeouts)
    model: str = ""
    key: str = field(default="", repr=False)
    url: str = ""

    def __post_init__(self) -> None:
        if self.requests < 1 or not self.concurrencies:
            raise RequestError("a load needs requests and concurrencies; give some")
        if self.requests < max(self.concurrencies):
            raise RequestError(
                f"{self.requests} requests do not fill {max(self.concurrencies)} at once; give --requests "
                f"{2 * max(self.concurrencies)} or more"
            )

    @property
    def setup(self) -> Setup:
        """All settings that change speed, without keys and prompts."""
        return Setup(
            engine=self.engine.name,
            command=(self.url, self.model) if self.url else tuple(hidden(self.command)),
            drafters=tuple(sorted(self.drafters.items())),
            prompts=(len(self.prompts), digest_of(self.prompts)),
            sampling=to_json(self.sampling),
            concurrencies=self.concurrencies,
            requests=self.requests,
            longest=self.longest,
            files=tuple(written_files(self.engine.counted(self.command))),
            model="" if self.url else self.model,
        )

    def numbers(self, concurrency: int) -> list[int]:
        """Return the numbers of a concurrency's prompts: others than those of every other, where there are enough."""
        place = self.concurrencies.index(concurrency)
        return [number % len(self.prompts) for number in range(place * self.requests, (place + 1) * self.requests)]

    @property
    def repeats(self) -> bool:
        """Whether a server gets a prompt twice."""
        return len(self.concurrencies) * self.requests > len(self.prompts)


class TunedServer:
    """A server that can be started with any drafts; a `Serving`."""

    def __init__(self, job: ServerJob, version: str = "") -> None:
        self.job, self.version = job, version
        self.plain = job.engine.plain(job.command)
        self._sources: tuple[Source, ...] = ()

    @property
    def takes_table(self) -> bool:
        """Whether one start may draft other lengths at other concurrencies."""
        return self.job.engine.takes_table and len(self.job.concurrencies) > 1

    def sources(self) -> tuple[Source, ...]:
        """Return what can draft; MeasurementError where nothing can."""
        if not self._sources:
            drafters = [EngineDrafter(name=name, path=path, form="model") for name, path in self.job.drafters.items()]
            self._sources = self.job.engine.sources(self.job.command, drafters, self.job.longest, self.version)
        if not self._sources:
            raise MeasurementError("nobody can draft; give a draft model with --drafter NAME=PATH")
        return self._sources

    def command(self, start: Start) -> list[str]:
        """Return the given command with the drafts of a start."""
        if start.source == PLAIN:
            return self.plain
        source = next(one for one in self.sources() if one.name == start.source)
        engine = self.job.engine
        return engine.joined(self.plain, engine.flags(source, dict(start.lengths), self.version))

    def drafter_in(self, command: Sequence[str]) -> str:
        """Return the name of the draft model in a command; "" without one that is known."""
        paths = {one.name: drafter.path for one in self.sources() if (drafter := one.setting.drafter) is not None}
        return next((name for name, path in paths.items() if path in " ".join(command)), "")

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters."""
        return self.job.engine.counted(command)

    @contextmanager
    def started(self, start: Start) -> Iterator[LoadedServer]:
        """Start it; leaving the context stops it."""
        with self.running(self.command(start)) as loaded:
            yield loaded

    @contextmanager
    def running(self, command: Sequence[str]) -> Iterator[LoadedServer]:
        """Start any command of this server, warmed up; leaving the context stops it."""
        job = self.job
        with started(job.engine, command, job.limits, model=job.model, key=job.key) as server:
            self.version = server.version or self.version
            yield LoadedServer(job, server)


class LoadedServer:
    """A running server; a `Loaded`."""

    def __init__(self, job: ServerJob, server: Server, first_place: int = 0) -> None:
        """Take a server; one that was read before has another first place of the sentinel's prompts."""
        if not job.prompts:
            raise RequestError("a load needs prompts; give some with --prompts FILE")
        self.job, self.server = job, server
        self._first_place = first_place

    def measure(self, concurrency: int) -> Measured:
        """Warm it up, and run the load of a concurrency; answers name their prompts."""
        job, numbers, sampling = self.job, self.job.numbers(concurrency), self._sampling
        self._warm_up(concurrency, sampling)
        prompts = [job.prompts[number] for number in numbers]
        found = self.server.measure(prompts, sampling, concurrency=concurrency)
        ended = [(prompts[one.prompt].text, one.text) for one in found.load.ended]
        load = _renumbered(found.load, numbers)
        return Measured(load=load, counts=found.counts, copied=mean_tokens_per_round(ended))

    def pace(self, place: int, words: int) -> Reading:
        """Return the sentinel's reading at a place of this start, warmed up before the first one."""
        if not place:
            self._warm_up(1, self._sampling)
        stall_s = self.job.limits.stall_s
        more, here = self.job.engine.body(), self._first_place + place
        return read_pace(self.server.address, more, here, words=words, stall_s=stall_s)

    def measure_at(self, rate: float, seed: int) -> Measured:
        """Send the requests of the first load at random moments, `rate` a second on average."""
        job = self.job
        prompts = [job.prompts[number] for number in job.numbers(job.concurrencies[0])]
        return self.server.measure(prompts, self._sampling, rate=rate, seed=seed)

    @property
    def _sampling(self) -> SamplingParams:
        job = self.job
        return replace(job.sampling, more={**job.engine.body(), **job.sampling.more})

    def _warm_up(self, concurrency: int, sampling: SamplingParams) -> None:
        """Send short texts that no prompt begins with, as many as will be in flight."""
        texts = [
            Prompt(text=f"{number} {concurrency} warm-up: list the first prime numbers.")
            for number in range(concurrency)
        ]
        closed_loop(self.server.address, texts, concurrency, replace(sampling, max_tokens=WARM_UP_TOKENS))


def _renumbered(load: LoadResult, numbers: Sequence[int]) -> LoadResult:
    """Return a load whose answers name their prompts and hold no texts."""
    answers = tuple(replace(one, prompt=numbers[one.prompt], text="", events=(), timings={}) for one in load.answers)
    return replace(load, answers=answers)


def job_of(
    bundle: Bundle, command: Sequence[str], prompts: Sequence[Prompt], key: str, limits: ServerTimeouts | None = None
) -> ServerJob:
    """Return the loads of a bundle for a command; RequestError where the bundle is of another one."""
    setup = bundle.setup
    is_url = "://" in "".join(setup.command[:1])
    if not is_url and tuple(hidden(command)) != setup.command:
        raise RequestError(f"the bundle is of another command: {typed(setup.command)}; give that behind --")
    job = ServerJob(
        engine=SERVERS[setup.engine],
        command=tuple(command),
        prompts=prompts,
        sampling=from_json(SamplingParams, setup.sampling),
        concurrencies=setup.concurrencies,
        requests=setup.requests,
        longest=setup.longest,
        drafters=dict(setup.drafters),
        limits=limits or ServerTimeouts(),
        model=setup.command[1] if is_url else setup.model,
        key=key,
        url=setup.command[0] if is_url else "",
    )
    if job.setup.files != setup.files:
        raise RequestError("a file that the command reads is another one than was measured; profile it again")
    return job
