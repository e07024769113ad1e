"""What a target takes that sees: vectors of the images that it keeps, and what makes them of pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import PlanError
from ...profiler.records.architecture import Architecture, bytes_of
from ..records.footprint import Footprint, footprint_of

IMAGES = 64  # that a target has room for at once: as runtime/models/image_cache.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Eyesight:
    """What a model that sees is made of beside its language model."""

    parameters: int  # of the vision tower and the projector
    image_tokens: int  # vectors of an image
    looking_numbers: int  # alive at once while an image is looked at

    def __post_init__(self) -> None:
        if self.parameters < 1 or self.image_tokens < 1 or self.looking_numbers < 0:
            raise PlanError(f"what sees needs parameters >= 1, image_tokens >= 1 and looking_numbers >= 0, got {self}")


def seeing_footprint(text: Architecture, eyesight: Eyesight, dtype: str) -> Footprint:
    """Return what a language model and its eyes take in a number format; ModelError where that is unknown.

    Images lie behind the token table, in a copy of it: a tied output head needs a table of its own.
    """
    size, own = bytes_of(dtype), footprint_of(replace(text, is_tied=False), dtype)
    images_bytes = size * IMAGES * eyesight.image_tokens * text.hidden
    return replace(
        own,
        weight_bytes=own.weight_bytes + size * eyesight.parameters + images_bytes,
        looking_bytes=size * eyesight.looking_numbers,
    )
