"""Other readings of a drafter that is a language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerBase
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ...errors import SpectuneError
from ...runtime.engine.prompts import encode_prompt, last_tokens
from ...runtime.models.anatomy import Anatomy, turns_of
from ...runtime.models.forward import CausalModel, ForwardInput
from ...runtime.models.kv_cache import KeyValueCache
from ...runtime.models.lean import LeanModel
from ...runtime.models.vocabulary import FittedModel
from .agreement import first_hits
from .alternative import OtherReading
from .own_text import PROMPT_TOKENS, OwnText
from .pair import Pair
from .positions import rope_theta

BASES = (1e4, 5e5, 1e6)  # of RoPE, that models are published with
OFFSETS = (1, -1, 2, -2)  # of ids


def model_alternatives(pair: Pair, drafter: CausalModel, texts: Sequence[OwnText]) -> Iterator[OtherReading]:
    """Yield other readings of a draft model, the likeliest first."""
    if pair.tokenizers is not None:
        yield from _prompts(drafter, texts, *pair.tokenizers)
    own, target = rope_theta(pair.drafter_config), rope_theta(pair.target_config)
    for base in dict.fromkeys((*([target] if target else []), *BASES)) if own else ():
        other = with_base(drafter, base)
        if base != own and other is not None:
            yield OtherReading(
                check="rope",
                reading=f"RoPE of base {base:,.0f}",
                advice=f"say rope_theta: {base:.0f} in its config.json, or give the folder as it was published",
                hits=partial(first_hits, other, texts),
            )
    for offset in OFFSETS:
        yield OtherReading(
            check="vocabulary",
            reading=f"rows of its tables {offset:+d} from the tokens' ids",
            advice="its embeddings lie beside their tokens: save it again with its own tokenizer",
            hits=partial(first_hits, Renumbered(drafter, offset), texts),
        )


def _prompts(
    drafter: CausalModel, texts: Sequence[OwnText], target: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase
) -> Iterator[OtherReading]:
    """Yield the prompts as the drafter's own tokenizer writes them, where that differs."""
    try:
        written = [last_tokens(encode_prompt(text.prompt, own), PROMPT_TOKENS, own) for text in texts]
    except SpectuneError:
        return
    if all(prompt == text.request.prompt for prompt, text in zip(written, texts, strict=True)):
        return
    others = [text.behind(prompt) for prompt, text in zip(written, texts, strict=True)]
    is_chat = any(text.prompt.messages for text in texts) and own.chat_template != target.chat_template
    yield OtherReading(
        check="template" if is_chat else "special tokens",
        reading="prompts by its own chat template" if is_chat else "prompts as its own tokenizer begins them",
        advice="choose a drafter that was trained with the target's prompts, or train it on the target's texts",
        hits=partial(first_hits, drafter, others),
    )


def with_base(model: CausalModel, base: float) -> CausalModel | None:
    """Return a model with another base of RoPE, its weights shared; None where it is not lean."""
    if isinstance(model, FittedModel):
        inner = with_base(model.model, base)
        return None if inner is None else FittedModel(inner, model.vocabulary)
    if not isinstance(model, LeanModel):
        return None
    turns = _turns(model.anatomy, base)
    return LeanModel(replace(model.anatomy, sights=tuple(replace(one, turns=turns) for one in model.anatomy.sights)))


def _turns(anatomy: Anatomy, base: float) -> Tensor:
    config = LlamaConfig(
        hidden_size=anatomy.heads * anatomy.size,
        num_attention_heads=anatomy.heads,
        head_dim=anatomy.size,
        max_position_embeddings=anatomy.longest_context,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    rotary = LlamaRotaryEmbedding(config).to(anatomy.embedding.device)
    return turns_of(rotary, anatomy.longest_context, anatomy.embedding[:1])


class Renumbered:
    """A language model whose tables have the row of each token some rows further."""

    gallery = None

    def __init__(self, model: CausalModel, offset: int) -> None:
        self.regime, self.dtype, self.device, self.attention = model.regime, model.dtype, model.device, model.attention
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self._model, self._offset = model, offset

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        told = (step.tokens + self._offset) % self.vocabulary
        return self._model.forward(replace(step, tokens=told, packed=None), cache).roll(-self._offset, dims=-1)
