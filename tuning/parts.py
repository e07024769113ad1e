"""Finished parts of a job: made once, then found again by the run that continues after a kill."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..db.sql.profiles import SURFACES
from ..errors import ModelError, PlanError
from ..planner.memory.eyesight import seeing_footprint
from ..planner.memory.heads import DrafterParts, footprint_beside
from ..planner.records.footprint import Footprint, footprint_of
from ..profiler.configuration import read_architecture
from ..profiler.gguf_file import is_gguf
from ..profiler.protocols import MeasurementSink, Parts
from ..profiler.records import configuration
from ..profiler.records.architecture import QUANTISED, Architecture, bytes_of
from ..profiler.records.model import ModelIdentity
from ..profiler.records.surface import LatencySurface
from ..profiler.records.visit import Visit
from ..profiler.records.wire import from_json, to_json
from ..profiler.safetensors_file import read_header
from ..runtime.models.config_file import written_config
from ..runtime.models.drafter_shapes import block_shape, is_block, is_exit, is_recycling, recycling_shape
from ..runtime.models.eagle_shape import LAYER, HeadForm, head_form, is_head
from ..runtime.models.eyesight import eyesight_of, seeing_config
from ..runtime.models.formats import draft_role, packed_bytes

Made = TypeVar("Made")


class PartsUnder:
    """The parts of one step of a job, whose name is before theirs."""

    def __init__(self, parts: Parts, step: str) -> None:
        self._parts, self._step = parts, step

    def part(self, name: str) -> str | None:
        """Return the document stored under a name, None where there is none yet."""
        return self._parts.part(f"{self._step}/{name}")

    def add_part(self, name: str, document: str) -> None:
        """Keep a document under a new name; it outlives the process once this returns."""
        self._parts.add_part(f"{self._step}/{name}", document)


class FinishedWith:
    """A sink that stores its finished surfaces with others, all or none, so that no two profiles mix."""

    def __init__(self, sink: MeasurementSink, others: Sequence[LatencySurface]) -> None:
        self._sink, self._others = sink, others

    def visits(self) -> Sequence[Visit]:
        """Return what an earlier, killed run of the same session has timed, by ordinal."""
        return self._sink.visits()

    def add_visit(self, visit: Visit) -> None:
        """Keep one timed call; it outlives the process once this returns."""
        self._sink.add_visit(visit)

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        """Keep every cell of the surfaces and of the others, and drop the visits: all of it or nothing, once."""
        self._sink.finish_surfaces([*surfaces, *self._others])


def finished_surfaces(parts: Parts) -> tuple[LatencySurface, ...] | None:
    """Return the surfaces that an earlier run of a profile has finished, None where it has not."""
    document = parts.part(SURFACES)
    return None if document is None else from_json(tuple[LatencySurface, ...], document)


def kept_or_made(parts: Parts | None, name: str, kind: type[Made], make: Callable[[], Made]) -> Made:
    """Return the stored part of that name, bit for bit, or make and store it; StoreError where it is no such record."""
    document = None if parts is None else parts.part(name)
    if document is not None:
        found: Any = from_json(kind, document)  # Any: from_json's own word for what is not a class
        kept: Made = found
        return kept
    made = make()
    if parts is not None:
        parts.add_part(name, to_json(made, kind))
    return made


HALF = "BF16"  # as headers name bfloat16
KEPT = {  # how the names of tensors begin that a head of EAGLE's forms keeps; folders may hold more
    "eagle": ("fc.", "embed_tokens.", "layers.0."),
    "eagle3": ("fc.", "embed_tokens.", "midlayer.", "layers.0.", "norm.", "lm_head.", "d2t"),
}


def drafter_parts(folder: Path, target: Architecture) -> DrafterParts | None:
    """Return the parts of a folder's drafter beside a target, None for an uncounted kind; ModelError if broken."""
    if is_exit(folder):
        sizes, stored = _tensors(folder)
        return DrafterParts(form="exit", target=target, sizes=sizes, stored_dtype=stored)
    if is_recycling(folder):
        kept = recycling_shape(folder).successors
        return DrafterParts(form="recycling", target=target, sizes={}, reads=(target.layers,), successors=kept)
    if is_block(folder):
        return _block(folder, target)
    return _head(folder, head_form(folder), target) if is_head(folder) else None


def _block(folder: Path, target: Architecture) -> DrafterParts | None:
    shape, (sizes, stored) = block_shape(folder), _tensors(folder)
    if shape.kind not in ("medusa", "ctc", "specformer"):
        return None
    return DrafterParts(form=shape.kind, target=target, sizes=sizes, stored_dtype=stored, reads=shape.reads)


def _head(folder: Path, shape: HeadForm, target: Architecture) -> DrafterParts:
    found, stored = _tensors(folder, KEPT[shape.form])
    sizes = {name.replace(shape.begins, LAYER[shape.form], 1): size for name, size in found.items()}
    config = written_config(folder)
    return DrafterParts(
        form=shape.form,
        target=target,
        sizes=sizes,
        head_dim=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
        stored_dtype=stored,
        reads=shape.reads_of(target.layers),
    )


def _tensors(folder: Path, begins: Sequence[str] = ("",)) -> tuple[Mapping[str, tuple[int, ...]], str]:
    """Return the sizes of a folder's tensors by name, and "bfloat16" where all its matrices are stored so."""
    sizes: dict[str, tuple[int, ...]] = {}
    formats: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        for name, seen in read_header(path).items():
            if name.startswith(tuple(begins)):
                sizes[name] = seen.shape
                formats |= {seen.dtype} if len(seen.shape) == 2 else set()
    return sizes, "bfloat16" if formats == {HALF} else ""


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
