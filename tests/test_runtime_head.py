"""Early exits and feature-level heads: what they read is what the target computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from spectune.errors import MeasurementError, ModelError
from spectune.runtime.cache import KeyValueCache
from spectune.runtime.layout import lay_out
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.generic import _InPlace
from spectune.runtime.models.head import ROWS, HeadBehind
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.shapes import runner_of

from .tiny_models import tiny_llama

TEXT = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])


class OneLayerHead:
    """A head like EAGLE's first: joins embedding and feature, runs one decoder layer, borrows the target's LM head."""

    attention = "sdpa"

    def __init__(self, target: LlamaForCausalLM, reads: Sequence[int]) -> None:
        torch.manual_seed(7)
        config = target.config
        self.dtype, self.device, self.vocabulary = target.dtype, target.device, config.vocab_size
        self.longest_context, self.reads = config.max_position_embeddings, reads
        self._target = target
        self._heads, self._size = int(config.num_key_value_heads or 0), int(config.head_dim or 0)
        self._join = nn.Linear((1 + len(reads)) * config.hidden_size, config.hidden_size, dtype=target.dtype)
        self._layer = LlamaDecoderLayer(config, layer_idx=0).to(target.dtype)
        self.seen: list[Tensor] = []

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        width = 2 * self._heads * self._size
        return KeyValueCache(
            layers=1, slots=slots, capacity=capacity, width=width, dtype=self.dtype, device=self.device
        )

    def forward(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        self.seen.append(features)
        model = self._target.model
        hidden = self._join(torch.cat((model.embed_tokens(step.tokens), features), dim=-1))
        hidden = self._layer(
            hidden,
            attention_mask=None if step.bias is None else step.bias.unsqueeze(1),
            position_embeddings=model.rotary_emb(hidden, step.positions),
            past_key_values=_InPlace(cache, step, self._heads, self._size),
        )
        logits: Tensor = self._target.lm_head(hidden)
        return logits


def whole_text(model: LeanModel) -> ForwardInput:
    count = TEXT.shape[1]
    visible = np.tri(count, dtype=np.bool_)[None]
    return lay_out(TEXT, np.arange(count), [0], visible, dtype=model.dtype, device=model.device)


def exact_states(model: LlamaForCausalLM) -> tuple[Tensor, ...]:
    """Return transformers' own hidden states: embedded, then after every layer, the last one normed."""
    with torch.no_grad():
        states: tuple[Tensor, ...] = model(torch.from_numpy(TEXT), output_hidden_states=True).hidden_states
    return states


def test_features_are_transformers_hidden_states() -> None:
    source = tiny_llama(layers=3, seed=0)
    model = LeanModel(source)
    found = model.features(whole_text(model), model.new_cache(1, 8), (2, 0, 1))
    embedded, first, second, _ = exact_states(source)
    torch.testing.assert_close(found, torch.cat((second, embedded, first), dim=-1))


def test_the_last_feature_is_the_state_before_the_final_norm() -> None:
    source = tiny_llama(layers=3, seed=0)
    model = LeanModel(source)
    found = model.features(whole_text(model), model.new_cache(1, 8), (3,))
    torch.testing.assert_close(source.model.norm(found), exact_states(source)[-1])


@pytest.mark.parametrize("after", [(), (4,), (-1,)])
def test_features_of_layers_that_are_not_there_are_refused(after: tuple[int, ...]) -> None:
    model = LeanModel(tiny_llama(layers=3, seed=0))
    with pytest.raises(ModelError, match="of a model of 3"):
        model.features(whole_text(model), model.new_cache(1, 8), after)


def test_an_exit_is_the_norm_and_the_head_over_its_last_layer() -> None:
    source = tiny_llama(layers=3, seed=0)
    exit_2 = LeanModel(source).prefix(2)
    found = exit_2.forward(whole_text(exit_2), exit_2.new_cache(1, 8))
    with torch.no_grad():
        expected = source.lm_head(source.model.norm(exact_states(source)[2]))
    torch.testing.assert_close(found, expected)


def test_an_exit_leaves_its_model_whole() -> None:
    model = LeanModel(tiny_llama(layers=3, seed=0))
    model.prefix(1)
    assert model.new_cache(1, 8).layers == 3


def test_a_head_runs_behind_the_targets_hidden_states() -> None:
    source = tiny_llama(layers=3, seed=0)
    target, head = LeanModel(source), OneLayerHead(source, reads=(1, 3))
    runner = runner_of(HeadBehind(head, target), "head", identity="head", slots=2, capacity=60)
    runner.prepare(2, 20, 4)()
    (features,) = head.seen
    assert features.shape == (2, 4, 2 * source.config.hidden_size)


def test_what_a_head_is_fed_is_what_the_target_computes_on_a_text() -> None:
    source = tiny_llama(layers=2, seed=0)
    target, head = LeanModel(source), OneLayerHead(source, reads=(2,))
    HeadBehind(head, target).forward(whole_text(target), head.new_cache(1, 60))
    text = np.random.default_rng(0).integers(0, target.vocabulary, (1, ROWS))
    with torch.no_grad():
        expected = source.model(torch.from_numpy(text)).last_hidden_state[0, : TEXT.shape[1]]
    torch.testing.assert_close(source.model.norm(head.seen[0][0]), expected)


def test_a_head_writes_its_own_cache() -> None:
    source = tiny_llama(layers=2, seed=0)
    head = OneLayerHead(source, reads=(2,))
    cache = head.new_cache(1, 60)
    HeadBehind(head, LeanModel(source)).forward(whole_text(LeanModel(source)), cache)
    written = cache.states[0, 0].abs().sum(dim=-1) > 0
    assert written.nonzero().flatten().tolist() == list(range(TEXT.shape[1]))


def test_more_tokens_than_the_targets_text_are_refused() -> None:
    source = tiny_llama(layers=1, seed=0)
    head = HeadBehind(OneLayerHead(source, reads=(1,)), LeanModel(source))
    runner = runner_of(head, "head", identity="head", slots=1, capacity=1000)
    with pytest.raises(MeasurementError, match=f"at most {ROWS} tokens, got {ROWS + 1}"):
        runner.prepare(1, 0, ROWS + 1)()
