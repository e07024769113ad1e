"""The folder of a trained block drafter: weights, config.json, and a card for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..runtime.models.block_shape import BlockShape, block_config
from .cards import Card, save_card, save_weights

NAMES = {"medusa": "Medusa heads", "ctc": "A CTC drafter", "specformer": "A SpecFormer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCard(Card):
    """How a block drafter was trained, and how good it is; `frames` is 0 where it has none."""

    kind: str
    depth: int
    frames: int
    anchors: int


def save_block(folder: Path, tensors: Mapping[str, Tensor], shape: BlockShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    save_weights(folder, tensors, block_config(shape))


def save_block_card(folder: Path, card: BlockCard) -> None:
    """Write card.json and card.md."""
    frames = f" {card.frames} frames." if card.frames else ""
    page = f"""# {NAMES[card.kind]} for `{card.target}`

Says up to {card.depth} tokens in one forward.{frames} Reads the target's hidden states after
{", ".join(map(str, card.reads))} layers. {card.parameters:,} parameters of its own; the language-model head is the
target's. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.anchors} places in texts, seed {card.seed}, on
{card.origin}.
{card.course}

{card.table}"""
    save_card(folder, card, page)
