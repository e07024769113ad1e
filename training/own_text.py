"""Text that a target writes itself, from which its drafters learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TrainingError
from ..runtime.decoder import Decoder
from ..runtime.feed import Feed
from ..runtime.models.forward import CausalModel
from ..runtime.models.gallery import IMAGES
from ..runtime.requests import Request
from ..runtime.setup import PLAIN, always

Ids = NDArray[np.int64]
SLOTS = 64  # sequences decoded at once
SEEN_SLOTS = 32  # likewise, where they begin with images
BLANK = -1  # stands behind the end of a text that is shorter than others


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTextSettings:
    """How much the target writes; part of it is greedy, the rest sampled."""

    texts: int = 1024
    prompt_tokens: int = 32
    new_tokens: int = 224
    sampled: float = 0.5  # share of the texts that is sampled
    temperature: float = 0.8  # of these
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.texts, self.prompt_tokens, self.new_tokens) < 1:
            raise TrainingError(f"{self}: texts, prompt_tokens and new_tokens must be at least 1")
        if not 0.0 <= self.sampled <= 1.0 or not self.temperature > 0.0:
            raise TrainingError(f"{self}: sampled must be in [0, 1] and the temperature above 0")


def own_texts(target: CausalModel, requests: Sequence[Request]) -> Ids:
    """Return (texts, longest): the target's own continuations behind prompts; RequestError for too many images."""
    gallery, holder = target.gallery, _Holder()
    asked = list(requests) if gallery is None else [gallery.shown(request, holder) for request in requests]
    longest = max(len(request.prompt) + request.max_new_tokens for request in asked)
    decoder = Decoder(target, {}, always(PLAIN), slots=min(SLOTS, len(asked)), capacity=longest + 1)
    feed = Feed(decoder, asked)
    while feed.refill():
        decoder.step()
    return aligned([[*own.prompt, *done.emitted] for own, done in zip(requests, feed.sequences, strict=True)])


def write_own_texts(
    load: Callable[[], CausalModel], requests: Sequence[Request], folder: Path, progress: Callable[[float], None]
) -> Ids:
    """Return what `own_texts` does, with one file per batch, each written only once; `load` is called if needed."""
    target: CausalModel | None = None
    found: list[Ids] = []
    many = together(requests)
    for first in range(0, len(requests), many):
        path = folder / f"own-{first}.npy"
        if not path.exists():
            target = target or load()
            np.save(folder / "unfinished.npy", own_texts(target, requests[first : first + many]))
            (folder / "unfinished.npy").replace(path)
        found.append(np.load(path))
        progress(min(first + many, len(requests)) / len(requests))
    return aligned([text for batch in found for text in batch])


def aligned(texts: Sequence[Sequence[int] | Ids]) -> Ids:
    """Return (texts, longest), BLANK behind each."""
    whole = np.full((len(texts), max(map(len, texts))), BLANK, dtype=np.int64)
    for row, text in enumerate(texts):
        whole[row, : len(text)] = text
    return whole


def together(requests: Sequence[Request]) -> int:
    """Return how many texts are written at once: as many as the target has room for the images of."""
    most = max(len(request.images) for request in requests)
    return SLOTS if most == 0 else max(min(SEEN_SLOTS, IMAGES // most), 1)


class _Holder:
    """Holds images while a batch is written."""
