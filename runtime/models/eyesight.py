"""The vision part of a vision-language model by its configuration: nothing is loaded or allocated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError, NotInstalledError
from ...planner.memory.eyesight import Eyesight
from ...profiler.gguf_file import is_gguf
from .config_file import LLAVA

if TYPE_CHECKING:  # needed of models that see alone
    from transformers import LlavaConfig

# what a tower of another kind ends in, or one of sizes that are lists, zero or below
ODD = (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def seeing_config(place: Path) -> LlavaConfig | None:
    """Return the full configuration of a model with vision, in a folder or a file; None for any other model.

    Raises:
        ModelError: it names itself a model with vision, and is no valid configuration of one.
        NotInstalledError: transformers, which has the defaults of the file, is not installed.
        OSError: there is no such file.
    """
    if is_gguf(place):
        return None
    file = place / "config.json" if place.is_dir() else place
    try:
        said: Any = json.loads(file.read_text(encoding="utf-8"))  # Any: as JSON holds it
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("model_type") != LLAVA:
        return None
    try:
        from transformers import LlavaConfig

        from .loading import load_config
    except ModuleNotFoundError as error:
        raise NotInstalledError(str(error.name)) from error
    config = load_config(str(place))
    return config if isinstance(config, LlavaConfig) else None


def eyesight_of(config: LlavaConfig) -> Eyesight:
    """Return the eyesight of a Llava; ModelError where the tower is unknown, or has impossible sizes."""
    from .loading import first_line

    try:
        return _eyesight_of(config)
    except ODD as error:
        raise ModelError(f"a vision tower of no known kind: {first_line(error)}; choose another target") from error


def _eyesight_of(config: LlavaConfig) -> Eyesight:
    import torch
    from transformers import AutoModel
    from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

    from .vision import image_tokens

    vision: Any = config.vision_config  # Any: of the tower's own kind
    hidden = int(config.get_text_config().hidden_size)
    with torch.device("meta"):
        parts = (AutoModel.from_config(vision), LlavaMultiModalProjector(config))
    patches = (int(vision.image_size) // int(vision.patch_size)) ** 2
    inside = 4 * int(vision.hidden_size) + 3 * int(vision.intermediate_size)
    looked = (patches + 1) * max(inside, 2 * int(vision.hidden_size) + 2 * hidden)
    return Eyesight(
        parameters=sum(weight.numel() for part in parts for weight in part.parameters()),
        image_tokens=image_tokens(config).size,
        looking_numbers=looked + 3 * int(vision.image_size) ** 2,
    )
