"""Parts of an image in a text of tokens: ids beyond every vocabulary.

A model that sees turns an image into vectors that stand in the text where tokens do. In a text of ids each of them has
an id of `IMAGE_IDS` or more. So texts with images are plain sequences of numbers, and whoever reads them for what was
said, and not for what was seen, leaves those ids out.
"""

from __future__ import annotations

from collections.abc import Iterable

IMAGE_IDS = 1 << 24  # the first of them; no vocabulary is as large


def said(tokens: Iterable[int]) -> list[int]:
    """Return the tokens of a text, the parts of images left out."""
    return [token for token in tokens if token < IMAGE_IDS]
