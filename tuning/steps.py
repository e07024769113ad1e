"""How a long job reports what it is doing, and who looks after its result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[str, float], None]  # (what is being done, share of it done)
Guard = Callable[[str], AbstractContextManager[None]]  # entered with the document of a result before it is kept


def silent(_what: str, _share: float) -> None:
    """Report nothing."""


def unguarded(_document: str) -> AbstractContextManager[None]:
    """Look after nothing."""
    return nullcontext()
