"""Early exits and the states that heads read: they are what the target computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from spectune.errors import ModelError
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel

from ...support.tiny_models import tiny_llama

TEXT = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])


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
    with pytest.raises(ModelError, match="do not exist in a model of 3"):
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
