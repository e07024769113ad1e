"""How long a text target and drafter take, and by which angles they turn its positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig

from ..positions import longest_context, notes_of_reach
from .finding import DrafterFinding
from .pair import Pair


def check_positions(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield position limits and RoPE of both; a drafter that ends earlier than its target is worth a note."""
    if pair.role == "draft":
        notes = notes_of_reach(pair.target, {pair.name: pair.drafter})
        own, config = longest_context(pair.drafter), pair.drafter_config
    elif pair.role == "head":
        config = pair.head.config
        own = int(pair.written.get("max_position_embeddings") or 0)
        notes = _notes_of_head(pair.name, own, longest_context(pair.target))
    else:
        return
    for note in notes:
        yield DrafterFinding(check="positions", seen=note, severity="note", advice="keep to shorter texts")
    if not notes:
        told = f"{own:,} positions" if own else "positions as the target's"
        yield DrafterFinding(check="positions", seen=f"{told}, the target {longest_context(pair.target):,}")
    seen, target = rope_told(config), rope_told(pair.target_config)
    yield DrafterFinding(
        check="rope", seen=seen + (" as the target's" if seen == target else f", the target's {target}")
    )


def rope_theta(config: PreTrainedConfig) -> float | None:
    """Return the base of a configuration's RoPE; None where it has none, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    said: Any = rope.get("rope_theta") if isinstance(rope, dict) else None  # Any: JSON
    return float(said) if isinstance(said, int | float) else None


def rope_told(config: PreTrainedConfig) -> str:
    """Return kind and base of a configuration's RoPE, in words."""
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope_theta(config)
    if theta is None:
        return "RoPE by kinds of layers" if rope else "no RoPE"
    return f"RoPE {rope.get('rope_type', 'default')} of base {theta:,.0f}"


def _notes_of_head(name: str, own: int, target: int) -> tuple[str, ...]:
    if not 0 < own < target:
        return ()
    return (f"{name} was trained for {own:,} positions and the target has {target:,}: beyond {own:,} expect less",)
