"""Whether a drafter tokenizes texts as its target does: one check for every engine that runs here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import RequestError

PROBE = "def price(x: float) -> str:\n    return f'{x:.2f} €'  # naïve 東京"
SHOWN = 6  # tokens in a message


def require_same_tokens(drafter: str, own: Sequence[int], target: Sequence[int], *, otherwise: str) -> None:
    """Raise RequestError where a drafter's tokens of `PROBE` differ; `otherwise` is the effect on its drafts."""
    if list(own) == list(target):
        return
    alike = min(len(own), len(target))
    at = next((place for place in range(alike) if own[place] != target[place]), alike)
    raise RequestError(
        f"{drafter} reads texts as other tokens than the target does, {list(own[at : at + SHOWN])} where it reads "
        f"{list(target[at : at + SHOWN])}; {otherwise}: leave it out"
    )
