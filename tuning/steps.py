"""How a long job tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]  # (what is being done, share of it done)


def silent(_what: str, _share: float) -> None:
    """Tell nobody."""
