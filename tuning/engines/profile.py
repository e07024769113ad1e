"""The profile job for another engine: what its rounds cost in its own regime, and how good each drafter is there.

One race times few settings: plain decoding, every drafter at its longest, every search for n-grams at two lengths, and
drafter lengths that may win. These and the traces price all others (`planner/engines/choice.py`). The winner then races
plain decoding and another length of its source, so that the choice rests on a careful measurement of its own. All race
in turns: a machine's arithmetic and memory slow down apart, so that timings minutes apart would show that instead.

The store holds surfaces with the role "round:WHO" and the engine's regime on the workload (`workload.py`): milliseconds
of a round that drafts as the recorded texts let it (`mix.py`). A plan reads all searches as one curve (`pooling.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ...db.store import Store
from ...engines.measured import EngineFacts, MeasuredEngine
from ...errors import RequestError
from ...planner.engines.choice import Offer, Way, is_mapped, offers_at, source_of, sure_of
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.plain import PlainPolicy
from ...profiler.device import detect
from ...profiler.prompts import Prompt
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.surface import LatencySurface
from ..measuring.holding import device_session
from ..request import Identities, Models
from ..steps import Progress
from .cut import require_room
from .inputs import inputs_of_surfaces, setting_of, way_of
from .models import identify_engine_models
from .pooling import pooled
from .prompts import engine_prompts
from .record import engine_traces
from .surfaces import SurfaceMaker
from .turns import Key, Stable, stable

LENGTHS = (2, 8)  # of every drafter: the longest first, the others where one of them may be the best
NEAR = 0.75  # of the best promise: other lengths of a drafter this near are timed, too
LIKELY = 0.85  # of the best promise: searches for n-grams this near take more turns
CLOSE = 0.9  # of the best promise: settings this near are timed with care
MOST_REFINED = 2  # of them, one of everybody who drafts, per concurrency
MOST_OFTEN = 3  # as many turns of few sequences as of many, at most
ALONE = 2  # as many where no more sequences are asked for
Source = tuple[str | None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One profile of an engine."""

    engine: str
    models: Models
    prompts: Sequence[Prompt]
    workload: str = "default"
    dtype: str = "float32"
    concurrencies: tuple[int, ...] = (1, 4)
    lengths: tuple[int, ...] = LENGTHS
    max_new_tokens: int = 96  # recorded per prompt
    max_prompt_tokens: int | None = None  # see `prompt_room`
    turns: int = 3  # of a race of the most sequences; see `_turns_at`
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.prompts) < max(self.concurrencies, default=1) or len(self.prompts) < 2:
            raise RequestError(
                f"{len(self.prompts)} prompts do not fill {max(self.concurrencies)} sequences; add prompts (2 at "
                "least) or lower --batch"
            )
        if min(self.concurrencies, default=0) < 1 or min(self.lengths, default=0) < 1 or self.turns < 3:
            raise RequestError("concurrencies and lengths must be at least 1, and turns at least 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Everything one profile of an engine measured."""

    device: Device
    facts: EngineFacts
    identities: Identities
    surfaces: tuple[LatencySurface, ...]
    traces: tuple[AcceptanceTrace, ...]
    seconds: float
    notes: tuple[str, ...] = ()


def profile_engine(
    request: EngineRequest, engine: MeasuredEngine, store: Store, *, progress: Progress
) -> EngineProfile:
    """Measure an engine and store the result; what is stopped or fails (SpectuneError) stores nothing."""
    start = time.monotonic()
    device, identities = detect("cpu"), identify_engine_models(request.models)
    facts = engine.facts
    most = facts.most_concurrency
    if most is not None and max(request.concurrencies) > most:
        raise RequestError(f"{facts.name} decodes {most} sequences at once; give --batch {most}")
    progress("reading the prompts", 0.0)
    read = engine_prompts(engine, request.prompts, new_tokens=request.max_new_tokens, most=request.max_prompt_tokens)
    prompts = read.ids
    require_room(facts, prompts, request.max_new_tokens)
    with device_session(device, identities, store, wait_s=0.0):
        progress("recording drafts in the engine", 0.0)
        traces = engine_traces(request, engine, identities, prompts)
        surfaces = _timed(request, engine, identities, device, prompts, traces, progress)
        journal = store.open_profile(_key(request, device, identities, facts), fresh=True)
        journal.finish_surfaces(surfaces)
        journal.finish(traces=traces)
    return EngineProfile(
        device=device,
        facts=facts,
        identities=identities,
        surfaces=surfaces,
        traces=traces,
        seconds=time.monotonic() - start,
        notes=(*facts.notes, *read.notes),
    )


def _timed(
    request: EngineRequest,
    engine: MeasuredEngine,
    identities: Identities,
    device: Device,
    prompts: Sequence[tuple[int, ...]],
    traces: Sequence[AcceptanceTrace],
    progress: Progress,
) -> tuple[LatencySurface, ...]:
    room = max(len(prompt) for prompt in prompts) + request.max_new_tokens + 2 * max(*request.lengths, 16)
    context = int(statistics.median(len(prompt) for prompt in prompts)) + request.max_new_tokens // 2
    maker = SurfaceMaker(
        engine=engine, identities=identities, device=device, workload=request.workload, context=context, traces=traces
    )
    most = max(request.concurrencies)
    with stable(engine, capacity=room, new_tokens=request.max_new_tokens, most=most) as stall:
        ways = _first_ways(request, engine)
        progress(f"timing {len(ways) * len(request.concurrencies)} settings in turns", 0.3)
        for concurrency in request.concurrencies:
            few, more = math.ceil(request.turns / 3), math.ceil(_turns_at(concurrency, request) / 3)
            stall.take([(concurrency, setting_of(engine, way)) for way in ways], prompts, turns=few, seed=request.seed)
            lasting = [(concurrency, setting_of(engine, way)) for way in _copying(stall, maker, concurrency, ways)]
            stall.take([(concurrency, None), *lasting], prompts, turns=more, seed=request.seed + 1)
            others = [(concurrency, setting_of(engine, way)) for way in _near(stall, maker, concurrency, request)]
            if others:
                stall.take([(concurrency, None), *others], prompts, turns=few, seed=request.seed + 3)
        ahead = _ahead(stall, maker)
        progress(f"timing {len(ahead)} settings that come out ahead", 0.8)
        for concurrency in request.concurrencies:
            keys = [(concurrency, None), *(key for key in ahead if key[0] == concurrency)]
            stall.take(list(dict.fromkeys(keys)), prompts, turns=_turns_at(concurrency, request), seed=request.seed + 2)
        return maker.surfaces(stall.turns)


def _turns_at(concurrency: int, request: EngineRequest) -> int:
    """Return how many turns a race takes: those of few sequences are short, and so noisy."""
    most = max(request.concurrencies)
    return request.turns * (ALONE if most == min(request.concurrencies) else min(MOST_OFTEN, most // concurrency))


def _first_ways(request: EngineRequest, engine: MeasuredEngine) -> list[Way]:
    longest = ChainPolicy(length=max(request.lengths))
    chains: list[Way] = [(longest, drafter.name) for drafter in engine.drafters]
    searches = [way for way in (way_of(engine, setting) for setting in engine.ngrams()) if way is not None]
    return [(PlainPolicy(), None), *chains, *_spread(searches)]


def _spread(searches: Sequence[Way]) -> list[Way]:
    """Return two lengths of each search, the pairs in turn: a copy costs the same in all (`pooling.py`)."""
    by_search: dict[str, list[Way]] = {}
    for way in searches:
        by_search.setdefault(source_of(way), []).append(way)
    found: list[Way] = []
    for place, own in enumerate(by_search.values()):
        rising = sorted(own, key=lambda way: way[0].max_verify_tokens)
        pairs = list(combinations(rising, 2))
        found += pairs[place % len(pairs)] if pairs else rising
    return found


def _copying(stall: Stable, maker: SurfaceMaker, concurrency: int, ways: Sequence[Way]) -> list[Way]:
    """Return the searches for n-grams that may still win; drafters' rounds all cost the same, and wait."""
    near = {offer.way for offer in _offers(stall, maker, LIKELY)[concurrency]}
    return [way for way in ways if isinstance(way[0], LookupPolicy) and way in near]


def _near(stall: Stable, maker: SurfaceMaker, concurrency: int, request: EngineRequest) -> list[Way]:
    others = [ChainPolicy(length=length) for length in sorted(set(request.lengths))[:-1]]
    near = [offer.way for offer in _offers(stall, maker, NEAR)[concurrency]]
    names = dict.fromkeys(drafter for policy, drafter in near if isinstance(policy, ChainPolicy))
    return [(other, name) for name in names for other in others]


def _ahead(stall: Stable, maker: SurfaceMaker) -> list[Key]:
    found: list[Key] = []
    for concurrency, offers in _offers(stall, maker, CLOSE).items():
        by_source: dict[Source, list[Offer]] = {}
        for offer in offers:
            by_source.setdefault(who_drafts(offer.way), []).append(offer)
        best = [_best_of(own) for own in by_source.values()][:MOST_REFINED]
        best += _rivals(best[0], by_source[who_drafts(best[0])])
        found += [(concurrency, setting_of(maker.engine, way)) for way in best]
    return found


def _rivals(way: Way, offers: Sequence[Offer]) -> list[Way]:
    length = way[0].max_verify_tokens
    return [one.way for one in offers if one.is_timed and one.way[0].max_verify_tokens != length][:1]


def _best_of(offers: Sequence[Offer]) -> Way:
    """Return the best policy of one source, given the offers best first.

    Forwards tell most of the cost of a model's chains, so an untimed length between two may be next. The cost of copies
    at an untimed length is more of a guess.
    """
    way = offers[0].way
    return way if isinstance(way[0], ChainPolicy) else sure_of(offers)[0].way


def _offers(stall: Stable, maker: SurfaceMaker, share: float) -> dict[int, list[Offer]]:
    as_timed = inputs_of_surfaces(maker.surfaces(stall.turns), maker.traces, maker.identities)
    walks = maker.walks(as_timed)
    inputs = pooled(as_timed, walks)
    found: dict[int, list[Offer]] = {}
    for concurrency in sorted(inputs.timed):
        offers = sorted(offers_at(inputs, walks, concurrency), key=lambda offer: -offer.tokens_per_s)
        found[concurrency] = [one for one in offers if one.tokens_per_s >= share * offers[0].tokens_per_s]
    return found


def who_drafts(way: Way) -> Source:
    """Return whose way it is; searches that share their prices are one (`pooling.py`)."""
    policy, drafter = way
    return drafter, is_mapped(policy)


def _key(request: EngineRequest, device: Device, identities: Identities, facts: EngineFacts) -> str:
    told = [device.fingerprint, identities.target.key, facts.regime, facts.dtype, request.workload, request.seed]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
