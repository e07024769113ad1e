"""Pieces of a target's own texts for batches, each of which begins as a text does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..planner.records.image_ids import IMAGE_IDS
from .language_model import Tokens
from .own_text import BLANK, Ids, aligned


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
        """Numbers for `language_model.batches`, whose windows of 1 never begin at the last two."""
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
