"""How long a text draft models were made for, where their target reads longer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ModelError
from ..planner.inputs import DrafterInputs
from ..profiler.configuration import read_architecture
from ..profiler.records.configuration import longest_text
from ..profiler.records.model import ModelIdentity
from ..runtime.models.config_file import written_config
from ..runtime.reach import reach_told

DRAFT = "draft"  # the role of drafters that are language models


def notes_of_reach(target: Path, drafters: Mapping[str, Path]) -> tuple[str, ...]:
    """Return a note for every draft model that has fewer positions than its target.

    Behind its last position a draft model reads every token at that one place, and its drafts are seldom right.

    Args:
        target: a folder or a GGUF file; where it does not tell its positions, or is gone, nothing is said.
        drafters: language models alone, by name; likewise.
    """
    longest = reach_of(target)
    found = {name: reach_of(path) for name, path in drafters.items()}
    return tuple(reach_told(name, reach, longest) for name, reach in found.items() if 0 < reach < longest)


def note_of_reach(target: ModelIdentity, drafters: Sequence[DrafterInputs]) -> tuple[str, ...]:
    """Return the same of the drafters of a plan, where they lay when they were profiled."""
    models = {each.name: Path(each.model.location) for each in drafters if each.surface.role == DRAFT}
    return notes_of_reach(Path(target.location), models)


def reach_of(location: Path) -> int:
    """Return how many positions a model has; 0 where its files do not tell."""
    try:
        return read_architecture(location).longest_context
    except ModelError:
        text = written_config(location)
        positions = (text.get("text_config") or text).get("max_position_embeddings")
        return longest_text(positions, ()) if isinstance(positions, int) else 0
