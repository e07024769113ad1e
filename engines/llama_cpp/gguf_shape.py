"""The memory that llama.cpp needs beside a GGUF file's weights, from the model's sizes in the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...profiler.gguf_file import read_gguf

MICRO_BATCH = 512  # tokens that llama.cpp computes at once, with logits for each


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufShape:
    """A model's sizes, 0 where unknown; `cached` is the numbers of a token in the KV cache, over all layers."""

    cached: int
    vocabulary: int

    def bytes_beside_weights(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of a KV cache of so many tokens, and of the float32 logits of one micro-batch."""
        return self.cached * tokens * number_bytes + MICRO_BATCH * self.vocabulary * 4


def shape_of_gguf(path: Path) -> GgufShape:
    """Return a model's sizes; ModelError if it is not a GGUF file."""
    file = read_gguf(path)

    def told(name: str, default: Any = 0) -> Any:  # Any: a number, or one of every layer
        return file.said.get(f"{file.family}.{name}", default)

    heads = told("attention.head_count")
    kept = told("attention.head_count_kv", heads)
    width = told("embedding_length") // max(max(heads) if isinstance(heads, tuple) else heads, 1)
    wide = told("attention.key_length", width) + told("attention.value_length", width)
    vocabulary = file.said.get("tokenizer.ggml.tokens", 0)
    return GgufShape(
        cached=(sum(kept) if isinstance(kept, tuple) else told("block_count") * kept) * wide,
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
    )


def positions_of_gguf(path: Path) -> int | None:
    """Return the longest text in tokens by a GGUF file; None where it does not say."""
    file = read_gguf(path)
    told = file.said.get(f"{file.family}.context_length")
    return told if isinstance(told, int) else None
