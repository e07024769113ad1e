"""From a prompt as people write it to ids of tokens, and of parts of images."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from .images import Image, ImageTokens


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, images: Sequence[Image] = (), tokens: ImageTokens | None = None
) -> tuple[int, ...]:
    """Return a prompt in ids, those of `ImageTokens.ids(n)` for its n-th image.

    Args:
        tokenizer: the target's.
        text: with a placeholder for each image, or with none.
        images: that it speaks of.
        tokens: of the target; None where it sees no images.

    Raises:
        RequestError: the target sees no images, or the text has another number of placeholders.
    """
    if images and tokens is None:
        raise RequestError(f"the prompt {text[:40]!r} has an image and the target sees none; leave it out")
    ids: list[int] = tokenizer(text)["input_ids"]
    if tokens is None:
        return tuple(ids)
    if tokens.placeholder not in ids:
        mark = str(tokenizer.convert_ids_to_tokens(tokens.placeholder))
        ids = tokenizer(mark * len(images) + text)["input_ids"]
    if ids.count(tokens.placeholder) != len(images):
        raise RequestError(
            f"the prompt {text[:40]!r} has {ids.count(tokens.placeholder)} placeholders and {len(images)} images; "
            "give one image for each, or write none at all"
        )
    found: list[int] = []
    shown = 0
    for token in ids:
        if token == tokens.placeholder:
            found += tokens.ids(shown)
            shown += 1
        else:
            found.append(token)
    return tuple(found)
