"""In which role a folder's drafter is timed, by its files, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .block_shape import is_block
from .eagle_shape import is_head
from .exit_shape import is_exit
from .formats import require_known_format
from .recycling_shape import is_recycling

Role = Literal["draft", "head", "block", "self"]


def draft_role(folder: Path) -> Role:
    """Return a folder's role, see `profiler.records.role`; ModelError for a drafter of a format that is not read."""
    require_known_format(folder)
    if is_exit(folder):
        return "self"
    if is_block(folder) or is_recycling(folder):
        return "block"
    return "head" if is_head(folder) else "draft"
