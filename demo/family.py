"""The shapes of the demo family: one Llama target and two drafters that share its tokenizer."""

from __future__ import annotations

from transformers import LlamaConfig

from .tokenizer import VOCABULARY


def target_config() -> LlamaConfig:
    """Return the target's shape: 8 layers x 384, 14.2 M parameters."""
    return _llama(layers=8, hidden=384, intermediate=1024, heads=6, key_value_heads=2)


def drafter_configs() -> dict[str, LlamaConfig]:
    """Return each drafter's shape by name: one and two layers of 256."""
    return {
        "small": _llama(layers=1, hidden=256, intermediate=704, heads=4, key_value_heads=2),
        "medium": _llama(layers=2, hidden=256, intermediate=704, heads=4, key_value_heads=2),
    }


def _llama(*, layers: int, hidden: int, intermediate: int, heads: int, key_value_heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=hidden // heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
