"""Train a causal language model on a flat array of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import TrainingError
from ..profiler.device import detect
from .checkpoint import Checkpoint
from .muon import Muon
from .settings import TrainingSettings

Tokens = NDArray[np.integer[Any]]  # ids, of any size
Loss = Callable[[Tensor], Tensor]  # (batch, sequence_tokens + 1) token ids -> scalar loss


def train(
    model: nn.Module, loss: Loss, tokens: Tokens, settings: TrainingSettings, checkpoint: Checkpoint | None = None
) -> Iterator[float]:
    """Train `model` in place, yielding the loss of each step; a loss takes (batch, sequence_tokens + 1) ids.

    Muon updates hidden matrices, AdamW embeddings and norms; weights are fp32, products bf16 where the device
    multiplies that at full speed. Steps in the checkpoint are neither repeated nor yielded.

    Raises:
        TrainingError: a loss is not finite.

    Source: Muon, Jordan et al. 2024; the update-size match to AdamW, Liu et al. 2025, arXiv:2502.16982.
    """
    device = next(model.parameters()).device
    is_narrow = detect(_name_of(device)).native_dtype == "bfloat16"
    optimizers = _optimizers(model, settings, torch.bfloat16 if is_narrow else torch.float32)
    base_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    model.train()
    done = 0 if checkpoint is None else checkpoint.restore(model, optimizers)
    for step, batch in enumerate(each.to(device) for each in batches(tokens, settings)):
        if step < done:
            continue
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, base_rates, strict=True):
            group["lr"] = rate * settings.lr_factor(step)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_narrow):
            value = loss(batch)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        found = float(value.detach())
        if not math.isfinite(found):
            raise TrainingError(
                f"the loss of step {step + 1} is {found}, of which nothing is learned; look whether the target writes "
                "sense in float32 and whether its texts hold tokens to learn from"
            )
        if checkpoint is not None:
            checkpoint.keep(found, model, optimizers)
        yield found
    model.eval()


def batches(tokens: Tokens, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield windows (batch, sequence_tokens + 1), reshuffled every epoch; TrainingError for too few tokens."""
    rng = np.random.default_rng(settings.seed)
    width = settings.sequence_tokens
    if len(tokens) <= 2 * width:
        raise TrainingError(f"{len(tokens)} tokens are too few for windows of {width}; give more text or train shorter")
    pending: list[int] = []
    for _ in range(settings.steps):
        while len(pending) < settings.batch:
            starts = np.arange(int(rng.integers(width)), len(tokens) - width - 1, width)
            rng.shuffle(starts)
            pending.extend(starts.tolist())
        chosen, pending = pending[: settings.batch], pending[settings.batch :]
        yield torch.from_numpy(np.stack([tokens[s : s + width + 1] for s in chosen]).astype(np.int64))


def _name_of(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"


def _optimizers(model: nn.Module, settings: TrainingSettings, products: torch.dtype) -> list[torch.optim.Optimizer]:
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embeddings]
    return [
        Muon(matrices, lr=settings.matrix_lr, weight_decay=0.1, dtype=products),
        torch.optim.AdamW(others, lr=settings.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
