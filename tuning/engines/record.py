"""How good each drafter is in an engine, recorded there.

The target's texts are decoded once. Then each drafter, alone in the same engine, drafts one token at each of their
places: a chain is as long as it is right. That gives the acceptance of all lengths in a fraction of the decoding time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engines.measured import EngineLoad, MeasuredEngine
from ...planner.records.recording import Text
from ...profiler.records.acceptance import AcceptanceTrace, PromptTrace
from ...runtime.batch.sequence import Request
from ..recording.lookup_trace import lookup_trace
from ..request import Identities
from .trace import prompt_trace

if TYPE_CHECKING:
    from .profile import EngineRequest

SIDE_BY_SIDE = 8  # texts at once, where the engine takes so many: the target's texts do not hang on that
NO_MODEL = "lookup"  # what the trace of a target without drafters is called


def workload_in(engine: str, workload: str) -> str:
    """Return what a workload's traces of an engine are called: no planner takes them for our own recordings."""
    return f"{workload} ({engine})"


def own_workload(engine: str, name: str) -> str | None:
    """Return a workload's name without the engine's suffix ("": our own decoder); None for one of another engine."""
    from ...engines.table import RUNNING

    if engine:
        end = workload_in(engine, "")
        return name.removesuffix(end) if name.endswith(end) else None
    return None if any(name.endswith(workload_in(each, "")) for each in RUNNING) else name


def engine_traces(
    request: EngineRequest, engine: MeasuredEngine, identities: Identities, prompts: Sequence[tuple[int, ...]]
) -> tuple[AcceptanceTrace, ...]:
    """Return a trace of every drafter; without drafters one that holds the texts, for prompt lookup along them."""
    texts = _texts(request, engine, prompts)
    found = [
        _trace(
            request,
            identities,
            drafter.name,
            identities.drafters[drafter.name].key,
            tuple(prompt_trace(text, own) for text, own in zip(texts, engine.next_tokens(drafter, texts), strict=True)),
        )
        for drafter in engine.drafters
    ]
    if not found:
        asked = [Request(prompt=text.prompt, max_new_tokens=len(text.continuation)) for text in texts]
        looked_up = tuple(lookup_trace(one, text.continuation) for one, text in zip(asked, texts, strict=True))
        found.append(_trace(request, identities, NO_MODEL, NO_MODEL, looked_up))
    return tuple(found)


def _texts(request: EngineRequest, engine: MeasuredEngine, prompts: Sequence[tuple[int, ...]]) -> list[Text]:
    slots = min(engine.facts.most_concurrency or SIDE_BY_SIDE, SIDE_BY_SIDE, len(prompts))
    found: list[Text] = []
    load = EngineLoad(concurrency=slots, capacity=max(len(prompt) for prompt in prompts) + request.max_new_tokens + 1)
    with engine.started(None, load) as running:
        for at in range(0, len(prompts), slots):
            given = [prompts[(at + slot) % len(prompts)] for slot in range(slots)]
            told = running.decode(given, request.max_new_tokens)
            found += [Text(prompt=one, continuation=text.tokens) for one, text in zip(given, told, strict=True)]
    return found[: len(prompts)]


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
