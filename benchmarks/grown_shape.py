"""Shapes for a small model to grow into (`grown.py`): of known models, and such as round no bf16 weight again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from spectune.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownShape:
    """The sizes of a Llama, named as its configuration names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int | None = None  # None: the small model's

    def __post_init__(self) -> None:
        sizes = [getattr(self, field.name) for field in fields(self)]
        if min(size for size in sizes if size is not None) < 1:
            raise ModelError(f"{self} has a size below 1; give positive sizes")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} key-value heads evenly; "
                "give a multiple"
            )
        if self.hidden_size % self.num_attention_heads:  # transformers saves no such model
            raise ModelError(
                f"a hidden_size of {self.hidden_size} is no multiple of {self.num_attention_heads} heads; give one"
            )

    @property
    def group(self) -> int:
        """Query heads that read one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads


def _shape(hidden: int, middle: int, layers: int, heads: int, key_value_heads: int, size: int) -> GrownShape:
    return GrownShape(
        hidden_size=hidden,
        intermediate_size=middle,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=size,
    )


SHAPES: Mapping[str, GrownShape] = {
    "8b": _shape(4096, 14336, 32, 32, 8, 128),  # Llama 3.1 8B, but for its vocabulary
    "3b": _shape(3072, 8192, 28, 24, 8, 128),  # Llama 3.2 3B
    "1b": _shape(2048, 8192, 16, 32, 8, 64),  # Llama 3.2 1B
    "8b-even": _shape(6144, 16384, 20, 96, 8, 64),  # of 384, the demo's target: sqrt(H / H') is 1 / 4
    "0.3b-even": _shape(1024, 4096, 16, 16, 8, 64),  # of 256, the demo's drafters: 1 / 2
}


def grown_shape(name: str) -> GrownShape:
    """Return one of `SHAPES`; raise ModelError where none has the name."""
    if name not in SHAPES:
        raise ModelError(f"no shape is named {name!r}; choose one of {', '.join(SHAPES)}, or make a GrownShape")
    return SHAPES[name]
