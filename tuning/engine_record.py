"""How good each drafter is in an engine: recorded from the engine's own rounds, or found in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..db.store import Store
from ..errors import RequestError
from ..profiler.records.acceptance import AcceptanceTrace, PromptTrace
from ..runtime.engines.measured import EngineText, Load, MeasuredEngine
from ..runtime.engines.setting import EngineDrafter, Setting
from ..runtime.requests import Request
from .engine_trace import told_prompt
from .lookup_trace import lookup_trace
from .request import Identities

if TYPE_CHECKING:
    from .engine_profile import EngineRequest

NO_MODEL = "lookup"  # what the trace of a target without drafters is called
OPEN = 0.05  # share of positions that may be open before a reader is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The traces of all drafters.

    Attributes:
        traces: of each, or the texts alone where there is none.
        fresh: those that were recorded just now; the others are the store's.
        notes: what a reader must know of them.
    """

    traces: tuple[AcceptanceTrace, ...]
    fresh: tuple[AcceptanceTrace, ...]
    notes: tuple[str, ...]


def workload_in(engine: str, workload: str) -> str:
    """Return what a workload's traces of an engine are called: no planner takes them for our own recordings."""
    return f"{workload} ({engine})"


def engine_traces(
    request: EngineRequest,
    engine: MeasuredEngine,
    identities: Identities,
    prompts: Sequence[tuple[int, ...]],
    store: Store,
) -> Recorded:
    """Return a trace per drafter: recorded in the engine, else the store's of the same weights and workload.

    Raises:
        RequestError: the engine does not tell its rounds, and the store has no trace.
    """
    if not engine.facts.tells_rounds and engine.drafters:
        return _of_store(request, engine, identities, store)
    found, notes = [], []
    for drafter in engine.drafters:
        trace, open_share = _recorded(request, engine, drafter, identities, prompts)
        found.append(trace)
        if open_share > OPEN:
            notes.append(
                f"{drafter.name} was right so often that {open_share:.0%} of the positions behind whole drafts are "
                f"open and count as hits; longer --lengths than {max(request.lengths)} close them"
            )
    if not found:
        found.append(_texts_alone(request, engine, identities, prompts))
    return Recorded(traces=tuple(found), fresh=tuple(found), notes=tuple(notes))


def _recorded(
    request: EngineRequest,
    engine: MeasuredEngine,
    drafter: EngineDrafter,
    identities: Identities,
    prompts: Sequence[tuple[int, ...]],
) -> tuple[AcceptanceTrace, float]:
    """Return a drafter's trace, and the share of its positions that are open."""
    length = max(request.lengths)
    texts = _decoded(request, engine, engine.chain(drafter, length), prompts)
    told = [told_prompt(prompt, text, length) for prompt, text in zip(prompts, texts, strict=True)]
    model = identities.drafters[drafter.name]
    trace = _trace(request, identities, drafter.name, model.key, tuple(one.trace for one in told))
    return trace, sum(one.open_positions for one in told) / trace.positions


def _texts_alone(
    request: EngineRequest, engine: MeasuredEngine, identities: Identities, prompts: Sequence[tuple[int, ...]]
) -> AcceptanceTrace:
    """Return what keeps the texts of a target that has no drafter: prompt lookup along them."""
    texts = _decoded(request, engine, None, prompts)
    own = tuple(
        lookup_trace(Request(prompt=prompt, max_new_tokens=len(text.tokens)), text.tokens)
        for prompt, text in zip(prompts, texts, strict=True)
    )
    return _trace(request, identities, NO_MODEL, NO_MODEL, own)


def _decoded(
    request: EngineRequest, engine: MeasuredEngine, setting: Setting | None, prompts: Sequence[tuple[int, ...]]
) -> list[EngineText]:
    """Return all prompts' texts with their rounds, as many at once as the request's largest concurrency."""
    slots = max(request.concurrencies)
    room = max(len(prompt) for prompt in prompts) + request.max_new_tokens + 2 * max(*request.lengths, 16)
    texts: list[EngineText] = []
    with engine.started(setting, Load(concurrency=slots, capacity=room, with_rounds=setting is not None)) as running:
        for at in range(0, len(prompts), slots):
            given = [prompts[(at + slot) % len(prompts)] for slot in range(slots)]
            texts += running.decode(given, request.max_new_tokens)
    return texts[: len(prompts)]


def _trace(
    request: EngineRequest, identities: Identities, name: str, key: str, prompts: tuple[PromptTrace, ...]
) -> AcceptanceTrace:
    return AcceptanceTrace(
        target=identities.target.key,
        drafter=key,
        drafter_name=name,
        workload=workload_in(request.engine, request.workload),
        temperature=0.0,
        seed=request.seed,
        children=prompts[0].log_probs.shape[1],
        prefix_exact=True,
        prompts=prompts,
    )


def _of_store(request: EngineRequest, engine: MeasuredEngine, identities: Identities, store: Store) -> Recorded:
    """Return the store's newest traces of the same weights."""
    held = {t.drafter: t for t in store.traces(identities.target.key, request.workload, 0.0) if t.prefix_exact}
    missing = [d.name for d in engine.drafters if identities.drafters[d.name].key not in held]
    if missing:
        raise RequestError(
            f"{engine.facts.name} does not tell which drafts it kept, and the store has no trace of {missing[0]}; run: "
            f"spectune profile --target {identities.target.location} --drafter NAME=PATH, on the same prompts"
        )
    own = tuple(held[identities.drafters[drafter.name].key] for drafter in engine.drafters)
    return Recorded(traces=own, fresh=(), notes=("acceptance is that of traces recorded by spectune's own decoder",))
