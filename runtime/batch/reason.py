"""An error in one line, for programs that load no torch as well."""

from __future__ import annotations

from ...errors import SpectuneError


def reason_of(error: BaseException) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def told(error: BaseException) -> str:
    """Return an error as one line; without the type for our own errors."""
    return " ".join(str(error).split()) if isinstance(error, SpectuneError) else reason_of(error)


def reach_told(name: str, reach: int, longest: int) -> str:
    """Say from which context on a model's drafts no longer count."""
    return (
        f"{name} has {reach:,} positions and the target {longest:,}: from a context of {reach:,} tokens on its drafts "
        "no longer count"
    )
