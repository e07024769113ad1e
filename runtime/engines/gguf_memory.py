"""How much memory a GGUF file takes once it is loaded, as its own fields tell; needs the `gguf` package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MICRO_BATCH = 512  # tokens that llama.cpp computes at once, with logits for each


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufShape:
    """What a file says of its model; 0 where it does not tell.

    Attributes:
        positions: most tokens of a text.
        cached: numbers that a token leaves in the KV cache, over all layers.
        vocabulary: tokens.
    """

    positions: int
    cached: int
    vocabulary: int

    def bytes_beside_weights(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of a KV cache of so many tokens, and of the logits of one micro-batch in float32."""
        return self.cached * tokens * number_bytes + MICRO_BATCH * self.vocabulary * 4


@cache
def shape_of_gguf(file: Path) -> GgufShape:
    """Return a model's shape."""
    from gguf import GGUFReader

    reader = GGUFReader(file)

    def told(name: str, default: Any = 0) -> Any:  # Any: a field's value
        found = reader.get_field(name)
        return default if found is None else found.contents()

    kind = told("general.architecture", "")
    layers, heads = told(f"{kind}.block_count"), told(f"{kind}.attention.head_count")
    heads = max(heads) if isinstance(heads, list) else heads
    keys = told(f"{kind}.attention.head_count_kv", heads)
    width = told(f"{kind}.embedding_length") // max(heads, 1)
    wide = told(f"{kind}.attention.key_length", width) + told(f"{kind}.attention.value_length", width)
    tokens = reader.get_field("tokenizer.ggml.tokens")
    return GgufShape(
        positions=told(f"{kind}.context_length"),
        cached=(sum(keys) if isinstance(keys, list) else layers * keys) * wide,
        vocabulary=0 if tokens is None else len(tokens.data),
    )
