"""Record every drafter along the target's own texts, and how all models agree along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from ...errors import RequestError
from ...profiler.prompts import Prompt, by_workload
from ...profiler.protocols import Parts
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from ...runtime.batch.sequence import Request
from ...runtime.models.tapped import reads_of
from ..measuring.decoding import LOOKUP, Family
from ..parts import PartsUnder
from ..prompts import requests_of
from ..request import Identities, ProfileRequest
from ..steps import Progress
from .agreement import pairwise_acceptance
from .continuations import SLOTS, continuations
from .effort import RecordingBudget
from .lookup_trace import lookup_trace
from .recipe import Recipe
from .record import record_prompts

COMPARED_POSITIONS = 256  # at which models are compared where recording has a limit
Text = tuple[Request, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload at one temperature: its share of a profile's prompts, ready to be decoded."""

    request: ProfileRequest  # with its own prompts, name and temperature
    requests: tuple[Request, ...]

    @property
    def label(self) -> str:
        """Name it in a few words."""
        return f"{self.request.workload}, temperature {self.request.temperature:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraces:
    """Per workload and temperature: a trace of every drafter, or of lookup alone, and how all models agree."""

    traces: tuple[AcceptanceTrace, ...]
    pairwise: tuple[PairwiseAcceptance, ...]


def workloads_of(request: ProfileRequest, tokenizer: PreTrainedTokenizerBase) -> tuple[Workload, ...]:
    """Return the prompts' workloads at every requested temperature, the request's own first; errors as in `parted`."""
    return tuple(Workload(request=own, requests=tuple(requests_of(own, tokenizer))) for own in parted(request))


def parted(request: ProfileRequest) -> list[ProfileRequest]:
    """Return a profile of each workload in the prompts at each temperature; RequestError where one has too few."""
    return [
        _of_workload(request, name, prompts, temperature)
        for temperature in (request.temperature, *request.more_temperatures)
        for name, prompts in by_workload(request.prompts, request.workload).items()
    ]


def _of_workload(request: ProfileRequest, name: str, prompts: Sequence[Prompt], temperature: float) -> ProfileRequest:
    try:
        return replace(request, prompts=prompts, workload=name, temperature=temperature, more_temperatures=())
    except RequestError as error:  # all prompts of a file were enough, those of one of its workloads are not
        raise RequestError(f"workload {name!r}: {error}") from error


def record_workloads(
    workloads: Sequence[Workload],
    identities: Identities,
    family: Family,
    recipe: Recipe | RecordingBudget,
    parts: Parts,
    progress: Progress,
) -> RecordedTraces:
    """Return every drafter's proposals along the target's continuations, or prompt lookup's, and how all models agree.

    A recipe is recorded along all texts; an `RecordingBudget` limits the time. `parts` resume a stopped run.
    """
    traces, pairwise = [], []
    for workload in workloads:
        own = PartsUnder(parts, f"{workload.request.workload} {workload.request.temperature:g}")
        texts, found = _recorded(workload, identities, family, recipe, own, progress)
        traces.extend(found)
        if not family.drafters:
            continue
        progress("comparing the models", 0.0)
        pairwise.append(
            pairwise_acceptance(
                {"target": family.target, **family.drafters},
                texts if isinstance(recipe, Recipe) else compared(texts),
                target=identities.target.key,
                workload=workload.request.workload,
                parts=own,
            )
        )
    return RecordedTraces(traces=tuple(traces), pairwise=tuple(pairwise))


def trace_of(
    request: ProfileRequest,
    identities: Identities,
    name: str,
    prompts: tuple[PromptTrace, ...],
    *,
    prefix_exact: bool = True,
) -> AcceptanceTrace:
    """Return one drafter's recorded prompts as a trace of the request's workload; LOOKUP has no weights.

    `prefix_exact`: below the target's token it drafts as if that were committed, as models do.
    """
    return AcceptanceTrace(
        target=identities.target.key,
        drafter=LOOKUP if name == LOOKUP else identities.drafters[name].key,
        drafter_name=name,
        workload=request.workload,
        temperature=request.temperature,
        seed=request.seed,
        children=prompts[0].children,
        prefix_exact=prefix_exact,
        prompts=prompts,
    )


def compared(texts: Sequence[Text]) -> list[Text]:
    """Return the first texts, of COMPARED_POSITIONS at least: shares are known to 3 % by then."""
    positions = 0
    for count, (_, text) in enumerate(texts, start=1):
        positions += len(text)
        if positions >= COMPARED_POSITIONS:
            return list(texts[:count])
    return list(texts)


def _recorded(
    workload: Workload,
    identities: Identities,
    family: Family,
    recipe: Recipe | RecordingBudget,
    parts: Parts,
    progress: Progress,
) -> tuple[list[Text], list[AcceptanceTrace]]:
    """Return texts and their traces: of all prompts, or group by group until intervals are narrow or time is up."""
    every = workload.requests
    if isinstance(recipe, Recipe):
        recipes = dict.fromkeys(family.drafters, recipe)
        texts = _texts(workload, every, family, parts, progress)
        return texts, _traces(workload, identities, family, recipes, texts, parts, progress)
    recipes, begun_s, groups = {}, recipe.clock(), recipe.groups(len(every))
    for number, upto in enumerate(groups, start=1):
        group_s = recipe.clock()
        texts = _texts(workload, every[:upto], family, parts, progress, at_once=recipe.at_once)
        if len(texts) < 2:
            continue
        if not recipes:
            share = len(every) / upto
            left_s = recipe.limit_s - share * (recipe.clock() - begun_s)
            positions = round(share * sum(len(text) for _, text in texts))
            progress("choosing which trees to record", 0.0)
            recipes = recipe.recipes(family.drafters, texts, left_s, positions, parts)
        traces = _traces(workload, identities, family, recipes, texts, parts, progress)
        now_s = recipe.clock()
        if upto >= len(every) or not recipe.wants_more(traces, now_s - begun_s, now_s - group_s):
            break
        more_s = recipe.more_s(now_s - begun_s, now_s - group_s, len(groups) - number, len(texts))
        progress(f"recorded {upto} of {len(every)} texts, up to {more_s:.0f} s more", number / len(groups))
    return texts, traces


def _texts(
    workload: Workload,
    requests: Sequence[Request],
    family: Family,
    parts: Parts,
    progress: Progress,
    *,
    at_once: int = SLOTS,
) -> list[Text]:
    """Return what continues some requests, without those that end at once; RequestError where all were asked."""
    progress("decoding the target's own text", 0.0)
    decoded = continuations(family.target, requests, slots=at_once, parts=parts)[: len(requests)]
    texts = [(asked, text) for asked, text in zip(requests, decoded, strict=True) if len(text) >= 2]
    if len(texts) < 2 and len(requests) == len(workload.requests):
        raise RequestError(
            f"the target ends nearly every prompt of {workload.label} at once, so nothing can be recorded; add prompts"
        )
    return texts


def _traces(
    workload: Workload,
    identities: Identities,
    family: Family,
    recipes: Mapping[str, Recipe],
    texts: Sequence[Text],
    parts: Parts,
    progress: Progress,
) -> list[AcceptanceTrace]:
    if not family.drafters:
        prompts = tuple(lookup_trace(asked, text) for asked, text in texts)
        return [trace_of(workload.request, identities, LOOKUP, prompts)]
    traces = []
    for name, model in family.drafters.items():
        progress(f"recording {name}", 0.0)
        prompts = record_prompts(model, texts, recipes[name], parts=parts, name=name)
        is_exact = not reads_of(model)
        traces.append(trace_of(workload.request, identities, name, prompts, prefix_exact=is_exact))
    return traces
