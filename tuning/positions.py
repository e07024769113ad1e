"""How long a text a model takes, by its configuration, and the refusal of plans for longer ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import ModelError, RequestError
from ..planner.inputs import DrafterInputs
from ..profiler.configuration import read_architecture
from ..profiler.gguf_file import is_gguf
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.reason import reach_told

UNLIMITED = 2**31 - 1  # tokens
STRETCH = 4  # estimates may be for a model stretched so far: the factor that YaRN is published with
NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")  # of one field


def longest_context(place: Path) -> int:
    """Return the number of positions of a model (folder, GGUF file or config.json); 0 where it is not known."""
    try:
        architecture = read_architecture(place)
        return architecture.longest_context or architecture.positions
    except (OSError, ModelError):
        return 0 if is_gguf(place) else _told(place / "config.json" if place.is_dir() else place)


def require_within_positions(model: ModelIdentity, contexts: Iterable[int], stretch: int = 1) -> tuple[str, ...]:
    """Return a note where contexts exceed a model's positions; raise RequestError beyond `stretch` times as many."""
    return within_positions(Path(model.location), model.name, contexts, stretch) if model.location else ()


def within_positions(place: Path, name: str, contexts: Iterable[int], stretch: int) -> tuple[str, ...]:
    """Return the same of a model that lies at a place."""
    positions, longest = longest_context(place), max(contexts, default=0)
    if not positions or longest <= positions:
        return ()
    told = f"context {longest:,} is beyond the {positions:,} positions of {name}"
    if longest > stretch * positions:
        raise RequestError(f"{told}; name contexts of at most {positions:,}")
    return (f"{told}: it is estimated as if the model were stretched to it by RoPE scaling",)


def _told(file: Path) -> int:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    told = (text.get(name) for name in NAMES) if isinstance(text, dict) else ()
    return next((value for value in told if isinstance(value, int)), 0)


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
