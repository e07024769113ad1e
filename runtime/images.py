"""Images as a caller gives them, and prompts that hold them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from ..planner.records.image_ids import IMAGE_IDS

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture in colours; images with the same pixels are equal.

    Attributes:
        pixels: (height, width, 3), red, green and blue from 0 to 255.
        digest: of the pixels and the shape.
    """

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
        """Return whether it shows the same."""
        return isinstance(other, Image) and other.digest == self.digest

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrompt:
    """A text and the images that it speaks of; wherever a prompt may be text, it may be this.

    The text holds the model's own placeholder, as "<image>", once for each image where that is to stand. A text without
    any placeholder is read behind its images.
    """

    text: str
    images: tuple[Image, ...]

    def __post_init__(self) -> None:
        if not self.images:
            raise RequestError("an ImagePrompt holds no image; give one, or the text by itself")


PromptLike: TypeAlias = str | ImagePrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTokens:
    """How the texts of a model that sees hold images."""

    placeholder: int  # token id that stands for an image in a text as people write it
    size: int  # ids that an image takes

    def ids(self, place: int) -> range:
        """Return the ids of an image: of a request's n-th one, or of the n-th that its model keeps."""
        return range(IMAGE_IDS + place * self.size, IMAGE_IDS + (place + 1) * self.size)


def read_image(path: Path) -> Image:
    """Return the image of a file: an array saved as .npy, or a picture such as .png or .jpg.

    Raises:
        RequestError: the file cannot be read, or holds no image.
    """
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
