"""What a profile would do, found out without measuring anything."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..profiler.device import detect
from ..profiler.domain import Domain, Shape
from ..profiler.records.role import RESUME
from ..runtime.models.formats import draft_role
from ..runtime.models.loading import load_tokenizer
from .conversations import with_longest_answers
from .family import identify_all, require_formats, require_regime, settled_regime
from .measuring.timing import domains_of, resuming
from .prompt_room import why_shorter_at
from .prompts import positions_of, require_contexts, require_room
from .recording.traces import workloads_of
from .request import ProfileRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreview:
    """Which forwards of one model would be timed."""

    name: str
    role: str
    first: tuple[Shape, ...]  # (batch, context_tokens, tokens) timed in any case; the budget decides on more
    domain: Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A profile before it happens."""

    device: str  # label
    models: tuple[ModelPreview, ...]
    held_out: int  # random shapes, over all models
    texts: int  # to be decoded and recorded along
    tokens_per_text: int  # at most
    timing_s: float | None  # for forwards; None: as the models need


def preview(request: ProfileRequest) -> Preview:
    """Return what `profile` would do for the request, without loading a model; refuse what it would refuse."""
    device, identities = detect(request.device), identify_all(request.models)
    regime = settled_regime(request.regime, device)
    require_regime(regime, device)
    require_formats(request.models, device.dtype_for(request.dtype), device)
    request = with_longest_answers(replace(request, regime=regime))
    workloads = workloads_of(request, load_tokenizer(str(request.models.target)))
    requests = [asked for workload in workloads for asked in workload.requests]
    positions = positions_of(request.models.target)
    why = why_shorter_at(request.models.target)
    require_contexts(request.contexts, positions, why)
    if positions:  # else the loaded model alone knows
        require_room(positions, requests, why)
    exits = resuming(request)
    names = [identities.target.name, *identities.drafters, *exits]
    roles = ["verify", *(draft_role(path) for path in request.models.drafters.values()), *([RESUME] * len(exits))]
    return Preview(
        device=device.label,
        models=tuple(
            ModelPreview(name=name, role=role, first=tuple(domain.coarse()), domain=domain)
            for name, role, domain in zip(names, roles, domains_of(request, device, requests), strict=True)
        ),
        held_out=request.held_out,
        texts=len(requests),
        tokens_per_text=request.max_new_tokens,
        timing_s=request.budget_s,
    )
