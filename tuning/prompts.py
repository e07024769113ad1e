"""From prompts as people write them to requests of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..profiler.prompts import Message, Prompt
from ..runtime.ends import end_tokens
from ..runtime.images import ImageTokens, read_image
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_config
from ..runtime.models.vision import image_tokens, sees
from ..runtime.prompt_ids import prompt_ids
from ..runtime.requests import Request, seed_behind
from .request import ProfileRequest


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return a prompt's token ids; a conversation goes through the tokenizer's own chat template, if it has one.

    Raises:
        RequestError: the prompt has no tokens, or the template refuses the conversation.
    """
    if prompt.messages and tokenizer.chat_template:
        ids = tokenizer(_in_template(prompt.messages, tokenizer), add_special_tokens=False)["input_ids"]
    else:
        ids = prompt_ids(tokenizer, prompt.text)
    if not ids:
        raise RequestError(f"the prompt {prompt.text[:40]!r} has no tokens under this tokenizer; write some text in it")
    return tuple(ids)


def last_tokens(ids: Sequence[int], most: int, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the last tokens of a prompt, behind the one that begins a text where the prompt has it.

    A model that always saw that token writes nothing like itself without it.
    """
    if len(ids) <= most:
        return tuple(ids)
    begins = most > 1 and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
    return (ids[0], *ids[len(ids) - most + 1 :]) if begins else tuple(ids[-most:])


def require_room(target: CausalModel, requests: Sequence[Request]) -> None:
    """Raise RequestError unless every prompt and its answer fit into the target's positions."""
    longest = max(len(asked.prompt) + asked.max_new_tokens for asked in requests)
    if longest > target.longest_context:
        raise RequestError(
            f"prompt and new tokens need {longest} positions and the model has {target.longest_context}; "
            "lower --max-new-tokens or --max-prompt-tokens"
        )


def require_contexts(contexts: Sequence[int], longest: int) -> None:
    """Raise RequestError unless a token fits behind every context, in a model of so many positions; 0: not known."""
    if longest and contexts and max(contexts) >= longest:
        raise RequestError(
            f"no token fits behind a context of {max(contexts)}, the model has {longest} positions; "
            f"name contexts below {longest} with --context"
        )


def _in_template(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the conversation as the model reads it, up to where its own turn begins."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    except TemplateError as error:
        roles = ", ".join(message.role for message in messages)
        raise RequestError(
            f"the tokenizer's chat template refuses a conversation of the roles {roles} ({error}); "
            "change the roles or give the prompt as text"
        ) from error


def requests_of(request: ProfileRequest, tokenizer: PreTrainedTokenizerBase) -> list[Request]:
    """Return one request per prompt, its end kept where it is too long; request i draws with seed + i.

    Prompts with images are as `shown_to` takes them.

    Raises:
        RequestError: a prompt has no tokens; or an image that cannot be read, or is too long with it, or the target
            sees none.
    """
    stop = end_tokens(request.models.target, tokenizer)
    tokens = _image_tokens(request) if any(prompt.images for prompt in request.prompts) else None
    return [
        replace(
            _with_images(prompt, tokenizer, tokens, request)
            if prompt.images
            else Request(prompt=_cut(prompt, tokenizer, request.max_prompt_tokens), max_new_tokens=1),
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=seed_behind(request.seed, place),
            stop=stop,
        )
        for place, prompt in enumerate(request.prompts)
    ]


def shown_to(target: CausalModel, requests: Sequence[Request]) -> list[Request]:
    """Return requests whose images a loaded target keeps as long as it lives: the same ids for the same requests.

    Raises:
        RequestError: there are more images than it has room for.
    """
    gallery = target.gallery
    if gallery is None:
        return list(requests)
    images = {image for request in requests for image in request.images}
    if not gallery.has_room(images):
        raise RequestError(
            f"the prompts have {len(images)} images and the target keeps {gallery.room} at once; give fewer prompts"
        )
    return [gallery.shown(request, target) for request in requests]


def _cut(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, most: int) -> tuple[int, ...]:
    return last_tokens(encode_prompt(prompt, tokenizer), most, tokenizer)


def _with_images(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, tokens: ImageTokens | None, request: ProfileRequest
) -> Request:
    images = tuple(read_image(path) for path in prompt.images)
    ids = prompt_ids(tokenizer, prompt.text, images, tokens)
    if len(ids) > request.max_prompt_tokens:
        raise RequestError(
            f"the prompt {prompt.text[:40]!r} has {len(ids)} tokens with its image, and an image is not cut; "
            f"raise --max-prompt-tokens above {request.max_prompt_tokens}"
        )
    return Request(prompt=ids, images=images, max_new_tokens=1)


def _image_tokens(request: ProfileRequest) -> ImageTokens | None:
    config = load_config(str(request.models.target))
    return image_tokens(config) if sees(config) else None
