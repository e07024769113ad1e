"""From texts to tokens: a text begins once, whoever wrote its beginning."""

from __future__ import annotations

import pytest

from spectune.runtime.prompt_ids import prompt_ids

from .tiny_family import END, beginning_tokenizer, byte_tokenizer


@pytest.mark.parametrize("text", ["to be", f"{END}to be"])
def test_the_token_that_begins_a_text_stands_there_once(text: str) -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    ids = prompt_ids(tokenizer, text)
    assert ids == (tokenizer.bos_token_id, *tokenizer("to be", add_special_tokens=False)["input_ids"])


def test_what_a_text_itself_says_twice_stays() -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    ids = prompt_ids(tokenizer, f"{END}{END}to be")
    assert ids.count(tokenizer.bos_token_id) == 2
    assert prompt_ids(byte_tokenizer("to be"), f"{END}{END}to be")[:2] == (tokenizer.bos_token_id,) * 2
