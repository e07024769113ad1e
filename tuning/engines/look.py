"""A running server, measured as it is; it is neither changed nor stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...engines.answers import Percentiles
from ...engines.bundle import Trial
from ...engines.server import Measured, Server
from ...engines.server_engine import Start
from ...planner.engines.served import PLAIN
from .honest import NamedLoad, warnings_behind
from .tune import trial_of
from .tuned_server import LoadedServer, ServerJob

TELLS_MORE = (
    "what other drafts cost is not known while nothing restarts: run tune with the server's command behind --, "
    "which starts it plainly, with the longest chain, and with the lengths that these promise"
)
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
) -> Looked:
    """Return the results of every load at a running server: closed loops, then open ones."""
    loaded, found = LoadedServer(job, server), list[Measured]()
    for place, concurrency in enumerate(job.concurrencies):
        progress(f"{concurrency} at once", place / len(job.concurrencies))
        found.append(loaded.measure(concurrency))
    for rate in rates:
        progress(f"{rate:g} a second", 1.0)
        found.append(loaded.measure_at(rate, seed))
    loads = [NamedLoad(name="the server", load=one.load, counts=one.counts) for one in found]
    notes = (*warnings_behind(loads, job.sampling), TELLS_MORE)
    closed = [one for one in found if one.load.concurrency]
    length = max(len(one.counts.by_position) if one.counts.drafts else 0 for one in closed)
    start = Start.of(WHAT_RUNS, dict.fromkeys(job.concurrencies, length))
    trials = tuple(trial_of(start, one.load.concurrency, one) for one in closed)
    return Looked(version=server.version, loads=tuple(map(facts_of, found)), notes=notes, trials=trials)


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
