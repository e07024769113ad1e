"""The settings of one training run."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TrainingError


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

    def lr_factor(self, step: int) -> float:
        """Return the learning-rate multiplier in [0, 1] for a step counted from 0."""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        left = (self.steps - step) / max(self.decay_share * self.steps, 1.0)
        return min(warm, left, 1.0)
