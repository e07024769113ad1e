"""What a GGUF file says of its model, from its first bytes alone.

The package `gguf` makes objects of every token, which takes seconds and half a gigabyte of a vocabulary of 150,000.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by kind
STRING, ARRAY = 8, 9
MICRO_BATCH = 512  # tokens that llama.cpp computes at once, with logits for each


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufShape:
    """A model's sizes; 0 where the file does not tell.

    Attributes:
        positions: most tokens of a text.
        cached: numbers that a token leaves in the KV cache, over all layers.
        vocabulary: tokens.
        parameters: numbers of all tensors.
    """

    positions: int
    cached: int
    vocabulary: int
    parameters: int

    def bytes_beside_weights(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of a KV cache of so many tokens, and of the logits of one micro-batch in float32."""
        return self.cached * tokens * number_bytes + MICRO_BATCH * self.vocabulary * 4


def shape_of_gguf(file: Path) -> GgufShape:
    """Return a model's shape.

    Raises:
        ModelError: it is no GGUF file.
    """
    return _shape(file, file.stat().st_mtime_ns)


@cache
def _shape(file: Path, changed: int) -> GgufShape:
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).shape()
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise ModelError(f"{file} is no GGUF file ({error}); give one, or a model folder") from error


class _Header:
    """A cursor over a file's header: counts, named values, and the tensors' shapes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0
        if data[:4] != MAGIC:
            raise ValueError(f"it begins with {bytes(data[:4])!r}")
        self._at = 4
        if (version := self._number("I")) not in VERSIONS:
            raise ValueError(f"it is of version {version}, which is not read here")
        self._tensors, count = self._number("Q"), self._number("Q")
        self._told = {self._text(): self._value(self._number("I")) for _ in range(count)}

    def shape(self) -> GgufShape:
        """Return what the values and the tensors' shapes add up to."""
        kind = self._told.get("general.architecture", "")

        def told(name: str, default: Any = 0) -> Any:  # Any: a number, or one of every layer
            return self._told.get(f"{kind}.{name}", default)

        heads = told("attention.head_count")
        kept = told("attention.head_count_kv", heads)
        most = max(heads) if isinstance(heads, list) else heads
        width = told("embedding_length") // max(most, 1)
        wide = told("attention.key_length", width) + told("attention.value_length", width)
        return GgufShape(
            positions=told("context_length"),
            cached=(sum(kept) if isinstance(kept, list) else told("block_count") * kept) * wide,
            vocabulary=self._told.get("tokenizer.ggml.tokens", 0),
            parameters=sum(self._tensor() for _ in range(self._tensors)),
        )

    def _tensor(self) -> int:
        """Return how many numbers the next tensor holds."""
        self._text()
        sizes = [self._number("Q") for _ in range(self._number("I"))]
        self._number("I")
        self._number("Q")
        return math.prod(sizes)

    def _value(self, kind: int) -> Any:  # Any: a number, a text, numbers, or how many texts
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            return self._number(NUMBERS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind == STRING:
            for _ in range(count):
                self._at += 8 + int.from_bytes(self._data[self._at : self._at + 8], "little")
            return count
        found = struct.unpack_from(f"<{count}{NUMBERS[kind]}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{NUMBERS[kind]}")
        return list(found)

    def _number(self, form: str) -> Any:  # Any: what struct unpacks
        (found,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _text(self) -> str:
        size = self._number("Q")
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("it ends within its header")
        self._at += size
        return found.decode()
