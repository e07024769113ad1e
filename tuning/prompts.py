"""From prompts as people write them to requests of token ids."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..profiler.prompts import Prompt
from ..runtime.requests import Request
from .request import ProfileRequest


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return a prompt's token ids; a conversation goes through the tokenizer's own chat template, if it has one.

    Raises:
        RequestError: the prompt has no tokens.
    """
    if prompt.messages and tokenizer.chat_template:
        turns = [{"role": message.role, "content": message.content} for message in prompt.messages]
        text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise RequestError(f"the prompt {prompt.text[:40]!r} has no tokens under this tokenizer; write some text in it")
    return tuple(ids)


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
