"""Parts of an image in a text of tokens: ids from `IMAGE_IDS` on, beyond every vocabulary.

A model that sees turns an image into vectors in place of tokens; each has such an id. So texts with images are plain
sequences of numbers, and readers of what was said, not seen, leave those ids out.
"""

from __future__ import annotations

from collections.abc import Iterable

IMAGE_IDS = 1 << 24  # the first of them; no vocabulary is as large


def said(tokens: Iterable[int]) -> list[int]:
    """Return the tokens of a text, the parts of images left out."""
    return [token for token in tokens if token < IMAGE_IDS]
