"""Write a tiny DFlash drafter, its target, and the logits that PyPI's `dflash` computes: `python write.py FOLDER`.

Run it in an environment that holds dflash 0.1.0. The files beside this script were written with transformers 5.24.0.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from dflash.model import DFlashDraftModel, extract_context_feature  # type: ignore[import-not-found]
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

BLOCK, MASK, LAYERS = 5, 23, 5
SIZES: dict[str, Any] = {"vocab_size": 24, "hidden_size": 16, "max_position_embeddings": 128, "initializer_range": 0.3}
ROPE: dict[str, Any] = {"rope_theta": 500.0}
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@torch.inference_mode()
def main(folder: Path) -> None:
    """Write both models and said.safetensors: logits (tokens - 1, BLOCK - 1, vocabulary) behind each but the first."""
    torch.manual_seed(0)
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    target = LlamaForCausalLM(
        LlamaConfig(**SIZES, **heads, intermediate_size=24, num_hidden_layers=LAYERS, tie_word_embeddings=False)
    ).eval()
    config = Qwen3Config(
        **SIZES, **ROPE, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_hidden_layers=2,
        head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    config.num_target_layers, config.block_size = LAYERS, BLOCK
    config.dflash_config = {"target_layer_ids": [1, 3], "mask_token_id": MASK}
    drafter = DFlashDraftModel(config).eval()
    for model in (target, drafter):
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
    states = extract_context_feature(
        target(torch.tensor([TEXT]), output_hidden_states=True).hidden_states, drafter.target_layer_ids
    )
    said = []
    for place in range(1, len(TEXT)):
        block = torch.tensor([[TEXT[place], *[MASK] * (BLOCK - 1)]])
        left = drafter(
            target_hidden=states[:, :place],
            noise_embedding=target.get_input_embeddings()(block),
            position_ids=torch.arange(place + BLOCK)[None],
        )
        said.append(drafter.compute_logits(left[0, 1:], target.lm_head))
    drafter.save_pretrained(folder / "drafter")
    target.save_pretrained(folder / "target")
    save_file({"text": torch.tensor(TEXT), "logits": torch.stack(said)}, folder / "said.safetensors")
    for name in ("drafter", "target"):
        (folder / name / "generation_config.json").unlink(missing_ok=True)
    print(json.dumps(drafter.config.to_dict(), default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
