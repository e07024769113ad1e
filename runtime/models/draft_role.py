"""In which role a folder's drafter is timed, by its files, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...errors import ModelError
from .block_shape import is_block
from .config_file import written_in
from .eagle_shape import is_head
from .exit_shape import is_exit
from .formats import drafter_described, require_known_format
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


def require_no_drafter(place: Path) -> None:
    """Raise ModelError where that lies at a place which drafts beside a target, and a language model belongs there.

    Args:
        place: a folder, or a config.json by itself; of a GGUF file nothing is said.
    """
    if place.is_dir():
        found = CALLED.get(draft_role(place))
    else:
        found = drafter_described(written_in(place)) if place.suffix == ".json" else None
    if found is not None:
        raise ModelError(
            f"{place} holds {found}, which drafts beside a target and is no language model; give a language "
            f"model there, and this as --drafter NAME={place}"
        )
