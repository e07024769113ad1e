"""The note on a draft model that was made for shorter texts than its target."""

from __future__ import annotations


def reach_told(name: str, reach: int, longest: int) -> str:
    """Say from which context on a model's drafts no longer count."""
    return (
        f"{name} has {reach:,} positions and the target {longest:,}: from a context of {reach:,} tokens on its drafts "
        "no longer count"
    )
