"""The folder of a trained block drafter: weights, config.json, and a card for people and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..runtime.models.block_shape import BlockShape, block_config

NAMES = {"medusa": "Medusa heads", "ctc": "A CTC drafter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCard:
    """How a block drafter was trained, and how good it is.

    Attributes:
        losses: of every step.
        acceptance: chance that token k of a greedy chain is accepted, given that those before it were.
        tokens_per_round: of such chains, `depth` long, along greedy continuations of other pieces of the files.
        seconds: of the run that finished it; what stopped runs did before is not counted.
    """

    kind: str
    target: str
    target_hash: str
    reads: tuple[int, ...]
    depth: int
    frames: int
    parameters: int
    files: tuple[str, ...]
    own_texts: int
    own_tokens: int
    steps: int
    batch: int
    anchors: int
    seed: int
    losses: tuple[float, ...]
    acceptance: tuple[float, ...]
    tokens_per_round: float
    rounds: int
    seconds: float


def save_block(folder: Path, tensors: Mapping[str, Tensor], shape: BlockShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    written = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in tensors.items()}
    save_file(written, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(block_config(shape), indent=2, sort_keys=True) + "\n")


def save_block_card(folder: Path, card: BlockCard) -> None:
    """Write card.json and card.md."""
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=1) + "\n")
    (folder / "card.md").write_text(_page(card))


def _page(card: BlockCard) -> str:
    depths = " | ".join(str(depth) for depth in range(1, len(card.acceptance) + 1))
    chances = " | ".join(f"{chance:.1%}" for chance in card.acceptance)
    last = card.losses[-20:]
    frames = f" {card.frames} frames." if card.frames else ""
    return f"""# {NAMES[card.kind]} for `{card.target}`

Says up to {card.depth} tokens in one forward.{frames} Reads the target's hidden states after
{", ".join(map(str, card.reads))} layers. {card.parameters:,} parameters of its own; the language-model head is the
target's. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.anchors} places in texts, seed {card.seed}, on
{card.own_tokens:,} tokens that the target wrote itself: {card.own_texts:,} texts, prompts from {len(card.files)} files.
Loss of the first step {card.losses[0]:.3f}, mean of the last {len(last)} {sum(last) / len(last):.3f}.
{card.seconds:.0f} seconds in the run that finished it.

**Acceptance** of greedy chains, token by token, given the tokens before it; {card.rounds:,} rounds,
{card.tokens_per_round:.2f} tokens a round:

| depth | {depths} |
|---|{"--:|" * len(card.acceptance)}
| accepted | {chances} |
"""
