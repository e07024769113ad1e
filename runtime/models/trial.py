"""Whether our kernels run on a GPU for a model's shapes: each is launched once, on next to nothing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..batch.faults import is_out_of_memory
from .anatomy import Anatomy
from .kernels.fused_rows import gated, normed
from .kernels.jitted import launch_errors
from .kernels.tree_attention import WORD, attend_tree, is_supported
from .kernels.tree_cuts import MOST_LINES

ROWS, CAPACITY = 2, 64
REFUSED = "kernels for this model's shapes do not run on this GPU, so torch's are taken, which are slower"


def reads_trees(anatomy: Anatomy) -> bool:
    """Return whether our kernels can run a model's forwards from trees instead of masks."""
    if anatomy.attention_cap is not None:
        return False
    device, dtype = anatomy.embedding.device, anatomy.embedding.dtype
    if not is_supported(device, dtype, anatomy.size):
        return False
    kernels = _Kernels(
        heads=anatomy.heads,
        kv_heads=anatomy.kv_heads,
        size=anatomy.size,
        is_normed=any(layer.head_norm is not None for layer in anatomy.layers),
        windows=frozenset(sight.window and WORD for sight in anatomy.sights),
        hides_first=anatomy.hides_first,
    )
    return _run(device, dtype, kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """What the kernels of a model are compiled for."""

    heads: int
    kv_heads: int
    size: int
    is_normed: bool  # queries and keys, head by head
    windows: frozenset[int | None]  # of layers: none, or one, whose length they are not compiled for
    hides_first: bool  # whether a text's first token is seen by itself alone


@lru_cache
def _run(device: torch.device, dtype: torch.dtype, kernels: _Kernels) -> bool:
    """Return whether all of them run, with a warning if not; RuntimeError where memory is short, which says nothing."""
    try:
        with torch.cuda.device(device), torch.inference_mode():
            _try(device, dtype, kernels)
    except launch_errors() as error:
        if is_out_of_memory(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        warnings.warn(f"{REFUSED} ({first_line})", RuntimeWarning, stacklevel=2)
        return False
    return True


def _try(device: torch.device, dtype: torch.dtype, kernels: _Kernels) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    heads, kv_heads, size = kernels.heads, kernels.kv_heads, kernels.size
    weight = zeros(heads + kv_heads, size) if kernels.is_normed else None

    def attend(rows: int, window: int | None, splits: int) -> None:
        places = torch.arange(rows, device=device).view(1, rows)
        bits = torch.ones((1, rows, 1), dtype=torch.int64, device=device)
        attend_tree(
            zeros(rows, (heads + 2 * kv_heads) * size), zeros(1, CAPACITY, 2 * kv_heads * size), places[0, :1].clone(),
            bits, places, places, zeros(rows, 2 * size), weight,
            heads=heads, kv_heads=kv_heads, scale=1.0, eps=1.0, window=window, splits=splits,
            hides_first=kernels.hides_first,
        )  # fmt: skip

    for window in kernels.windows:
        for splits in (1, 2):  # alone, and put together
            attend(ROWS, window, splits)
        attend(MOST_LINES, window, 2)
    normed(gated(zeros(ROWS, 2 * size)), zeros(size), 1.0)
