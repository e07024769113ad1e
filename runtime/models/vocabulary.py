"""Whether two models number their tokens alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from ...errors import ModelError
from ...profiler.gguf_file import is_gguf
from .forward import CausalModel, ForwardInput
from .kv_cache import KeyValueCache
from .loading import load_config, load_tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of which every tokenizer has
SHOWN = 3  # tokens that an error names


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer's numbering, however its file is written."""
    numbered = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(numbered).encode()).hexdigest()


def require_one_vocabulary(target: str, drafter: str, *, may_be_padded: bool = True) -> None:
    """Raise ModelError unless a drafter numbers tokens as its target does.

    Where both have a tokenizer, their token-to-id maps must be equal, and their tables may differ by padding if
    `may_be_padded`; otherwise the tables' sizes must be equal: a config.json by itself has no tokenizer.
    """
    sizes = [_vocabulary_size(location) for location in (target, drafter)]
    are_known = all(has_tokenizer(location) for location in (target, drafter))
    if sizes[0] != sizes[1] and not (may_be_padded and are_known):
        raise ModelError(
            f"{drafter} has a vocabulary of {sizes[1]} tokens and the target {target} of {sizes[0]}; "
            "a drafter must share its target's tokenizer"
        )
    if not are_known:
        return
    numbered, drafted = numbered_tokens(target), numbered_tokens(drafter)
    if numbered != drafted:
        apart = tokens_apart(numbered, drafted)
        kind = ", all of them added tokens" if set(apart) <= added_tokens(target) | added_tokens(drafter) else ""
        raise ModelError(
            f"the tokenizers of {drafter} and of the target {target} number their tokens differently: "
            f"{_differences(numbered, drafted, apart)}{kind}; a drafter must share its target's tokenizer"
        )
    if sizes[0] != sizes[1] and max(numbered.values()) >= min(sizes):
        raise ModelError(
            f"the tables of {drafter} and of the target {target} have {sizes[1]} and {sizes[0]} rows, and their "
            f"tokenizer numbers tokens up to {max(numbered.values())}; a drafter must know all of its target's tokens"
        )


def numbered_tokens(location: str) -> dict[str, int]:
    """Return a tokenizer's token ids, without those that llama.cpp's converter makes up to fill a table."""
    return {text: token for text, token in load_tokenizer(location).get_vocab().items() if text != f"[PAD{token}]"}


def added_tokens(location: str) -> set[str]:
    """Return the texts of tokens that were added to a model's vocabulary, special ones among them."""
    return {*load_tokenizer(location).get_added_vocab()}


def tokens_apart(target: Mapping[str, int], drafter: Mapping[str, int]) -> list[str]:
    """Return the texts of tokens that two vocabularies number differently, in the target's order."""
    apart = [text for text in {**target, **drafter} if target.get(text) != drafter.get(text)]
    return sorted(apart, key=lambda text: (target.get(text, drafter.get(text, 0)), text))


def _differences(target: Mapping[str, int], drafter: Mapping[str, int], apart: Sequence[str]) -> str:
    """Return how many tokens two vocabularies number differently, and the first of them."""
    shown = [
        f"{text!r} is {target.get(text, 'missing')} in the target and {drafter.get(text, 'missing')} in the drafter"
        for text in apart[:SHOWN]
    ]
    more = [f"{len(apart) - SHOWN:,} more"] if len(apart) > SHOWN else []
    count = "1 token differs" if len(apart) == 1 else f"{len(apart):,} tokens differ"
    return f"{count} of {len(target):,} and {len(drafter):,} ({', '.join([*shown, *more])})"


def has_tokenizer(location: str) -> bool:
    """Return whether a tokenizer lies with a model, or may: what is no path is an id of the hub."""
    path = Path(location)
    if is_gguf(location):
        return True
    if path.is_dir():
        return any(path.joinpath(file).exists() for file in TOKENIZER_FILES)
    return not path.is_file()


def _vocabulary_size(location: str) -> int:
    return int(load_config(location).get_text_config().vocab_size)


class FittedModel:
    """Any causal language model, used with a vocabulary that differs from its table by padding alone."""

    gallery = None

    def __init__(self, model: CausalModel, vocabulary: int) -> None:
        """Wrap a model; `vocabulary` is its target's."""
        self.regime, self.dtype, self.device, self.attention = model.regime, model.dtype, model.device, model.attention
        self.reads_trees: bool = getattr(model, "reads_trees", False)  # where a captured forward tells by them
        self.vocabulary, self.longest_context = vocabulary, model.longest_context
        self.model, self._lacks = model, vocabulary - model.vocabulary

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self.model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's.

        It reads its first token for ids that its table lacks, and never drafts them; ids that the target lacks are cut.
        """
        if self._lacks <= 0:
            return self.model.forward(step, cache)[..., : self.vocabulary]
        told = step.tokens.masked_fill(step.tokens >= self.model.vocabulary, 0)
        logits = self.model.forward(replace(step, tokens=told, packed=None), cache)
        return F.pad(logits, (0, self._lacks), value=-torch.inf)
