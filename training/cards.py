"""Common to the folders of trained drafters: weights in bf16, and a card with their quality."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(ABC):
    """How good a drafter is that was made of its target's own text."""

    target: str
    target_hash: str
    files: tuple[str, ...]
    acceptance: tuple[float, ...]  # chance that token k of a greedy chain is accepted, given that those before it were
    tokens_per_round: float  # of chains as long as `acceptance`, along greedy texts from held-out prompts
    rounds: int
    seconds: float  # of all runs, but for what stopped ones did after their checkpoints

    @property
    @abstractmethod
    def page(self) -> str:
        """The card for people, in Markdown."""

    @property
    def table(self) -> str:
        """The acceptance by depth, in Markdown."""
        depths = " | ".join(str(depth) for depth in range(1, len(self.acceptance) + 1))
        chances = " | ".join(f"{chance:.1%}" for chance in self.acceptance)
        return f"""**Acceptance** of greedy chains, token by token, given the tokens before it; {self.rounds:,} rounds,
{self.tokens_per_round:.2f} tokens a round:

| depth | {depths} |
|---|{"--:|" * len(self.acceptance)}
| accepted | {chances} |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCard(Card):
    """How a drafter that reads the target's hidden states was trained, and how good it is."""

    reads: tuple[int, ...]  # layers passed by each hidden state that it reads
    parameters: int
    own_texts: int
    own_tokens: int
    steps: int
    batch: int
    seed: int
    losses: tuple[float, ...]

    @property
    def origin(self) -> str:
        """The source of its texts."""
        texts = f"{self.own_texts:,} texts, prompts from {len(self.files)} files"
        return f"{self.own_tokens:,} tokens that the target wrote itself: {texts}"

    @property
    def course(self) -> str:
        """The course of the loss, and the duration."""
        return course_of(self.losses, self.seconds)


class Paged(Protocol):
    """A dataclass with a page for people."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # what makes it one; Any: typeshed's own type of it

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""


def course_of(losses: Sequence[float], seconds: float) -> str:
    """Return the course of a loss, and a training's duration, in words."""
    last = losses[-20:]
    mean = sum(last) / len(last)
    return f"Loss of the first step {losses[0]:.3f}, mean of the last\n{len(last)} {mean:.3f}. {seconds:.0f} seconds."


def save_card(folder: Path, card: Paged) -> None:
    """Write card.json and card.md."""
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=1) + "\n")
    (folder / "card.md").write_text(card.page)


def save_weights(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write model.safetensors, floating point in bf16, and config.json."""
    written = {
        name: (each.to(torch.bfloat16) if each.is_floating_point() else each).detach().cpu().contiguous()
        for name, each in tensors.items()
    }
    save_file(written, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
