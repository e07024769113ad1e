"""An error in one line, for programs that load no torch as well."""

from __future__ import annotations


def reason_of(error: BaseException) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
