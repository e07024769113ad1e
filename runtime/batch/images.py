"""Images from a caller, and prompts that contain them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import RequestError
from ...planner.records.image_ids import IMAGE_IDS

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture of pixels (height, width, 3), RGB from 0 to 255; pictures with equal pixels are equal."""

    pixels: Pixels = field(repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        shape, kind = np.shape(self.pixels), np.asarray(self.pixels).dtype
        if len(shape) != 3 or shape[2] != 3 or 0 in shape or kind != np.uint8:
            raise RequestError(
                f"an image is an array of uint8 with the shape (height, width, 3), got {kind} with {shape}; convert it"
            )
        written = np.ascontiguousarray(self.pixels).tobytes()
        object.__setattr__(self, "digest", hashlib.sha256(repr(shape).encode() + written).hexdigest())

    def __eq__(self, other: object) -> bool:
        """Return whether it has the same pixels."""
        return isinstance(other, Image) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrompt:
    """A text and its images; may be used wherever a prompt may be text.

    The text contains the model's own placeholder, as "<image>", once for each image. A text without any placeholder is
    read behind its images.
    """

    text: str
    images: tuple[Image, ...]

    def __post_init__(self) -> None:
        if not self.images:
            raise RequestError("an ImagePrompt holds no image; give one, or the text by itself")


PromptLike: TypeAlias = str | ImagePrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTokens:
    """How texts of a model that sees contain images."""

    placeholder: int  # token id that stands for an image in a text as people write it
    size: int  # ids that an image takes

    def ids(self, place: int) -> range:
        """Return the ids of an image: a request's n-th one, or the n-th that its model stores."""
        return range(IMAGE_IDS + place * self.size, IMAGE_IDS + (place + 1) * self.size)


def read_image(path: Path) -> Image:
    """Return the image of a .npy array or a picture such as .png or .jpg; RequestError if there is none."""
    try:
        pixels = _pixels(path)
    except (OSError, ValueError, EOFError) as error:
        raise RequestError(f"cannot read an image from {path} ({error}); give a .npy, .png or .jpg file") from error
    try:
        return Image(pixels)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def _pixels(path: Path) -> Pixels:
    if path.suffix == ".npy":
        found: Pixels = np.load(path, allow_pickle=False)
        return found
    from PIL import Image as Picture  # by way of matplotlib; not needed for arrays

    with Picture.open(path) as picture:
        return np.array(picture.convert("RGB"))
