"""From a prompt as people write it to ids of tokens, and of parts of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..planner.text.image_ids import IMAGE_IDS
from .ends import own_ends, special_ends
from .generation import GenerationSettings
from .images import Image, ImagePrompt, ImageTokens, PromptLike
from .requests import Request, Sampling


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
    ids = _ids(tokenizer, text)
    if tokens is None:
        return tuple(ids)
    if tokens.placeholder not in ids:
        mark = str(tokenizer.convert_ids_to_tokens(tokens.placeholder))
        ids = _ids(tokenizer, mark * len(images) + text)
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


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return a text's tokens, with the one that begins a text once: a chat template may have written it already."""
    ids: list[int] = tokenizer(text)["input_ids"]
    begin, written = tokenizer.bos_token_id, tokenizer.bos_token
    is_twice = begin is not None and ids[:2] == [begin, begin]
    return ids[1:] if is_twice and isinstance(written, str) and text.startswith(written) else ids


def require_known(request: Request, vocabulary: int) -> None:
    """Raise RequestError where the target has no embedding of a token: a forward would fail for all."""
    for token in request.prompt:
        if not (0 <= token < vocabulary or token >= IMAGE_IDS):
            raise RequestError(
                f"the prompt holds token {token} and the target knows {vocabulary}; its tokenizer has more, such as an "
                "added padding token: leave that out of the text"
            )


def request_of(
    tokenizer: PreTrainedTokenizerBase,
    prompt: PromptLike,
    settings: GenerationSettings,
    seen: ImageTokens | None = None,
    ends: frozenset[int] | None = None,
) -> Request:
    """Return a prompt in tokens.

    Args:
        tokenizer: the target's.
        prompt: text, and perhaps images.
        settings: of the request.
        seen: how the target's texts hold images; None where it sees none.
        ends: tokens that end a text; None: the tokenizer's own alone.

    Raises:
        RequestError: the prompt has no tokens, or images that do not fit its text or the target; or a stop string holds
            more than a special token.
    """
    text, images = (prompt.text, prompt.images) if isinstance(prompt, ImagePrompt) else (prompt, ())
    ids = prompt_ids(tokenizer, text, images, seen)
    if not ids:
        raise RequestError("the prompt is empty; write some text")
    known = own_ends(tokenizer) if ends is None else ends
    return Request(
        prompt=ids,
        images=images,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed,
        stop=known | special_ends(tokenizer, settings.stop) if settings.stop else known,
        **{setting.name: getattr(settings, setting.name) for setting in fields(Sampling)},
    )
