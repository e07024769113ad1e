"""From the prompts of a profile to requests of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..profiler.prompts import Prompt
from ..runtime.batch.images import ImageTokens, read_image
from ..runtime.batch.sequence import Request, require_positions, seed_behind
from ..runtime.engine.prompts import encode_prompt, last_tokens, prompt_ids
from ..runtime.engine.stop_tokens import end_tokens
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_config, load_tokenizer
from ..runtime.models.vision import image_tokens, sees
from .prompt_room import PromptRoom, prompt_room
from .prompt_room import positions_of as positions_of  # what this module is asked for besides
from .request import ProfileRequest


def require_room(positions: int, requests: Sequence[Request], why: str = "") -> None:
    """Raise RequestError unless every prompt and its answer fit into so many positions, the target's; `why` no more."""
    require_positions(requests, positions, "lower --max-new-tokens or --max-prompt-tokens", why)


def count_cut(request: ProfileRequest) -> tuple[int, PromptRoom]:
    """Return how many prompts are cut to the room for one, and that room; prompts with images are refused, not cut.

    ModelError where the target has no tokenizer; RequestError where a prompt has no tokens.
    """
    tokenizer, room = load_tokenizer(str(request.models.target)), prompt_room(request)
    texts = [prompt for prompt in request.prompts if not prompt.images]
    return sum(len(encode_prompt(prompt, tokenizer)) > room.tokens for prompt in texts), room


def count_bare(prompts: Sequence[Prompt], target: Path) -> int:
    """Return how many conversations the model reads as bare text, without a chat template, or raise ModelError."""
    conversations = sum(bool(prompt.messages) for prompt in prompts)
    return conversations if conversations and not load_tokenizer(str(target)).chat_template else 0


def require_contexts(contexts: Sequence[int], longest: int, why: str = "") -> None:
    """Raise RequestError unless a token fits behind every context in `longest` positions; 0: not known."""
    if longest and contexts and max(contexts) >= longest:
        raise RequestError(
            f"no token fits behind a context of {max(contexts)}, the model has {longest} positions{why}; "
            f"name contexts below {longest} with --context"
        )


def requests_of(request: ProfileRequest, tokenizer: PreTrainedTokenizerBase) -> list[Request]:
    """Return one request per prompt, long ones cut at the start; request i draws with seed + i.

    Of a prompt with later turns it is the first. Prompts with images are as `shown_to` takes them. RequestError where a
    prompt has no tokens; or its image cannot be read or is too long, or the target reads none.
    """
    stop = end_tokens(request.models.target, tokenizer)
    tokens = _image_tokens(request) if any(prompt.images for prompt in request.prompts) else None
    room = prompt_room(request)
    return [
        replace(
            _with_images(prompt, tokenizer, tokens, room)
            if prompt.images
            else Request(prompt=_cut(prompt, tokenizer, room), max_new_tokens=1),
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=seed_behind(request.seed, place),
            stop=stop,
        )
        for place, prompt in enumerate(request.prompts)
    ]


def plain_request(prompt: Prompt, request: ProfileRequest, tokenizer: PreTrainedTokenizerBase) -> Request:
    """Return a greedy request for a prompt without images, as long as a profile's; RequestError without tokens."""
    return Request(
        prompt=_cut(prompt, tokenizer, prompt_room(request)),
        max_new_tokens=request.max_new_tokens,
        stop=end_tokens(request.models.target, tokenizer),
    )


def shown_to(target: CausalModel, requests: Sequence[Request]) -> list[Request]:
    """Return requests whose images a loaded target holds for life, with equal ids; RequestError for too many."""
    gallery = target.gallery
    if gallery is None:
        return list(requests)
    images = {image for request in requests for image in request.images}
    if not gallery.has_room(images):
        raise RequestError(
            f"the prompts have {len(images)} images and the target keeps {gallery.room} at once; give fewer prompts"
        )
    return [gallery.shown(request, target) for request in requests]


def _cut(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, room: PromptRoom) -> tuple[int, ...]:
    return last_tokens(encode_prompt(prompt, tokenizer), room.tokens, tokenizer)


def _with_images(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, tokens: ImageTokens | None, room: PromptRoom
) -> Request:
    images = tuple(read_image(path) for path in prompt.images)
    ids = prompt_ids(tokenizer, prompt.text, images, tokens)
    if len(ids) > room.tokens:
        raise RequestError(
            f"the prompt {prompt.text[:40]!r} has {len(ids)} tokens with its image, and an image is not cut; "
            f"raise --max-prompt-tokens above {room.tokens}, or leave the prompt out: the limit is {room.limit}"
        )
    return Request(prompt=ids, images=images, max_new_tokens=1)


def _image_tokens(request: ProfileRequest) -> ImageTokens | None:
    config = load_config(str(request.models.target))
    return image_tokens(config) if sees(config) else None
