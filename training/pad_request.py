"""The request to train a pivot classifier, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import TrainingError
from ..planner.records.pad_rule import FLOOR
from .pad_labels import RolloutSettings
from .settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A problem: the tokens of its prompt, and the words that a right text ends with."""

    prompt: tuple[int, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PadRequest:
    """The classifier to train, and its exercises.

    Attributes:
        files: sources of the exercises, for the card.
        reads: layers of the target before the hidden state; 0: `usual_reads`.
        least_share: alpha; a token is no pivot if it preserves this share of the plain rollouts' right answers.
        floor: least probability of a candidate.
        held_out: share of the problems that is not trained on.
        recall: share of the pivots that the recommended threshold rejects.
        settings: of the training; `sequence_tokens` is ignored.
        dtype: in which the target decodes.
    """

    target: Path
    drafter: Path
    exercises: tuple[Exercise, ...]
    files: tuple[str, ...]
    rollouts: RolloutSettings
    settings: TrainingSettings
    max_new_tokens: int = 128
    reads: int = 0
    width: int = 256
    least_share: float = 0.9
    floor: float = FLOOR
    held_out: float = 0.25
    recall: float = 0.95
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if len(self.exercises) < 2 or not all(each.prompt and each.answer.strip() for each in self.exercises):
            raise TrainingError(
                "pivots are labelled on problems whose answers are known, two or more; give a .jsonl file whose every "
                'line has "prompt" and "answer"'
            )
        if self.max_new_tokens < 2 or self.reads < 0 or self.width < 1:
            raise TrainingError(
                f"need max_new_tokens >= 2, reads >= 0 and width >= 1, got {self.max_new_tokens}, {self.reads} and "
                f"{self.width}"
            )
        if not 0.0 < self.least_share <= 1.0 or not 0.0 <= self.floor <= 1.0:
            raise TrainingError(
                f"need least_share in (0, 1] and a floor in [0, 1], got {self.least_share} and {self.floor}"
            )
        if not 0.0 < self.held_out < 1.0 or not 0.0 < self.recall <= 1.0:
            raise TrainingError(f"need held_out in (0, 1) and recall in (0, 1], got {self.held_out} and {self.recall}")


def usual_reads(layers: int) -> int:
    """Return the default number of layers before the hidden state: the published 8th last, or the middle."""
    return max(layers - 7, layers // 2, 1)
