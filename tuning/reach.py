"""How long a text draft models were made for, where their target reads longer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..planner.inputs import DrafterInputs
from ..profiler.records.model import ModelIdentity
from ..runtime.reason import reach_told
from .positions import longest_context

DRAFT = "draft"  # the role of drafters that are language models


def notes_of_reach(target: Path, drafters: Mapping[str, Path]) -> tuple[str, ...]:
    """Return a note for every draft model with fewer positions than its target; none where positions are not known.

    Behind its last position it reads every token at that one place, and its drafts are seldom right.
    """
    longest = longest_context(target)
    found = {name: longest_context(path) for name, path in drafters.items()}
    return tuple(reach_told(name, reach, longest) for name, reach in found.items() if 0 < reach < longest)


def note_of_reach(target: ModelIdentity, drafters: Sequence[DrafterInputs]) -> tuple[str, ...]:
    """Return the same of the drafters of a plan, where they lay when they were profiled."""
    models = {each.name: Path(each.model.location) for each in drafters if each.surface.role == DRAFT}
    return notes_of_reach(Path(target.location), models)
