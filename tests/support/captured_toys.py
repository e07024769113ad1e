"""Drafts as captured work records them, of a model whose numbers are the same wherever they are computed."""

from __future__ import annotations

from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

from spectune.planner.strategies import TreePolicy
from spectune.runtime.growth import captured
from spectune.runtime.growth.captured import CapturedGrowth, is_supported
from spectune.runtime.growth.grow import grow_on_device
from spectune.runtime.models.forward import ForwardInput, TreeMask
from spectune.runtime.models.graphed import GraphedModel
from spectune.runtime.models.kernels import children
from spectune.runtime.models.kv_cache import KeyValueCache

from .repeated import Repeating

Way = Literal["no kernels", "children", "all"]
CAPACITY = 160
READ = 3  # tokens of every row that are read before a draft, padding included
BROKEN = 5  # a token behind which a broken model has a logit that is no number


class CountingModel:
    """Logits of whole eighths, which hang on all tokens that a node sees and on where it stands."""

    attention, gallery, longest_context = "tree", None, CAPACITY

    def __init__(self, weights: Tensor, batch: int, *, is_broken: bool) -> None:
        """Add up lines of (tokens, vocabulary)."""
        self.weights, self.is_broken = weights, is_broken
        self.device, self.dtype, self.vocabulary = weights.device, weights.dtype, weights.shape[1]
        self.texts = torch.zeros(batch, CAPACITY, dtype=torch.int64, device=weights.device)

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        assert step.tree is not None
        self.texts.scatter_(1, step.columns, step.tokens)
        lines = self.weights.float()
        sees = (step.tree.bias(step.seen, torch.float32) == 0).float()
        sums = sees @ lines[self.texts[:, : step.seen] % len(lines)] + lines[step.positions % len(lines)]
        if self.is_broken:
            sums[..., 0] = sums[..., 0].masked_fill(step.tokens == BROKEN, torch.nan)
        if step.take is not None:
            sums = sums[torch.arange(len(sums), device=sums.device), step.take].unsqueeze(1)
        return (sums / 8).to(self.dtype)


def drawn_weights(vocabulary: int, *, seed: int, most: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return whole numbers, (7, vocabulary): the smaller they are, the more scores are equal."""
    return torch.randint(-most, most + 1, (7, vocabulary), generator=torch.Generator().manual_seed(seed)).to(dtype)


def drafted(weights: Tensor, *, policy: TreePolicy, batch: int, way: Way, is_broken: bool = False) -> Tensor:
    """Return the numbers of a recorded draft behind texts of different lengths, then its widths.

    Args:
        weights: of a `CountingModel`.
        policy: one that is captured.
        batch: rows.
        way: what kernels do, where they run: nothing, find children, or for EAGLE-2 all between forwards.
        is_broken: see `CountingModel`.
    """
    model: Any = CountingModel(weights, batch, is_broken=is_broken)
    rows = torch.arange(batch, device=weights.device)
    starts, places = 4 + 2 * rows, torch.arange(READ, device=weights.device)
    longest = 4 + 2 * batch + READ
    chain = places.new_tensor([(2 << place) - 1 for place in range(READ)]).view(1, READ, 1)
    step = ForwardInput(
        tokens=(rows.unsqueeze(1) + places) % model.vocabulary,
        positions=starts.unsqueeze(1) + places,
        columns=starts.unsqueeze(1) + places,
        bias=None,
        seen=CAPACITY,
        take=rows % READ,
        tree=TreeMask(starts=starts, bits=chain.expand(batch, -1, -1).contiguous()),
    )
    cache = KeyValueCache(layers=1, slots=batch, capacity=CAPACITY, width=1, dtype=torch.float32, device=weights.device)
    growth = CapturedGrowth(GraphedModel(model, Repeating()), cache, lambda _: CAPACITY)
    with (
        mock.patch.object(children, "runs_triton", return_value=way != "no kernels"),
        mock.patch.object(captured, "is_supported", wraps=is_supported if way == "all" else lambda *_: False),
        mock.patch.object(captured, "grow_on_device", wraps=grow_on_device) as as_tensors,
    ):
        draft = growth.record(lambda: step, torch.clone, longest=longest, policy=policy, seen=CAPACITY)
    assert as_tensors.called == (way != "all")
    return torch.cat((draft.numbers.flatten(), draft.numbers.new_tensor(draft.widths)))
