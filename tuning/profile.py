"""The profile job: what forwards cost here, and how good each drafter is for this target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..db.store import Store
from ..errors import RequestError
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.latency import Shape, measure
from ..profiler.lock import device_lock
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from ..profiler.records.device import Device
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_model, load_tokenizer, require_one_vocabulary
from ..runtime.requests import Request
from ..runtime.shapes import ForwardShapes
from .agreement import pairwise_acceptance
from .continuations import continuations
from .decoding import Family
from .overhead import measure_overhead
from .prompts import requests_of
from .recording import Beams, Recorder
from .request import CHAIN_GRID, TREE_GRID, Identities, Models, ProfileRequest

Progress = Callable[[str, float], None]  # (what is being done, share of it done)
EXACT_DTYPE = "float32"  # traces are recorded in it, so that ties are as rare as they can be
DRAFT_GRID = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything one profile measured."""

    device: Device
    identities: Identities
    verify: LatencySurface
    drafts: dict[str, LatencySurface]
    overhead: RoundOverhead
    traces: tuple[AcceptanceTrace, ...]
    pairwise: PairwiseAcceptance
    seconds: float


def profile(request: ProfileRequest, store: Store, *, beams: Beams | None = None, progress: Progress) -> Profile:
    """Measure and record everything a plan needs, and keep it in the store.

    Raises:
        SpectuneError: a model, tokenizer, device or prompt is not fit; nothing was measured then.
        Interrupted: Ctrl-C; the finished cells are in the store.
    """
    start = time.monotonic()
    device = detect(request.device)
    identities = identify_all(request.models)
    requests = requests_of(request, load_tokenizer(str(request.models.target)))
    cells = cells_of_request(request, requests)
    with device_lock(device, Path(platformdirs.user_cache_dir("spectune"))):
        store.add_device(device)
        for identity in (identities.target, *identities.drafters.values()):
            store.add_model(identity)
        family = load_family(request.models, dtype=request.dtype, device=torch_device(device))
        verify, drafts = _surfaces(request, family, identities, cells, device, store, progress)
        overhead = _overhead(request, family, identities, requests, device, progress)
        store.add_overhead(overhead)
        traces, pairwise = record_traces(request, identities, requests, device, beams or Beams(), progress)
    for trace in traces:
        store.add_trace(trace)
    store.add_pairwise(pairwise)
    return Profile(
        device=device,
        identities=identities,
        verify=verify,
        drafts=drafts,
        overhead=overhead,
        traces=traces,
        pairwise=pairwise,
        seconds=time.monotonic() - start,
    )


def identify_all(models: Models) -> Identities:
    """Return who the models are, after checking that they share one vocabulary."""
    target = identify(models.target)
    drafters = {name: identify(path, name) for name, path in models.drafters.items()}
    for path in models.drafters.values():
        require_one_vocabulary(str(models.target), str(path))
    return Identities(target=target, drafters=drafters)


def load_family(models: Models, *, dtype: str, device: str) -> Family:
    """Return the models ready to run."""
    return Family(
        target=load_model(str(models.target), dtype=dtype, device=device),
        drafters={name: load_model(str(path), dtype=dtype, device=device) for name, path in models.drafters.items()},
    )


def torch_device(device: Device) -> str:
    """Return torch's name of a device."""
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def cells_of_request(request: ProfileRequest, requests: Sequence[Request]) -> list[tuple[int, int]]:
    """Return (batch, context) pairs to measure; contexts default to where the texts begin and end."""
    shortest = min(len(r.prompt) for r in requests)
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    contexts = request.contexts or (shortest, longest)
    return [(batch, context) for batch in request.batches for context in sorted(set(contexts))]


def verify_shapes(batch_contexts: Sequence[tuple[int, int]]) -> list[Shape]:
    """Return the target shapes to time."""
    return [(batch, context, n) for batch, context in batch_contexts for n in (*CHAIN_GRID, *TREE_GRID)]


def draft_shapes(batch_contexts: Sequence[tuple[int, int]]) -> list[Shape]:
    """Return the drafter shapes to time."""
    return [(batch, context, n) for batch, context in batch_contexts for n in DRAFT_GRID]


def _surfaces(
    request: ProfileRequest,
    family: Family,
    identities: Identities,
    cells: list[tuple[int, int]],
    device: Device,
    store: Store,
    progress: Progress,
) -> tuple[LatencySurface, dict[str, LatencySurface]]:
    room = {"slots": max(request.batches), "capacity": max(c for _, c in cells) + max(TREE_GRID)}
    target = ForwardShapes(family.target, identity=identities.target.key, dtype=request.dtype, role="verify", **room)
    drafters = [
        ForwardShapes(model, identity=identities.drafters[name].key, dtype=request.dtype, role="draft", **room)
        for name, model in family.drafters.items()
    ]
    shapes = [verify_shapes(cells), *([draft_shapes(cells)] * len(drafters))]
    surfaces = measure(
        [target, *drafters],
        shapes,
        device=device,
        budget_s=request.budget_s,
        sink=store,
        seed=request.seed,
        progress=lambda share: progress("timing forwards", share),
    )
    return surfaces[0], dict(zip(family.drafters, surfaces[1:], strict=True))


def _overhead(
    request: ProfileRequest,
    family: Family,
    identities: Identities,
    requests: Sequence[Request],
    device: Device,
    progress: Progress,
) -> RoundOverhead:
    drafter = next(iter(family.drafters), None)
    samples = []
    for done, batch in enumerate(request.batches):
        progress("timing whole rounds", done / len(request.batches))
        samples.extend(measure_overhead(family, requests, batch=batch, drafter=drafter, seed=request.seed))
    return RoundOverhead(
        device=device.fingerprint, target=identities.target.key, dtype=request.dtype, samples=tuple(samples)
    )


def record_traces(
    request: ProfileRequest,
    identities: Identities,
    requests: Sequence[Request],
    device: Device,
    beams: Beams,
    progress: Progress,
) -> tuple[tuple[AcceptanceTrace, ...], PairwiseAcceptance]:
    """Return every drafter's trace along the target's own continuations, and how all models agree."""
    family = load_family(request.models, dtype=EXACT_DTYPE, device=torch_device(device))
    progress("decoding the target's own text", 0.0)
    decoded = continuations(family.target, requests)
    texts = [(asked, text) for asked, text in zip(requests, decoded, strict=True) if len(text) >= 2]
    if len(texts) < 2:
        raise RequestError("the target ends nearly every prompt at once, so there is nothing to record; add prompts")
    traces = []
    for name, model in family.drafters.items():
        progress(f"recording {name}", 0.0)
        prompts = record_prompts(model, texts, beams)
        traces.append(trace_of(request, identities, name, prompts))
    progress("comparing the models", 0.0)
    models = {"target": family.target, **family.drafters}
    along = [(asked.prompt, text) for asked, text in texts]
    return tuple(traces), pairwise_acceptance(models, along, request.temperature)


def record_prompts(
    drafter: CausalModel,
    texts: Sequence[tuple[Request, Sequence[int]]],
    beams: Beams,
    positions: Sequence[Sequence[int]] | None = None,
) -> tuple[PromptTrace, ...]:
    """Return a drafter's recording along the target's texts, everywhere or at some positions of each."""
    recorder = Recorder(drafter, beams, longest=max(len(asked.prompt) + len(text) for asked, text in texts))
    places: Sequence[Sequence[int] | None] = positions or [None] * len(texts)
    return tuple(recorder.record(asked, text, at) for (asked, text), at in zip(texts, places, strict=True))


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
