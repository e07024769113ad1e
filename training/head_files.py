"""The folder of a trained head: weights by their published names, config.json, and a card for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..runtime.models.config_file import OWN
from ..runtime.models.eagle_shape import HeadShape
from .cards import Card, save_card, save_weights
from .eagle_module import HeadModule

ARCHITECTURES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
NAMES = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard(Card):
    """How a head was trained, and how good it is."""

    form: str
    draft_vocabulary: int
    sequence_tokens: int
    test_steps: int


def save_head(folder: Path, head: HeadModule, shape: HeadShape, draft_ids: Tensor) -> None:
    """Write model.safetensors, bf16, and config.json; `draft_ids` are those of form "eagle3", increasing."""
    tensors = dict(head.state_dict())
    config = shape.config.to_dict() | {"architectures": [ARCHITECTURES[shape.form]]}
    if shape.form == "eagle3":
        ids = draft_ids.cpu()
        can_draft = torch.zeros(int(shape.config.vocab_size or 0), dtype=torch.bool)
        can_draft[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": can_draft}
        config["draft_vocab_size"] = len(ids)
    config[OWN] = {"reads": list(shape.reads), "target": shape.target}
    save_weights(folder, tensors, config)


def save_head_card(folder: Path, card: HeadCard) -> None:
    """Write card.json and card.md."""
    page = f"""# A head of form {NAMES[card.form]} for `{card.target}`

Reads the target's hidden states after {", ".join(map(str, card.reads))} layers. {card.parameters:,} parameters of its
own, {card.draft_vocabulary:,} tokens it can draft. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.sequence_tokens} tokens, seed {card.seed}, on
{card.origin}.
Steps of the training-time test: {card.test_steps}. {card.course}

{card.table}"""
    save_card(folder, card, page)
