"""Read the architecture of a model from where it lies; no tensor is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .gguf_config import config_of
from .gguf_file import is_gguf, read_gguf
from .records.architecture import Architecture
from .records.configuration import architecture_of


def read_architecture(location: Path) -> Architecture:
    """Return the architecture of a model folder, GGUF file or config.json, or raise ModelError where it is unknown."""
    if is_gguf(location):
        return architecture_of(config_of(read_gguf(location)))
    file = location / "config.json" if location.is_dir() else location
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} ({error}); give a model folder or its config.json") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds no JSON object; give a model folder or its config.json")
    return architecture_of({**_quantised_beside(file.parent), **config})


def _quantised_beside(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / "hf_quant_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {"quantization_config": told} if isinstance(told, dict) else {}
