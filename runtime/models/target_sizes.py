"""The target's sizes that a drafter beside it must fit, from its configuration or its weights."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedConfig

from ...errors import ModelError
from .anatomy import FAMILIES, Anatomy
from .vision import sees


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSizes:
    """A target as a drafter beside it sees it."""

    hidden: int
    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    size: int  # of a head

    @property
    def queries(self) -> int:
        """Numbers of a token's query."""
        return self.heads * self.size

    @property
    def pairs(self) -> int:
        """Numbers of a token's key."""
        return self.kv_heads * self.size


def sizes_of(anatomy: Anatomy) -> TargetSizes:
    """Return the sizes of a loaded target."""
    return TargetSizes(
        hidden=anatomy.embedding.shape[1],
        vocabulary=anatomy.vocabulary,
        layers=len(anatomy.layers),
        heads=anatomy.heads,
        kv_heads=anatomy.kv_heads,
        size=anatomy.size,
    )


def sizes_in(config: PreTrainedConfig, name: str) -> TargetSizes:
    """Return the sizes in a target's configuration; ModelError for a kind whose hidden states cannot be read."""
    text = config.get_text_config()
    if not sees(config) and text.model_type not in FAMILIES:
        raise ModelError(
            f"heads and exits read hidden states, which spectune shows of {', '.join(FAMILIES)}, and the target {name} "
            f"is of type {text.model_type}; leave the drafter out"
        )
    heads = int(text.num_attention_heads)
    return TargetSizes(
        hidden=int(text.hidden_size),
        vocabulary=int(text.vocab_size),
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        size=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
    )


def require_reads(what: str, reads: tuple[int, ...], target: TargetSizes) -> None:
    """Raise ModelError where a drafter reads hidden states that its target does not have."""
    if not reads or not 0 <= min(reads) <= max(reads) <= target.layers:
        raise ModelError(
            f"{what} reads hidden states after {', '.join(map(str, reads)) or 'no'} layers and the target has "
            f"{target.layers} layers; give the drafter of this target"
        )
