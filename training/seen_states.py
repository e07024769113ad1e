"""Input vectors of texts with images, for a transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..planner.records.image_ids import IMAGE_IDS
from ..runtime.images import Image
from ..runtime.models.anatomy import text_part
from ..runtime.models.gallery import table_rows
from ..runtime.models.vision import Eyes, lens_of


class SeenStates:
    """Input vectors of texts with images, for a transformers model."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Share the weights of a model that sees; the folder has its pixel preprocessing."""
        self._eyes = Eyes(model.model, lens_of(model.config, folder))
        self._embedding: Tensor = text_part(model).base.embed_tokens.weight

    def vectors(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return (batch, columns, hidden) for ids (batch, columns), each row's with its own images."""
        counts = [len(row) for row in images]
        before = torch.tensor(np.cumsum([0, *counts[:-1]])) * self._eyes.tokens.size
        own = ids + torch.where(ids >= IMAGE_IDS, before.to(ids.device)[:, None], 0)
        shown = [image for row in images for image in row]
        table = self._embedding
        if shown:
            table = torch.cat((table, self._eyes.rows(shown).flatten(0, 1).to(table)))
        return F.embedding(table_rows(own.clamp(min=0), len(self._embedding)), table)
