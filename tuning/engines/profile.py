"""The profile job for another engine: what its rounds cost in its own regime, and how good each drafter is there.

Few settings are timed, in turns: plain decoding, every drafter at `lengths`, every search for n-grams at one. From them
and the drafters' traces every other setting is priced (`planner/engines/choice.py`). That needs no care, so it takes
few turns; the settings that come out ahead are then timed again with plain decoding, so that a plan's own choice rests
on its own careful measurement. All of it lies in the store as surfaces whose role is "round:WHO" and whose regime is
the engine's on the workload (`workload.py`): milliseconds of a round that drafts as the recorded texts let it
(`mix.py`). A plan reads what searches for n-grams took as one curve (`pooling.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...db.store import Store
from ...errors import RequestError
from ...planner.engines.choice import Way, is_mapped, offers_at, source_of
from ...planner.policies import ChainPolicy, PlainPolicy
from ...profiler.device import detect
from ...profiler.prompts import Prompt
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.surface import LatencySurface
from ...runtime.engines.measured import EngineFacts, MeasuredEngine
from ..measuring.holding import held
from ..request import Identities, Models
from ..steps import Progress
from .inputs import inputs_of_surfaces, setting_of, way_of
from .models import identify_engine_models
from .pooling import pooled
from .record import engine_traces
from .surfaces import SurfaceMaker
from .turns import Key, Stable, by_key, stable

LENGTHS = (2, 8)  # of every drafter
CLOSE = 0.9  # of the best promise: settings this near are timed with care
MOST_REFINED = 3  # of them, one of everybody who drafts, per concurrency and pass
NEW_TOKENS = 32  # of each prompt in a turn: many short turns tell more than few long ones
REFINING_PASSES = 3


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
    max_prompt_tokens: int = 64
    turns: int = 4  # of what comes out ahead, each time it does; a quarter as many of the others
    threads: int = 1
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
    """Measure an engine and keep it in the store.

    Args:
        request: what to profile.
        engine: bound to the request's models.
        store: where everything goes; nothing of a profile that is stopped is kept.
        progress: told each step.

    Raises:
        SpectuneError: a model, prompt or the engine is not fit; nothing was kept then.
    """
    start = time.monotonic()
    device, identities = detect("cpu"), identify_engine_models(request.models)
    facts = engine.facts
    most = facts.most_concurrency
    if most is not None and max(request.concurrencies) > most:
        raise RequestError(f"{facts.name} decodes {most} sequences at once; give --batch {most}")
    encoded = engine.encode([prompt.text for prompt in request.prompts])
    prompts = [tokens[-request.max_prompt_tokens :] for tokens in encoded]
    with held(device, identities, store, wait_s=0.0):
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
        notes=facts.notes,
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
    """Return the surfaces of the settings that tell about all others, and of those that come out ahead."""
    new_tokens, few = min(request.max_new_tokens, NEW_TOKENS), max(2, math.ceil(request.turns / 4))
    room = max(len(prompt) for prompt in prompts) + request.max_new_tokens + 2 * max(*request.lengths, 16)
    context = int(statistics.median(len(prompt) for prompt in prompts)) + new_tokens // 2
    maker = SurfaceMaker(
        engine=engine, identities=identities, device=device, workload=request.workload, context=context, traces=traces
    )
    with stable(engine, capacity=room, new_tokens=new_tokens) as stall:
        first = [(c, setting_of(engine, way)) for c in request.concurrencies for way in _first_ways(request, engine)]
        progress(f"timing {len(first)} settings in turns", 0.3)
        stall.take(first, prompts, turns=few, seed=request.seed)
        for number in range(REFINING_PASSES):
            ahead = _ahead(stall, maker, 2 * request.turns)
            if not ahead:
                break
            progress(f"timing {len(ahead)} settings that come out ahead", 0.6 + 0.15 * number)
            plain: list[Key] = [(c, None) for c in sorted({key[0] for key in ahead})]
            stall.new_tokens = request.max_new_tokens  # as they are decoded: short texts repeat little, and cost more
            stall.take([*plain, *ahead], prompts, turns=request.turns, seed=request.seed + 1 + number)
        return maker.surfaces(stall.turns)


def _first_ways(request: EngineRequest, engine: MeasuredEngine) -> list[Way]:
    """Return the ways that are timed first: plain, every drafter at the lengths, every search for n-grams at one."""
    chains: list[Way] = [
        (ChainPolicy(length=length), drafter.name) for drafter in engine.drafters for length in request.lengths
    ]
    searches = [way for way in (way_of(engine, setting) for setting in engine.ngrams()) if way is not None]
    return [(PlainPolicy(), None), *chains, *_spread(searches)]


def _spread(searches: Sequence[Way]) -> list[Way]:
    """Return one way of each search, from the first one's shortest draft to the last one's longest; both of a lone one.

    Copies cost the same whoever finds them (`pooling.py`), so that these tell the costs of all.
    """
    by_search: dict[str, list[Way]] = {}
    for way in searches:
        by_search.setdefault(source_of(way), []).append(way)
    groups = [sorted(own, key=lambda way: way[0].max_verify_tokens) for own in by_search.values()]
    if len(groups) == 1:
        return list(dict.fromkeys([groups[0][0], groups[0][-1]]))
    last = max(1, len(groups) - 1)
    return [own[round(place * (len(own) - 1) / last)] for place, own in enumerate(groups)]


def _ahead(stall: Stable, maker: SurfaceMaker, enough: int) -> list[Key]:
    """Return settings whose promise is near the best one of their concurrency, and that took fewer turns than that."""
    turns = stall.turns
    as_timed = inputs_of_surfaces(maker.surfaces(turns), maker.traces, maker.identities)
    walks, done = maker.walks(as_timed), {key for key, own in by_key(turns).items() if len(own) >= enough}
    inputs = pooled(as_timed, walks)
    found: list[Key] = []
    for concurrency in sorted(inputs.timed):
        offers = sorted(offers_at(inputs, walks, concurrency), key=lambda offer: -offer.tokens_per_s)
        near = [offer.way for offer in offers if offer.tokens_per_s >= CLOSE * offers[0].tokens_per_s]
        keys = [(concurrency, setting_of(maker.engine, way)) for way in best_of_sources(near)]
        found += [key for key in keys if key not in done][:MOST_REFINED]
    return found


def best_of_sources(ways: Sequence[Way]) -> list[Way]:
    """Return the first way of everybody who drafts; searches that share their prices are one source (`pooling.py`)."""
    first: dict[tuple[str | None, bool], Way] = {}
    for policy, drafter in ways:
        first.setdefault((drafter, is_mapped(policy)), (policy, drafter))
    return list(first.values())


def _key(request: EngineRequest, device: Device, identities: Identities, facts: EngineFacts) -> str:
    told = [device.fingerprint, identities.target.key, facts.regime, facts.dtype, request.workload, request.seed]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
