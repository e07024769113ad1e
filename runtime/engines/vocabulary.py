"""Whether a drafter tokenizes texts as its target does: one check for every engine that runs here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RequestError
from .setting import EngineDrafter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = "def price(x: float) -> str:\n    return f'{x:.2f} €'  # naïve 東京"
TOKENIZER_FILE = "tokenizer.json"
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


def require_same_tokenizer(drafter: EngineDrafter, target: PreTrainedTokenizerBase, *, otherwise: str) -> None:
    """Do what `require_same_tokens` does by the tokenizer in a drafter's folder, if there is one."""
    from ..models.loading import load_tokenizer

    if (Path(drafter.path) / TOKENIZER_FILE).is_file():
        own = load_tokenizer(drafter.path)
        require_same_tokens(drafter.name, own.encode(PROBE), target.encode(PROBE), otherwise=otherwise)
