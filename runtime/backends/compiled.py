"""Compiled calls of a round, loaded before the first one."""

from __future__ import annotations

import numpy as np
import torch

from ...planner.records.draft import ROOT_TOKEN, DraftBatch
from ..batch.faults import require_sound
from ..batch.sequence import Request, Sequence
from ..kernels.trees import hear, move_rows
from ..models.bits import BITS, bits
from ..models.layout import Masks
from ..sampling.acceptance import accepted_by, accepted_of
from ..sampling.sampler import draw, draws_of
from .tree_input import TreeInput


def prepare(dtype: torch.dtype, device: torch.device) -> None:
    """Load and compile what checks and lays out drafted trees, so that no round waits; once a process."""
    numbers = np.array([[[ROOT_TOKEN, 0]], [[-1, 0]], [[0, 1]]], dtype=np.int64)
    tokens, parents, depths = numbers
    draft = DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=np.array([2]), widths=())
    require_sound(draft, 1, vocabulary=1, most=2)
    masks = Masks(dtype, device)
    masks.prepare()
    trees = TreeInput([Sequence(Request(prompt=(0,), max_new_tokens=1), 0)], draft, 2)
    trees.laid_out(masks)
    if device.type != "cpu":
        trees.laid_out(masks, seen_in=lambda positions: positions)
        accepted_of(np.zeros((1, 2), dtype=np.int64), draft)
        hear(np.array([[*numbers.ravel(), 2, 0, 0, 0]]), 2, 2, 1, np.zeros((1, 3), dtype=np.int64))
    if device.type == "cpu":
        move_rows(np.zeros((1, 1, 1), dtype=np.uint8), np.zeros((2, 1), dtype=np.int64))
        if dtype in BITS:
            scores = torch.zeros((1, 2, 1), dtype=dtype)
            sampled = Sequence(Request(prompt=(0,), max_new_tokens=1, temperature=1.0, top_k=1), 0)
            accepted_by(bits(scores), draws_of([sampled]), draft)
            draw(scores, [sampled], depths)
