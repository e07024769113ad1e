"""From a prompt as people write it to ids of tokens, and of parts of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ...errors import RequestError
from ...planner.records.image_ids import IMAGE_IDS
from ...profiler.prompts import Message, Prompt
from ..batch.images import Image, ImagePrompt, ImageTokens, PromptLike
from ..batch.sequence import Request, Sampling, require_text
from .chat_turns import refusal, template_turns
from .settings import GenerationSettings
from .stop_tokens import own_ends, special_ends


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, images: Sequence[Image] = (), tokens: ImageTokens | None = None
) -> tuple[int, ...]:
    """Return a prompt in ids, those of `ImageTokens.ids(n)` for image n; RequestError where images do not fit."""
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
    """Return a text's tokens with one begin-of-text: a chat template may have written a second."""
    ids = _encoded(tokenizer, text)
    begin, written = tokenizer.bos_token_id, tokenizer.bos_token
    is_twice = begin is not None and ids[:2] == [begin, begin]
    return ids[1:] if is_twice and isinstance(written, str) and text.startswith(written) else ids


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str, **settings: bool) -> list[int]:
    require_text("the prompt", text)  # tokenizers would call it no text at all
    ids: list[int] = tokenizer(text, **settings)["input_ids"]
    return ids


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return a prompt's token ids; a conversation by the tokenizer's own chat template, if it has one.

    Raises RequestError where there are no tokens, or the template refuses the conversation.
    """
    is_chat = bool(prompt.messages and tokenizer.chat_template)
    ids = chat_ids(tokenizer, prompt.messages, prompt.tools) if is_chat else prompt_ids(tokenizer, prompt.text)
    if not ids:
        raise RequestError(f"the prompt {prompt.text[:40]!r} has no tokens under this tokenizer; write some text in it")
    return tuple(ids)


def last_tokens(ids: Sequence[int], most: int, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return a prompt's last tokens, after its begin-of-text: models trained with that degrade without it."""
    if len(ids) <= most:
        return tuple(ids)
    begins = most > 1 and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
    return (ids[0], *ids[len(ids) - most + 1 :]) if begins else tuple(ids[-most:])


def beginning(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the token that a tokenizer writes before every text; empty without one."""
    ids: list[int] = tokenizer("")["input_ids"]
    return tuple(ids[:1]) if tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id] else ()


def chat_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[int, ...]:
    """Return a conversation in ids, up to the model's own turn; RequestError unless a chat template allows it."""
    if not tokenizer.chat_template:
        raise RequestError("the target's tokenizer has no chat template; give the prompt as text")
    return tuple(_encoded(tokenizer, _in_chat_template(messages, tools, tokenizer), add_special_tokens=False))


def _in_chat_template(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> str:
    turns = template_turns(messages, str(tokenizer.chat_template))
    asked: Any = {"tools": list(tools) or None, "add_generation_prompt": True, "tokenize": False}
    try:
        return str(tokenizer.apply_chat_template(turns, **asked))
    except (TemplateError, TypeError, ValueError) as error:  # the last of several templates without a default
        raise refusal(messages, error) from error


def require_short(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], positions: int) -> None:
    """Raise RequestError where texts surely exceed the positions; tokenizing them first takes seconds and gigabytes."""
    size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    if size <= positions or size <= (most := positions * _largest_token_bytes(tokenizer)):
        return
    raise RequestError(
        f"the prompt has {size} bytes, and the tokens of {positions} positions hold at most {most}; shorten the prompt"
    )


@lru_cache(maxsize=8)
def _largest_token_bytes(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the bytes of the longest token as written in the vocabulary, at least those it decodes to."""
    return max((len(piece.encode(errors="surrogatepass")) for piece in tokenizer.get_vocab()), default=1)


def require_room(request: Request, longest: int, why: str = "") -> None:
    """Raise RequestError where a prompt and its new tokens may exceed `longest`; `why` is its reason."""
    needed = len(request.prompt) + request.max_new_tokens
    if needed > longest:
        raise RequestError(
            f"prompt and new tokens need {needed} positions and there is room for {longest}{why}; "
            "shorten the prompt or lower max_new_tokens"
        )


def require_known(request: Request, vocabulary: int) -> None:
    """Raise RequestError for tokens without embedding: a forward would fail for the whole batch."""
    for token in request.prompt:
        if not (0 <= token < vocabulary or token >= IMAGE_IDS):
            raise RequestError(
                f"the prompt holds token {token} and the target knows {vocabulary}; its tokenizer has more, such as an "
                "added padding token: leave that out of the text"
            )


def request_of_ids(
    tokenizer: PreTrainedTokenizerBase,
    ids: tuple[int, ...],
    settings: GenerationSettings,
    ends: frozenset[int] | None = None,
    images: tuple[Image, ...] = (),
) -> Request:
    """Return a request to continue from ids; `ends` None: only the tokenizer's own end.

    RequestError: there are no ids; or see `special_ends`.
    """
    if not ids:
        raise RequestError("the prompt is empty; write some text")
    known = own_ends(tokenizer) if ends is None else ends
    return Request(
        prompt=ids,
        images=images,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed,
        stop=known | special_ends(tokenizer, settings.stop, known) if settings.stop else known,
        **{setting.name: getattr(settings, setting.name) for setting in fields(Sampling)},
    )


def request_of(
    tokenizer: PreTrainedTokenizerBase,
    prompt: PromptLike,
    settings: GenerationSettings,
    seen: ImageTokens | None = None,
    ends: frozenset[int] | None = None,
) -> Request:
    """Return a prompt in tokens; `seen` is None where the target sees no images, `ends` as in `request_of_ids`.

    RequestError where the prompt is malformed or empty, its images do not fit, or see `special_ends`.
    """
    if not isinstance(prompt, PromptLike):
        raise RequestError(f"a prompt is a text or an ImagePrompt, got {prompt!r:.60}; several go to generate_batch")
    text, images = (prompt.text, prompt.images) if isinstance(prompt, ImagePrompt) else (prompt, ())
    ids = prompt_ids(tokenizer, text, images, seen)
    if text and not ids:
        raise RequestError(f"the prompt {text[:40]!r} has no tokens under this tokenizer; write some text in it")
    return request_of_ids(tokenizer, ids, settings, ends, images)
