"""Make the folder of a Token Recycling drafter: nothing is learned, only its acceptance is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..errors import TrainingError
from ..profiler.identity import identify
from ..runtime.models.drafter_shapes import RecyclingShape, recycling_config, recycling_tensors
from .cards import Card, save_card, save_weights
from .run import OwnTextRequest, judged
from .run_folder import Progress, require_own, tells_of_room

LENGTH = 6  # of the chains whose acceptance is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingRequest(OwnTextRequest):
    """The target of a Token Recycling drafter, and the files to measure acceptance on."""

    NEEDS: ClassVar = "drafts are counted behind pieces of text"

    successors: int = 8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        OwnTextRequest.__post_init__(self)
        if self.successors < 1:
            raise TrainingError(f"successors must be at least 1, got {self.successors}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingCard(Card):
    """How good a Token Recycling drafter is, by chains of `LENGTH`."""

    successors: int
    prompt_tokens: int
    new_tokens: int

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        return f"""# Token Recycling for `{self.target}`

The target's own {self.successors} likeliest successors of every token, as of when that token last stood in the text.
No weights of its own. Target's weights: `{self.target_hash[:16]}`.

Counted along greedy continuations of {self.new_tokens} tokens behind pieces of {self.prompt_tokens} tokens from
{len(self.files)} files; nothing is known when a text begins.

{self.table}"""


@tells_of_room("lower --new-tokens, or choose another --device")
def make_recycling(request: RecyclingRequest, folder: Path, *, progress: Progress) -> RecyclingCard:
    """Write a Token Recycling drafter with its card into a folder, and return the card.

    Raises:
        ModelError: the target cannot be loaded, or its hidden states cannot be read.
        RequestError: a line of a file is malformed, or the target has too few positions for its texts.
        TrainingError: there is too little text, or the folder holds another model or cannot be written.
    """
    start = time.monotonic()
    identity = identify(request.target)
    require_own(folder, request.target)
    asked = request.prompts
    shape = RecyclingShape(successors=request.successors, target=identity.weights_hash)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(folder, recycling_tensors(shape), recycling_config(shape))
    accepted = judged(request, asked.judged, folder, LENGTH, progress)
    card = RecyclingCard(
        target=identity.name,
        target_hash=identity.weights_hash,
        successors=request.successors,
        files=tuple(path.name for path in request.data),
        prompt_tokens=request.own.prompt_tokens,
        new_tokens=request.own.new_tokens,
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=time.monotonic() - start,
    )
    save_card(folder, card)
    return card
