"""The folder of a trained head: weights by their published names, config.json, and a card for people and programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..runtime.models.eagle_shape import OWN, HeadShape
from .eagle_module import HeadModule

ARCHITECTURES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
NAMES = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard:
    """How a head was trained, and how good it is.

    Attributes:
        losses: of every step.
        acceptance: chance that token k of a greedy chain is accepted, given that those before it were.
        tokens_per_round: of such chains, `test_steps` long, along greedy continuations of other pieces of the files.
        seconds: of the run that finished it; what stopped runs did before is not counted.
    """

    form: str
    target: str
    target_hash: str
    reads: tuple[int, ...]
    parameters: int
    draft_vocabulary: int
    files: tuple[str, ...]
    own_texts: int
    own_tokens: int
    steps: int
    batch: int
    sequence_tokens: int
    test_steps: int
    seed: int
    losses: tuple[float, ...]
    acceptance: tuple[float, ...]
    tokens_per_round: float
    rounds: int
    seconds: float


def save_head(folder: Path, head: HeadModule, shape: HeadShape, draft_ids: Tensor) -> None:
    """Write model.safetensors, bf16, and config.json.

    Args:
        folder: of the head.
        head: trained.
        shape: what the config says.
        draft_ids: (draft vocabulary,) ids that form "eagle3" drafts, increasing.
    """
    tensors = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in head.state_dict().items()}
    config = shape.config.to_dict() | {"architectures": [ARCHITECTURES[shape.form]]}
    if shape.form == "eagle3":
        ids = draft_ids.cpu()
        can_draft = torch.zeros(int(shape.config.vocab_size or 0), dtype=torch.bool)
        can_draft[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": can_draft}
        config["draft_vocab_size"] = len(ids)
    config[OWN] = {"reads": list(shape.reads), "target": shape.target}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save_card(folder: Path, card: HeadCard) -> None:
    """Write card.json and card.md."""
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=1) + "\n")
    (folder / "card.md").write_text(_page(card))


def _page(card: HeadCard) -> str:
    depths = " | ".join(str(depth) for depth in range(1, len(card.acceptance) + 1))
    chances = " | ".join(f"{chance:.1%}" for chance in card.acceptance)
    last = card.losses[-20:]
    return f"""# A head of form {NAMES[card.form]} for `{card.target}`

Reads the target's hidden states after {", ".join(map(str, card.reads))} layers. {card.parameters:,} parameters of its
own, {card.draft_vocabulary:,} tokens it can draft. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.sequence_tokens} tokens, seed {card.seed}, on
{card.own_tokens:,} tokens that the target wrote itself: {card.own_texts:,} texts, prompts from {len(card.files)} files.
Steps of the training-time test: {card.test_steps}. Loss of the first step {card.losses[0]:.3f}, mean of the last
{len(last)} {sum(last) / len(last):.3f}. {card.seconds:.0f} seconds in the run that finished it.

**Acceptance** of greedy chains, token by token, given the tokens before it; {card.rounds:,} rounds,
{card.tokens_per_round:.2f} tokens a round:

| depth | {depths} |
|---|{"--:|" * len(card.acceptance)}
| accepted | {chances} |
"""
