"""The folder of a trained exit drafter: weights, config.json, and a card for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..runtime.models.exit_shape import ExitShape, exit_config
from .cards import Card, save_card, save_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCard(Card):
    """How an exit's imitation network was trained, and how good it is; `layers` of the target's `of_layers` draft."""

    layers: int
    of_layers: int
    width: int
    sequence_tokens: int


def save_exit(folder: Path, tensors: Mapping[str, Tensor], shape: ExitShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    save_weights(folder, tensors, exit_config(shape))


def save_exit_card(folder: Path, card: ExitCard) -> None:
    """Write card.json and card.md."""
    page = f"""# An exit after {card.layers} of {card.of_layers} layers of `{card.target}`

The target's own first {card.layers} layers draft, behind an imitation network of width {card.width}.
{card.parameters:,} parameters of its own; all others are the target's. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.sequence_tokens} tokens, seed {card.seed}, on
{card.origin}.
{card.course}

{card.table}"""
    save_card(folder, card, page)
