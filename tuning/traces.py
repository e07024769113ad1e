"""Record every drafter along the target's own text, and how all models agree along it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import RequestError
from ..profiler.protocols import Parts
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from ..runtime.requests import Request
from .agreement import pairwise_acceptance
from .continuations import continuations
from .family import EXACT_DTYPE, load_family
from .recipe import Recipe
from .recording import record_prompts
from .request import Identities, ProfileRequest
from .steps import Progress


def record_traces(
    request: ProfileRequest,
    identities: Identities,
    requests: Sequence[Request],
    recipe: Recipe,
    device: str,
    parts: Parts,
    progress: Progress,
) -> tuple[tuple[AcceptanceTrace, ...], PairwiseAcceptance]:
    """Return every drafter's trace along the target's own continuations, and how all models agree.

    Args:
        request: whose workload it is.
        identities: of the models.
        requests: one per prompt.
        recipe: which trees are recorded.
        device: torch's name of where.
        parts: receives what is finished, and gives back what a stopped run finished.
        progress: told each step.
    """
    family = load_family(request.models, dtype=EXACT_DTYPE, device=device)
    progress("decoding the target's own text", 0.0)
    decoded = continuations(family.target, requests, parts=parts)
    texts = [(asked, text) for asked, text in zip(requests, decoded, strict=True) if len(text) >= 2]
    if len(texts) < 2:
        raise RequestError("the target ends nearly every prompt at once, so there is nothing to record; add prompts")
    traces = []
    for name, model in family.drafters.items():
        progress(f"recording {name}", 0.0)
        prompts = record_prompts(model, texts, recipe, parts=parts, name=name)
        traces.append(trace_of(request, identities, name, prompts))
    progress("comparing the models", 0.0)
    models = {"target": family.target, **family.drafters}
    along = [(asked.prompt, text) for asked, text in texts]
    pairwise = pairwise_acceptance(
        models,
        along,
        request.temperature,
        target=identities.target.key,
        workload=request.workload,
        parts=parts,
    )
    return tuple(traces), pairwise


def trace_of(
    request: ProfileRequest, identities: Identities, name: str, prompts: tuple[PromptTrace, ...]
) -> AcceptanceTrace:
    """Return one drafter's recorded prompts as a trace of the request's workload."""
    return AcceptanceTrace(
        target=identities.target.key,
        drafter=identities.drafters[name].key,
        drafter_name=name,
        workload=request.workload,
        temperature=request.temperature,
        seed=request.seed,
        children=prompts[0].children,
        prefix_exact=True,
        prompts=prompts,
    )
