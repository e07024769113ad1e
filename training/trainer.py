"""The trainer: batches, schedule, optimisers and checkpoints of a run, and the loop over its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import TrainingError
from ..profiler.device import detect
from .muon import Muon


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Size, length and learning rates of a run; the schedule is warm-up, flat, linear decay."""

    steps: int
    batch: int  # sequences a step
    sequence_tokens: int
    matrix_lr: float = 2e-3  # Muon, for every hidden matrix
    other_lr: float = 2e-3  # AdamW, for embeddings and norms
    warmup_steps: int = 50
    decay_share: float = 0.4  # of the steps, at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.sequence_tokens) < 1:
            raise TrainingError(f"{self}: steps, batch and sequence_tokens must be at least 1")
        if not 0.0 < self.decay_share <= 1.0:
            raise TrainingError(f"decay_share must be in (0, 1], got {self.decay_share}")

    def lr_factor(self, step: int, spent: float = 0.0) -> float:
        """Return the learning-rate multiplier in [0, 1] for a step counted from 0; `spent` is the share of the time."""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        left = (self.steps - step) / max(self.decay_share * self.steps, 1.0)
        return min(warm, left, (1.0 - spent) / self.decay_share, 1.0)


class Checkpoint:
    """One file with weights, optimizers, torch's random state on the host and the time spent, replaced as a whole.

    `limit_s` ends a run early: its learning rates then decay by time.
    """

    EVERY = 20  # steps between two files

    def __init__(self, path: Path, every: int = EVERY) -> None:
        """Write the run to a file, once every so many steps."""
        self.losses: list[float] = []  # of every step so far, what was restored included
        self.began, self.limit_s = time.monotonic(), math.inf  # as if all earlier runs had been part of this one
        self._path, self._every = path, every

    @property
    def seconds(self) -> float:
        """The time spent, up to the checkpoints of earlier runs."""
        return time.monotonic() - self.began

    @property
    def spent(self) -> float:
        """The share of the time limit that is spent, at most 1."""
        return min(self.seconds / self.limit_s, 1.0)

    def restore(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
        """Load the file; return how many steps it had done, 0 without a file."""
        if not self._path.exists():
            return 0
        kept: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        model.load_state_dict(kept["model"])
        for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        torch.set_rng_state(kept["generator"])
        self.losses = list(kept["losses"])
        self.began -= kept.get("seconds", 0.0)  # older files lack it
        return len(self.losses)

    def keep(self, loss: float, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Add a step's loss, and write the run if it is time; OSError if that fails."""
        self.losses.append(loss)
        if len(self.losses) % self._every:
            return
        partial = self._path.with_suffix(".partial")
        kept = {
            "losses": self.losses,
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "generator": torch.get_rng_state(),
            "seconds": self.seconds,
        }
        with partial.open("wb") as file:  # a full disk is then an OSError; of a path torch makes a RuntimeError
            torch.save(kept, file)
        partial.replace(self._path)


Tokens = NDArray[np.integer[Any]]  # ids, of any size
Loss = Callable[[Tensor], Tensor]  # (batch, sequence_tokens + 1) token ids -> scalar loss


def train(
    model: nn.Module, loss: Loss, tokens: Tokens, settings: TrainingSettings, checkpoint: Checkpoint | None = None
) -> Iterator[float]:
    """Train `model` in place, yielding the loss of each step; a loss takes (batch, sequence_tokens + 1) ids.

    Muon updates hidden matrices, AdamW embeddings and norms; weights are fp32, products bf16 where the device
    multiplies that at full speed. Steps in the checkpoint are neither repeated nor yielded, and none begins after its
    time limit. TrainingError where a loss is not finite.

    Source: Muon, Jordan et al. 2024; the update-size match to AdamW, Liu et al. 2025, arXiv:2502.16982.
    """
    device = next(model.parameters()).device
    is_narrow = multiplies_bfloat16(device)
    optimizers = _optimizers(model, settings, torch.bfloat16 if is_narrow else torch.float32)
    base_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    model.train()
    done = 0 if checkpoint is None else checkpoint.restore(model, optimizers)
    for step, batch in enumerate(each.to(device) for each in batches(tokens, settings)):
        if step < done:
            continue
        spent = 0.0 if checkpoint is None else checkpoint.spent
        if spent >= 1.0:
            break
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, base_rates, strict=True):
            group["lr"] = rate * settings.lr_factor(step, spent)
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


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 at full speed."""
    return detect("cpu" if device.type == "cpu" else f"cuda:{device.index or 0}").native_dtype == "bfloat16"


def _optimizers(model: nn.Module, settings: TrainingSettings, products: torch.dtype) -> list[torch.optim.Optimizer]:
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embeddings]
    return [
        Muon(matrices, lr=settings.matrix_lr, weight_decay=0.1, dtype=products),
        torch.optim.AdamW(others, lr=settings.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
