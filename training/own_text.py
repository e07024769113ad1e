"""Text that a target writes itself, from which its drafters learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TrainingError
from ..planner.records.image_ids import IMAGE_IDS
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import PLAIN, always
from ..runtime.engine.engine import Engine
from ..runtime.engine.request_state import sequences_of
from ..runtime.engine.scheduler import Scheduler
from ..runtime.models.forward import CausalModel
from ..runtime.models.image_cache import IMAGES
from .run_folder import save_whole
from .trainer import Tokens

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
    decoder = Engine(target, {}, always(PLAIN), slots=min(SLOTS, len(asked)), capacity=longest + 1)
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in asked]
    while scheduler.schedule():
        decoder.step()
    return aligned([[*own.prompt, *done.emitted] for own, done in zip(requests, sequences_of(states), strict=True)])


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
            save_whole(path, own_texts(target, requests[first : first + many]))
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


class Pieces:
    """Texts (texts, longest) cut into pieces of at most `most` tokens and the one behind.

    Pieces but a text's first have the begin-of-text in front: a model trained with that degrades without it. `rows` is
    (pieces,), the text of each; `columns` the most tokens read of a piece.
    """

    def __init__(self, texts: Ids, begins: tuple[int, ...], most: int) -> None:
        """Cut texts that are BLANK behind their ends; `begins` is the begin-of-text."""
        self._texts, self._begins = texts, np.array(begins, dtype=np.int64)
        lengths = (texts != BLANK).sum(axis=1)
        found = [(row, start) for row, length in enumerate(lengths.tolist()) for start in _starts(length, most)]
        self.rows: NDArray[np.int64] = np.array([row for row, _ in found], dtype=np.int64)
        self._starts = [start for _, start in found]
        self._ends = [min(start + most + 1, int(lengths[row])) for row, start in found]
        self.columns = min(most, int(lengths.max()) - 1)

    @property
    def numbered(self) -> Tokens:
        """Numbers for `trainer.batches`, whose windows of 1 never begin at the last two."""
        return np.arange(len(self.rows) + 2)

    def ids(self, picked: Tensor) -> Tensor:
        """Return (batch, columns + 1) for the numbers (batch,) of pieces, BLANK behind those that are shorter."""
        return torch.from_numpy(aligned([self._cut(number) for number in picked.tolist()])).to(picked.device)

    def _cut(self, number: int) -> Ids:
        start = self._starts[number]
        piece = self._texts[self.rows[number], start : self._ends[number]].copy()
        if start:
            piece[: len(self._begins)] = self._begins
        return piece


def is_said(tokens: Tensor) -> Tensor:
    """Return where tokens (any) are of the vocabulary: not parts of images, and not behind a text's end."""
    return (tokens >= 0) & (tokens < IMAGE_IDS)


def readable(tokens: Tensor) -> Tensor:
    """Return ids (any) that a model can read; those behind a text's end influence no loss."""
    return tokens.clamp(min=0)


def _starts(length: int, most: int) -> Iterator[int]:
    """Yield where pieces of a text begin; the last one ends where the text does."""
    for start in range(0, max(length - 1, 1), most):
        yield min(start, max(length - most - 1, 0))
