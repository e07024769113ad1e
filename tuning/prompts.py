"""From prompts as people write them to requests of token ids."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..profiler.prompts import Message, Prompt
from ..runtime.requests import Request
from .request import ProfileRequest


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return a prompt's token ids; a conversation goes through the tokenizer's own chat template, if it has one.

    Raises:
        RequestError: the prompt has no tokens, or the template refuses the conversation.
    """
    if prompt.messages and tokenizer.chat_template:
        ids = tokenizer(_in_template(prompt.messages, tokenizer), add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise RequestError(f"the prompt {prompt.text[:40]!r} has no tokens under this tokenizer; write some text in it")
    return tuple(ids)


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
    """Return one request per prompt, its end kept where it is too long; request i draws with seed + i."""
    stop = frozenset() if tokenizer.eos_token_id is None else frozenset([int(tokenizer.eos_token_id)])
    return [
        Request(
            prompt=encode_prompt(prompt, tokenizer)[-request.max_prompt_tokens :],
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed + place,
            stop=stop,
        )
        for place, prompt in enumerate(request.prompts)
    ]
