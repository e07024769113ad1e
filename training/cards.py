"""Common to the folders of trained drafters: weights in bf16, and a card with their quality."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(ABC):
    """How a drafter that reads the target's hidden states was trained, and how good it is."""

    target: str
    target_hash: str
    reads: tuple[int, ...]  # layers passed by each hidden state that it reads
    parameters: int
    files: tuple[str, ...]
    own_texts: int
    own_tokens: int
    steps: int
    batch: int
    seed: int
    losses: tuple[float, ...]
    acceptance: tuple[float, ...]  # chance that token k of a greedy chain is accepted, given that those before it were
    tokens_per_round: float  # of chains as long as `acceptance`, along greedy texts from held-out prompts
    rounds: int
    seconds: float  # of the run that finished it, without earlier stopped runs

    @property
    @abstractmethod
    def page(self) -> str:
        """The card for people, in Markdown."""

    @property
    def origin(self) -> str:
        """The source of its texts."""
        texts = f"{self.own_texts:,} texts, prompts from {len(self.files)} files"
        return f"{self.own_tokens:,} tokens that the target wrote itself: {texts}"

    @property
    def course(self) -> str:
        """The course of the loss, and the duration."""
        last = self.losses[-20:]
        mean = sum(last) / len(last)
        return (
            f"Loss of the first step {self.losses[0]:.3f}, mean of the last\n{len(last)} {mean:.3f}. "
            f"{self.seconds:.0f} seconds in the run that finished it."
        )

    @property
    def table(self) -> str:
        """The acceptance by depth, in Markdown."""
        return acceptance_table(self.acceptance, self.tokens_per_round, self.rounds)


def acceptance_table(acceptance: Sequence[float], tokens_per_round: float, rounds: int) -> str:
    """Return the acceptance of greedy chains by depth, in Markdown."""
    depths = " | ".join(str(depth) for depth in range(1, len(acceptance) + 1))
    chances = " | ".join(f"{chance:.1%}" for chance in acceptance)
    return f"""**Acceptance** of greedy chains, token by token, given the tokens before it; {rounds:,} rounds,
{tokens_per_round:.2f} tokens a round:

| depth | {depths} |
|---|{"--:|" * len(acceptance)}
| accepted | {chances} |
"""


def save_card(folder: Path, card: Card) -> None:
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
