"""Pieces of a target's own texts as batches are made of them, each of which begins as a text does."""

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
    """Texts (texts, longest) cut into pieces of at most so many tokens and the one behind.

    The first piece of a text is its beginning. Others stand behind what begins every text: a model that always saw that
    writes nothing like itself without it.

    Attributes:
        rows: (pieces,) the text of each.
        columns: most tokens of a piece that are read.
    """

    def __init__(self, texts: Ids, begins: tuple[int, ...], most: int) -> None:
        """Cut texts that are BLANK behind their ends; `begins` is what begins every text."""
        self._texts, self._begins = texts, np.array(begins, dtype=np.int64)
        lengths = (texts != BLANK).sum(axis=1)
        found = [(row, start) for row, length in enumerate(lengths.tolist()) for start in _starts(length, most)]
        self.rows: NDArray[np.int64] = np.array([row for row, _ in found], dtype=np.int64)
        self._starts = [start for _, start in found]
        self._ends = [min(start + most + 1, int(lengths[row])) for row, start in found]
        self.columns = min(most, int(lengths.max()) - 1)

    @property
    def numbered(self) -> Tokens:
        """What `language_model.batches` draws pieces from, by windows of 1, none of which begins at the last two."""
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
    """Return ids (any) that a model can read; those behind a text's end are seen by nothing that counts."""
    return tokens.clamp(min=0)


def _starts(length: int, most: int) -> Iterator[int]:
    """Yield where pieces of a text begin; the last one ends where the text does."""
    for start in range(0, max(length - 1, 1), most):
        yield min(start, max(length - most - 1, 0))
