"""How long a text a model was made for, as its files tell: some engines run on past it, into nonsense."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError
from ..models.configuration import longest_context_of
from ..models.loading import load_config
from .gguf_header import shape_of_gguf


def positions_of_folder(folder: Path) -> int | None:
    """Return the most tokens of a text by a folder's config.json; None where there is none that tells."""
    try:
        config = load_config(str(folder)).get_text_config()
    except ModelError:
        return None
    return longest_context_of(config) if hasattr(config, "max_position_embeddings") else None


def positions_of_gguf(file: Path) -> int | None:
    """Return the most tokens of a text by a GGUF file; None where it does not tell."""
    return shape_of_gguf(file).positions or None
