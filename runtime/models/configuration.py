"""Where a model's layers look, by the fields that its configuration's class declares: the model obeys no others."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from ...profiler.records.configuration import longest_text

FULL, SLIDING = "full_attention", "sliding_attention"


def declared(config: PreTrainedConfig, name: str) -> Any:  # Any: fields are of any type
    """Return a field that this kind of configuration declares; None where it does not."""
    return getattr(config, name, None) if hasattr(type(config), name) else None


def windows_of(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """Return how many tokens back each layer sees, itself included; None for the whole text."""
    window = declared(config, "sliding_window")
    kinds = declared(config, "layer_types") or [SLIDING] * int(config.num_hidden_layers)
    return tuple(int(window) if window and kind == SLIDING else None for kind in kinds)


def longest_context_of(config: PreTrainedConfig) -> int:
    """Return how long a text may grow; see `longest_text`."""
    rope = declared(config, "rope_parameters") or {}
    ropes = [part for part in (rope, *rope.values()) if isinstance(part, dict)]  # one, or one for each kind of layer
    return longest_text(int(config.max_position_embeddings), ropes)


def why_shorter(config: PreTrainedConfig) -> str:
    """Return why a text may not grow to all positions of a configuration, in brackets; "" where it may."""
    positions = int(getattr(config, "max_position_embeddings", None) or 0)
    if not positions or longest_context_of(config) >= positions:
        return ""
    return (
        f" (of the {positions:,} that it names: behind its original length LongRoPE turns every token by other angles, "
        "those in the KV cache too)"
    )
