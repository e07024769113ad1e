"""What whoever runs rounds tells whoever watches them."""

from __future__ import annotations

from typing import Protocol

from ..decoder import Round


class RoundObserver(Protocol):
    """Is told of every round, right after it and in order; never raises over what a round holds."""

    def note(self, done: Round, /) -> None:
        """Take notice of a round that is over."""
        ...
