"""A profile of every turn of its conversations, each behind the target's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..profiler.device import detect
from ..profiler.lock import device_lock
from ..profiler.prompt import Prompt
from ..profiler.remembered import cache_folder
from ..runtime.engine.detokenizer import decoded
from ..runtime.models.loading import load_model, load_tokenizer
from .family import torch_device
from .prompts import plain_request
from .recording.continuations import continuations
from .request import ProfileRequest
from .steps import Progress
from .turn_by_turn import turn_by_turn


def with_own_answers(request: ProfileRequest, *, lock_wait_s: float = 0.0, progress: Progress) -> ProfileRequest:
    """Return the profile of every turn of the prompts, each behind the target's greedy answers.

    Raises:
        ModelError: the target cannot be loaded.
        DeviceError: another process holds the device.
        NoRoomError: memory has no room for an answer.
        RequestError: a prompt has no tokens.
    """
    if not any(prompt.later for prompt in request.prompts):
        return request
    device, tokenizer = detect(request.device), load_tokenizer(str(request.models.target))

    def answered(prompts: Sequence[Prompt]) -> list[str]:
        progress(f"answering {len(prompts)} turns before their next ones", 0.0)
        asked = [plain_request(prompt, request, tokenizer) for prompt in prompts]
        texts = continuations(target, asked)
        return [decoded(tokenizer, text) for text in texts]

    with device_lock(device, cache_folder(), lock_wait_s):
        dtype = device.dtype_for(request.dtype)
        target = load_model(str(request.models.target), dtype=dtype, device=torch_device(device))
        return replace(request, prompts=turn_by_turn(request.prompts, answered))


def with_longest_answers(request: ProfileRequest) -> ProfileRequest:
    """Return the profile with words in the place of answers, as many as there may be tokens: no model is loaded."""
    words = " a" * request.max_new_tokens
    return replace(request, prompts=turn_by_turn(request.prompts, lambda prompts: [words] * len(prompts)))
