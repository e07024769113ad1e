"""The vision part of a vision-language model, by transformers' tower and projector: from an image to embeddings.

Source: Liu et al. 2023, Visual Instruction Tuning (LLaVA), arXiv:2304.08485, Sec. 4.1.
"""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ...errors import ModelError
from ..batch.images import Image, ImageTokens
from .config_file import LLAVA

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's


@dataclass(frozen=True, slots=True, kw_only=True)
class Lens:
    """How pixels become a tower's input: the shorter side scaled, the middle cut out, colours normalised.

    Source: Radford et al. 2021, CLIP, arXiv:2103.00020, and the preprocessor_config.json that lies with a model.
    """

    side: int  # of the square that is seen
    shortest: int  # to which the shorter side is scaled
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def pixels(self, image: Image) -> Tensor:
        """Return (3, side, side), float32."""
        seen = torch.from_numpy(image.pixels.copy()).permute(2, 0, 1).unsqueeze(0).float()
        height, width = seen.shape[2:]
        if min(height, width) != self.shortest:
            scale = self.shortest / min(height, width)
            size = [max(self.shortest, int(height * scale)), max(self.shortest, int(width * scale))]
            seen = F.interpolate(seen, size=size, mode="bicubic", antialias=True).round().clamp(0, 255)
        top, left = (seen.shape[2] - self.side) // 2, (seen.shape[3] - self.side) // 2
        cut = seen[0, :, top : top + self.side, left : left + self.side] / 255.0
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (self.mean, self.std))
        return (cut - mean) / std


class VisionEncoder:
    """A vision tower and a projector, without the language model they were trained with."""

    def __init__(self, core: PreTrainedModel, lens: Lens) -> None:
        """Share the weights of a Llava's core, `LlavaForConditionalGeneration.model`."""
        self.tokens, self._lens = image_tokens(core.config), lens
        self._core: Any = copy(core)  # Any: transformers' own answer
        self._core._modules = {name: part for name, part in core._modules.items() if name != "language_model"}
        self._dtype, self._device = core.dtype, core.device

    def pixels(self, images: list[Image]) -> Tensor:
        """Return (images, 3, side, side) as the tower reads them."""
        return torch.stack([self._lens.pixels(image) for image in images]).to(self._device, self._dtype)

    @torch.no_grad()
    def rows(self, images: list[Image]) -> Tensor:
        """Return (images, tokens of an image, hidden) embeddings; ModelError if the configuration has others."""
        seen = self._core.get_image_features(pixel_values=self.pixels(images), return_dict=True).pooler_output
        rows = torch.stack(list(seen))
        if rows.shape[1] != self.tokens.size:
            raise ModelError(
                f"the vision tower gives {rows.shape[1]} vectors for an image and the configuration says "
                f"{self.tokens.size}; mend image_seq_length in config.json"
            )
        return rows


def image_tokens(config: PreTrainedConfig) -> ImageTokens:
    """Return how the texts of a Llava hold images."""
    return ImageTokens(placeholder=int(config.image_token_index), size=int(config.image_seq_length))


def sees(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is of a model with vision."""
    return bool(config.model_type == LLAVA)


def lens_of(config: PreTrainedConfig, folder: Path | None = None) -> Lens:
    """Return the lens in a model's folder, or CLIP's; ModelError where the folder has impossible values."""
    vision: Any = config.vision_config  # Any: of the tower's own kind
    side = int(vision.image_size)
    place = None if folder is None else folder / "preprocessor_config.json"
    if place is None or not place.is_file():
        return Lens(side=side, shortest=side)
    try:
        said: dict[str, Any] = json.loads(place.read_text())
        size: Any = said.get("size", side)
        shortest = int(
            size["shortest_edge" if "shortest_edge" in size else "height"] if isinstance(size, dict) else size
        )
        colours = {
            name: tuple(map(float, said[f"image_{name}"])) for name in ("mean", "std") if f"image_{name}" in said
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{place} does not say how pixels are read: {error!r}; copy or save it again") from error
    if shortest < side or any(len(each) != 3 for each in colours.values()):
        raise ModelError(f"{place} scales images to {shortest} and the tower sees {side}; copy or save it again")
    return Lens(side=side, shortest=shortest, **colours)
