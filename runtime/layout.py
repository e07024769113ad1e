"""Lay new tokens of several sequences out for one forward: positions, cache columns, mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .models.forward import ForwardInput

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def lay_out(
    tokens: Ints,
    depths: Ints,
    contexts: Sequence[int],
    visible: Bools,
    *,
    dtype: torch.dtype,
    device: torch.device,
    written: int = 0,
    take: Ints | None = None,
    first_slot: int = 0,
) -> ForwardInput:
    """Return the forward's input for new nodes behind each row's context.

    Args:
        tokens: (batch, n) ids.
        depths: (batch, n) or (n,), distance from the first token behind the context.
        contexts: (batch,) committed tokens in the cache, per row.
        visible: (batch or 1, n, written + n), which of the nodes behind the context each sees.
        dtype: of the mask, the model's.
        device: the model's.
        written: nodes behind the context that are in the cache already.
        take: (batch,) the only token of each row whose output is wanted.
        first_slot: cache slot of row 0.
    """
    count = tokens.shape[1]
    starts = np.asarray(contexts, dtype=np.int64)[:, None]
    seen = int(starts.max()) + written + count
    columns = starts + np.arange(written, written + count)
    return ForwardInput(
        tokens=torch.from_numpy(np.ascontiguousarray(tokens)).to(device),
        positions=torch.from_numpy(starts + depths).to(device),
        columns=torch.from_numpy(columns).to(device),
        bias=_bias(contexts, visible, seen, dtype, device),
        seen=seen,
        take=None if take is None else torch.from_numpy(take).to(device),
        first_slot=first_slot,
    )


def _bias(
    contexts: Sequence[int], visible: Bools, seen: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Return (batch, n, seen): 0 on the context and the visible nodes, -inf elsewhere."""
    behind = visible.shape[2]
    if len(set(contexts)) == 1 and bool(visible.all()):
        return None
    bias = np.full((len(contexts), visible.shape[1], seen), -np.inf, dtype=np.float32)
    opened = np.where(visible, np.float32(0.0), np.float32(-np.inf))
    for row, context in enumerate(contexts):
        bias[row, :, :context] = 0.0
        bias[row, :, context : context + behind] = opened[row if len(opened) > 1 else 0]
    return torch.from_numpy(bias).to(device=device, dtype=dtype)


def ancestors(parents: Ints) -> Bools:
    """Return (batch, n, n): True where a node sees itself or an ancestor.

    Args:
        parents: (batch, n), parents before children; the root's is -1.
    """
    batch, count = parents.shape
    sees = np.zeros((batch, count, count), dtype=np.bool_)
    sees[:, np.arange(count), np.arange(count)] = True
    rows = np.arange(batch)
    for node in range(1, count):
        sees[:, node] |= sees[rows, parents[:, node]]
    return sees
