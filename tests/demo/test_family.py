"""The demo family's shapes and its tokenizer."""

from __future__ import annotations

from functools import cache

import torch
from demo_corpus import END_OF_TEXT, VOCABULARY, train_tokenizer
from demo_models import drafter_configs, target_config
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["def add(x, y):\n    return x + y\n", "class Point:\n    pass\n"] * 3)


def test_the_target_has_eight_layers_and_the_drafters_one_and_two() -> None:
    assert target_config().num_hidden_layers == 8
    assert {name: config.num_hidden_layers for name, config in drafter_configs().items()} == {"small": 1, "medium": 2}


def test_the_family_shares_one_vocabulary() -> None:
    assert {config.vocab_size for config in (target_config(), *drafter_configs().values())} == {VOCABULARY}


def test_the_target_has_as_many_parameters_as_its_docstring_says() -> None:
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in LlamaForCausalLM(target_config()).parameters())
    assert f"{parameters / 1e6:.1f} M" in str(target_config.__doc__)


def test_any_text_survives_the_tokenizer() -> None:
    text = "naïve 漢字 \x00\t🙂\r\n  def"
    assert tokenizer().decode(tokenizer()(text)["input_ids"]) == text


def test_words_of_the_texts_become_single_tokens() -> None:
    assert len(tokenizer()(" return")["input_ids"]) == 1
    assert len(tokenizer()(" lambda")["input_ids"]) > 1


def test_end_of_text_is_the_token_the_configurations_name() -> None:
    assert tokenizer().eos_token == END_OF_TEXT
    assert tokenizer().eos_token_id == tokenizer().pad_token_id == target_config().eos_token_id == 0


def test_no_token_lies_outside_the_models_vocabulary() -> None:
    assert max(tokenizer().get_vocab().values()) < VOCABULARY
