"""Which token of a forward another one continues, by what it sees."""

from __future__ import annotations

import torch
from torch import Tensor

from .forward import WORD, ForwardInput, TreeMask


def parents_of(step: ForwardInput) -> Tensor:
    """Return (batch, n): the cache column of the last token before each that it sees; 0 where there is none."""
    if step.tree is not None:
        return _parents_in(step.tree, step.columns)
    if step.bias is None:
        return (step.columns - 1).clamp(min=0)
    columns = torch.arange(step.seen, device=step.columns.device)
    is_before = (step.bias > -torch.inf) & (columns < step.columns.unsqueeze(2))
    return torch.where(is_before, columns, 0).amax(dim=-1)


def _parents_in(tree: TreeMask, columns: Tensor) -> Tensor:
    starts, lanes = tree.starts.unsqueeze(1), torch.arange(WORD, device=columns.device)
    is_seen = ((tree.bits.unsqueeze(3) >> lanes) & 1).flatten(2).bool()
    places = torch.arange(is_seen.shape[2], device=columns.device)
    is_before = is_seen & (places < (columns - starts).unsqueeze(2))
    return (starts + torch.where(is_before, places, -1).amax(dim=2)).clamp(min=0)  # -1: the last of the text before it
