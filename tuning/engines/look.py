"""A running server, measured as it is; it is neither changed nor stopped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...engines.answers import Percentiles
from ...engines.bundle import Trial
from ...engines.counters import Counts, counts_of
from ...engines.sentinel import NO_WORDS
from ...engines.server import Measured, Server
from ...engines.server_engine import Start
from ...engines.table import COUNTERS
from ...planner.engines.served import PLAIN
from .honest import NamedLoad, shorter_than_traffic, warnings_behind
from .loads import most_drafted, paced_loads
from .tuned_server import LoadedServer, ServerJob

TELLS_MORE = (
    "what other drafts cost is not known while nothing restarts: run tune with the server's command behind --, "
    "which starts it plainly, with the longest chain, and with the lengths that these promise"
)
FIRST_PLACE = 100_000  # of the sentinel's prompts, drawn: the server's cache may hold those of an earlier look
WHAT_RUNS = "drafts"  # who drafts in a server that nobody here started
NO_PLAIN = "restart the server without drafts and run this again: plain decoding, which all gains are over, is missing"
NO_DRAFTS = "restart the server with its longest chain and run this again: no drafts were measured"
PLANNED = "plain decoding and drafts were measured: spectune plan tells the length, from them alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """A load's results; of `concurrency` and rate per second the unused one is 0.

    Latencies are in milliseconds. Acceptance is unconditional by position, empty where nothing drafts.
    """

    concurrency: int
    rate: float
    tokens_per_s: float
    tokens_per_s_per_user: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    tokens_per_round: float
    acceptance: tuple[float, ...]
    client_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Loads of a server, notes on them, and the closed loops as a bundle keeps them."""

    version: str
    loads: tuple[LoadFacts, ...]
    notes: tuple[str, ...]
    trials: tuple[Trial, ...]


def look(
    job: ServerJob,
    server: Server,
    progress: Callable[[str, float], None],
    *,
    rates: Sequence[float] = (),
    seed: int = 0,
    words: int = NO_WORDS,
) -> Looked:
    """Return the results of every load at a running server: closed loops, then open ones.

    `words` are of the sentinel's long prompts at this server before; `NO_WORDS` where it was not read.
    """
    traffic = _traffic(server)
    loaded = LoadedServer(job, server, first_place=FIRST_PLACE + secrets.randbelow(8 * FIRST_PLACE))
    unknown = Start.of(WHAT_RUNS, dict.fromkeys(job.concurrencies, 1))
    ran = list(paced_loads(loaded, unknown, _reported(job.concurrencies, progress), words))
    found = [Measured(load=one.load, counts=one.counts) for one in ran]
    for rate in rates:
        progress(f"{rate:g} a second", 1.0)
        found.append(loaded.measure_at(rate, seed))
    loads = [NamedLoad(name="the server", load=one.load, counts=one.counts) for one in found]
    start = Start.of(WHAT_RUNS, dict.fromkeys(job.concurrencies, most_drafted(ran)))
    return Looked(
        version=server.version,
        loads=tuple(map(facts_of, found)),
        notes=(*shorter_than_traffic(traffic, loads), *warnings_behind(loads, job.sampling), TELLS_MORE),
        trials=tuple(replace(one, start=start) for one in ran),
    )


def _traffic(server: Server) -> Counts:
    """Return what a server counted since its start; nothing of one without counters of its traffic."""
    names = COUNTERS.get(server.engine.name)
    if names is None:
        return Counts()
    return counts_of(server.engine.page(server.address), names, server.address.model if names.has_model else "")


def _reported(concurrencies: Sequence[int], progress: Callable[[str, float], None]) -> Iterator[int]:
    for place, concurrency in enumerate(concurrencies):
        progress(f"{concurrency} at once", place / len(concurrencies))
        yield concurrency


def tells_more(trials: Sequence[Trial]) -> str:
    """Return what would tell more of a server than all that was measured at its URL."""
    sources = {trial.start.source for trial in trials}
    if PLAIN not in sources:
        return NO_PLAIN
    return PLANNED if len(sources) > 1 else NO_DRAFTS


def facts_of(measured: Measured) -> LoadFacts:
    """Return a load's facts."""
    load, counts = measured.load, measured.counts
    rounds = counts.rounds(load.tokens, len(load.ended))
    return LoadFacts(
        concurrency=load.concurrency,
        rate=load.rate,
        tokens_per_s=load.steady_tokens_per_s if load.concurrency else load.tokens_per_s,
        tokens_per_s_per_user=load.tokens_per_s_per_user,
        ttft_ms=load.percentiles("ttft_ms"),
        tpot_ms=load.percentiles("tpot_ms"),
        e2e_ms=load.percentiles("e2e_ms"),
        tokens_per_round=(load.tokens - len(load.ended)) / max(rounds, 1.0),
        acceptance=counts.acceptance(rounds),
        client_share=load.client_share,
    )
