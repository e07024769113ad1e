"""Architectures of models that are known by name and hash: read from where they lay, if they still lie there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...errors import ModelError, PlanError
from ...planner.memory.eyesight import seeing_footprint
from ...planner.memory.heads import footprint_beside
from ...planner.records.footprint import Footprint, footprint_of
from ...profiler.configuration import read_architecture
from ...profiler.gguf_file import is_gguf
from ...profiler.records import configuration
from ...profiler.records.architecture import QUANTISED, Architecture, bytes_of
from ...profiler.records.model import ModelIdentity
from ...runtime.models.eyesight import eyesight_of, seeing_config
from ...runtime.models.formats import draft_role
from ...runtime.models.packed_size import packed_bytes
from ..parts import drafter_parts


def architecture_of(model: ModelIdentity) -> Architecture | None:
    """Return a model's (language) architecture; None where its configuration is missing, changed or unknown."""
    place = _place_of(model)
    if place is None or draft_role(place) != "draft":  # its configuration is its own; the rest is its target's
        return None
    try:
        seeing = seeing_config(place)
        return read_architecture(place) if seeing is None else configuration.architecture_of(seeing.to_dict())
    except (OSError, ModelError):
        return None


def footprints_of(target: ModelIdentity, drafters: Iterable[ModelIdentity], dtype: str) -> dict[str, Footprint]:
    """Return the memory of models with known files, by key, drafters beside the target; ModelError for the dtype."""
    bytes_of(dtype)
    whole = architecture_of(target)
    found = {model.key: _footprint(model, whole, dtype) for model in (target, *drafters)}
    return {key: footprint for key, footprint in found.items() if footprint is not None}


def _footprint(model: ModelIdentity, target: Architecture | None, dtype: str) -> Footprint | None:
    architecture, place = architecture_of(model), _place_of(model)
    if place is None:
        return None
    try:
        if architecture is not None:
            return _whole_footprint(place, architecture, dtype)
        parts = None if target is None else drafter_parts(place, target)
        return None if parts is None else footprint_beside(parts, dtype)
    except (OSError, ModelError, PlanError):
        return None


def _whole_footprint(place: Path, architecture: Architecture, dtype: str) -> Footprint:
    if dtype in QUANTISED and is_gguf(place):
        packed = packed_bytes(place)
        own = footprint_of(architecture, dtype)
        return replace(own, weight_bytes=packed.weights, tied_head_bytes=packed.tied_head)
    seeing = seeing_config(place)
    if seeing is None:
        return footprint_of(architecture, dtype)
    return seeing_footprint(architecture, eyesight_of(seeing), dtype)


def _place_of(model: ModelIdentity) -> Path | None:
    if not model.location:
        return None
    place = Path(model.location)
    if is_gguf(place):  # one hash names all of it, and would take long
        return place if place.is_file() else None
    try:
        written = (place / "config.json" if place.is_dir() else place).read_bytes()
    except OSError:
        return None
    return place if hashlib.sha256(written).hexdigest() == model.config_hash else None
