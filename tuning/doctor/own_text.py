"""A few texts that the target writes itself, along which drafts are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import RequestError
from ...planner.kernels.arrays import Ints
from ...profiler.prompt import Prompt
from ...runtime.batch.sequence import Request
from ...runtime.engine.prompts import encode_prompt, last_tokens
from ...runtime.engine.stop_tokens import end_tokens
from ...runtime.models.forward import CausalModel
from ...runtime.models.loading import load_tokenizer
from ..recording.continuations import continuations

TEXTS = 8
POSITIONS = 200  # of all texts together
PROMPT_TOKENS = 128  # longer prompts lose their beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnText:
    """One prompt and what the target writes behind it, 2 tokens at least."""

    prompt: Prompt
    request: Request
    continuation: tuple[int, ...]

    @property
    def read(self) -> list[int]:
        """The tokens behind all of which a drafter is compared, the prompt first."""
        return [*self.request.prompt, *self.continuation[:-1]]

    def behind(self, prompt: Sequence[int]) -> OwnText:
        """Return the same text behind another prompt."""
        return replace(self, request=replace(self.request, prompt=tuple(prompt)))


def own_texts(target: CausalModel, location: Path, prompts: Sequence[Prompt]) -> list[OwnText]:
    """Return the target's own texts behind some of the prompts, about `POSITIONS` tokens; RequestError for none."""
    tokenizer = load_tokenizer(str(location))
    texts = [prompt for prompt in prompts if not prompt.images]
    chosen = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    if not chosen:
        raise RequestError("there is no prompt without an image; name others with --prompts")
    stop = end_tokens(location, tokenizer)
    requests = [
        Request(
            prompt=last_tokens(encode_prompt(prompt, tokenizer), PROMPT_TOKENS, tokenizer),
            max_new_tokens=-(-POSITIONS // len(chosen)) + 1,
            stop=stop,
        )
        for prompt in chosen
    ]
    found = zip(chosen, requests, continuations(target, requests), strict=True)
    written = [OwnText(prompt=one, request=asked, continuation=text) for one, asked, text in found if len(text) > 1]
    if not written:
        raise RequestError("the target ends every text at once; name other prompts with --prompts")
    return written


def next_tokens(texts: Sequence[OwnText]) -> Ints:
    """Return (positions,): the token that the target writes at every position but the first of each text."""
    return np.concatenate([np.array(text.continuation[1:], dtype=np.int64) for text in texts])
