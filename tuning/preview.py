"""What a profile would measure, before it does."""

from __future__ import annotations

from dataclasses import dataclass

from ..profiler.device import detect
from ..profiler.latency import Shape
from ..profiler.records.surface import Role
from ..runtime.models.loading import load_tokenizer
from .profile import cells_of_request, draft_shapes, identify_all, verify_shapes
from .prompts import requests_of
from .request import ProfileRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreview:
    """The shapes one model would be timed at: (batch, context, tokens), tokens per sequence."""

    name: str
    role: Role
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What one profile would measure and record."""

    device: str  # label
    models: tuple[ModelPreview, ...]  # the target first
    texts: int
    tokens_per_text: int  # at most
    seconds_at_least: float  # for timing forwards; what the recording takes depends on the models


def preview(request: ProfileRequest) -> Preview:
    """Return what `profile` would do for the request; no model is loaded.

    Raises:
        SpectuneError: what `profile` would refuse too: models, tokenizers, device or prompts that are not fit.
    """
    device, identities = detect(request.device), identify_all(request.models)
    requests = requests_of(request, load_tokenizer(str(request.models.target)))
    cells = cells_of_request(request, requests)
    target = ModelPreview(name=identities.target.name, role="verify", shapes=tuple(verify_shapes(cells)))
    drafters = [ModelPreview(name=n, role="draft", shapes=tuple(draft_shapes(cells))) for n in identities.drafters]
    return Preview(
        device=device.label,
        models=(target, *drafters),
        texts=len(requests),
        tokens_per_text=request.max_new_tokens,
        seconds_at_least=request.budget_s,
    )
