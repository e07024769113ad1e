"""A training run on disk: a resumed run yields the same numbers as an uninterrupted one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Checkpoint:
    """One file with weights, optimizers and torch's random state on the host, replaced as a whole."""

    EVERY = 20  # steps between two files

    def __init__(self, path: Path, every: int = EVERY) -> None:
        """Write the run to a file, once every so many steps."""
        self.losses: list[float] = []  # of every step so far, what was restored included
        self._path, self._every = path, every

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
        }
        with partial.open("wb") as file:  # a full disk is then an OSError; of a path torch makes a RuntimeError
            torch.save(kept, file)
        partial.replace(self._path)
