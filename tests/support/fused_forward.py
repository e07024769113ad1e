"""A forward by kernels of ours, of a tiny model that is made where Triton runs: on the GPU or in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from spectune.runtime.models.choices import Choices, Work
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kernels import row_products
from spectune.runtime.models.kernels.row_products import Tile
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.products import FusedProducts
from spectune.runtime.models.static_input import StaticInput

from .tiny_models import tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 128}
ROOM = 19  # behind a text
WIDE_TILES = (Tile(columns=32, warps=1), Tile(columns=64, warps=1))  # few programs: an interpreter is slow at each


class Favouring:
    """A timer that does all work and finds the last way the fastest, or the first."""

    def __init__(self, *, last: bool) -> None:
        self._last = last

    def is_capturing(self) -> bool:
        return False

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        for work in works:
            between()
            work()
        times = [float(place) for place in range(1, len(works) + 1)]
        return times[::-1] if self._last else times


def tiny_lean(family: str, dtype: torch.dtype, device: torch.device, **sizes: int) -> LeanModel:
    """Return a random model of a family, the same in every process."""
    model: Any = tiny_model(family, **(SIZES | sizes))  # transformers types the self of its `to` as a dtype
    return LeanModel(model.to(dtype).to(device))


def step_of(model: CausalModel, tokens: Tensor, *, by_tree: bool, context: int = 5) -> ForwardInput:
    """Return a forward of one row of tokens behind a text, each of which sees those before it."""
    count = tokens.shape[1]
    return lay_out(
        tokens.cpu().numpy(),
        np.arange(count),
        [context],
        np.tri(count, dtype=np.bool_)[None],
        take=None,
        dtype=model.dtype,
        device=model.device,
        seen_in=(lambda positions: context + ROOM) if by_tree else None,
    )


def logits_of(model: CausalModel, text: Tensor, step: ForwardInput) -> Tensor:
    """Return (1, n, vocabulary) behind a text (1, any)."""
    context = text.shape[1]
    cache = model.new_cache(1, context + ROOM)
    before = lay_out(
        text.cpu().numpy(),
        np.arange(context),
        [0],
        np.tri(context, dtype=np.bool_)[None],
        take=None,
        dtype=model.dtype,
        device=model.device,
    )
    model.forward(before, cache)
    return model.forward(step, cache)


def forward_by_kernels(
    text: Tensor, tokens: Tensor, ways: Tensor, *, family: str, dtype: torch.dtype, last: bool, **sizes: int
) -> Tensor:
    """Return logits of the fused path; `ways` (any,) is filled with the ways its kinds of products were done in."""
    model, choices = tiny_lean(family, dtype, text.device, **sizes), Choices(Favouring(last=last))
    model.reads_trees, model.products = True, FusedProducts(model.anatomy, choices)
    with mock.patch.object(row_products, "TILES", WIDE_TILES):
        step = step_of(model, tokens, by_tree=True, context=text.shape[1])
        logits = logits_of(model, text, StaticInput(step, model.device).step)  # which lies where the model does
    kept = list(choices.kept.values())
    ways[: len(kept)] = torch.tensor(kept, dtype=ways.dtype)
    return logits
