"""In which role a folder's drafter is timed, by its files, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...errors import ModelError
from .block_shape import is_block
from .eagle_shape import is_head
from .exit_shape import is_exit
from .formats import require_known_format
from .recycling_shape import is_recycling

Role = Literal["draft", "head", "block", "self"]
CALLED: Mapping[Role, str] = {"head": "a head", "block": "a block drafter", "self": "an exit"}


def draft_role(folder: Path) -> Role:
    """Return a folder's role, see `profiler.records.role`; ModelError for a drafter of a format that is not read."""
    require_known_format(folder)
    if is_exit(folder):
        return "self"
    if is_block(folder) or is_recycling(folder):
        return "block"
    return "head" if is_head(folder) else "draft"


def require_no_drafter(folder: Path) -> None:
    """Raise ModelError where a folder holds what drafts beside a target, and a language model belongs there."""
    role = draft_role(folder)
    if role != "draft":
        raise ModelError(
            f"{folder} holds {CALLED[role]}, which drafts beside a target and is no language model; give a language "
            f"model there, and this as --drafter NAME={folder}"
        )
