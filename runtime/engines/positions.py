"""The longest text of a model by its files: some engines run on beyond it, and produce nonsense."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError
from ..models.configuration import longest_context_of
from ..models.loading import load_config


def positions_of_folder(folder: Path) -> int | None:
    """Return the longest text in tokens by a folder's config.json; None where it does not say."""
    try:
        config = load_config(str(folder)).get_text_config()
    except ModelError:
        return None
    return longest_context_of(config) if hasattr(config, "max_position_embeddings") else None
