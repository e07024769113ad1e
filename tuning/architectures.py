"""Architectures of models that are known by name and hash: read from where they lay, if they still lie there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ..errors import ModelError
from ..planner.memory import Footprint, footprint_of
from ..profiler.configuration import read_architecture
from ..profiler.records.architecture import Architecture
from ..profiler.records.model import ModelIdentity
from ..runtime.models.drafter import draft_role


def architecture_of(model: ModelIdentity) -> Architecture | None:
    """Return a model's architecture; None where its configuration is gone, was changed, or is of no known kind."""
    if not model.location:
        return None
    place = Path(model.location)
    if draft_role(place) != "draft":  # its configuration is its own; what else it needs is its target's
        return None
    file = place / "config.json" if place.is_dir() else place
    try:
        if hashlib.sha256(file.read_bytes()).hexdigest() != model.config_hash:
            return None
        return read_architecture(file)
    except (OSError, ModelError):
        return None


def footprints_of(models: Iterable[ModelIdentity], dtype: str) -> dict[str, Footprint]:
    """Return the memory of every model whose architecture is known, by ModelIdentity.key.

    Args:
        models: whose.
        dtype: number format of weights and caches.

    Raises:
        ModelError: the format is unknown.
    """
    known = ((model.key, architecture_of(model)) for model in models)
    return {key: footprint_of(architecture, dtype) for key, architecture in known if architecture is not None}
