"""From texts to tokens: a text begins once, whoever wrote its beginning."""

from __future__ import annotations

import pytest

from spectune.errors import RequestError
from spectune.profiler.prompts import Message
from spectune.runtime.engine.prompts import chat_ids, prompt_ids

from ..support.tiny_family import END, beginning_tokenizer, byte_tokenizer


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


def test_a_conversation_has_the_special_tokens_that_its_template_writes_and_no_others() -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    turns = [Message(role="user", content="to be")]
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    own = tuple(tokenizer("to be", add_special_tokens=False)["input_ids"])
    assert chat_ids(tokenizer, turns) == own
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    assert chat_ids(tokenizer, turns) == (tokenizer.bos_token_id, *own)


def test_developers_speak_as_the_system_where_a_template_does_not_know_them() -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    turns = [Message(role="developer", content="to be")]
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert tokenizer.decode(list(chat_ids(tokenizer, turns))) == "<system>to be"
    tokenizer.chat_template += "{# developer #}"
    assert tokenizer.decode(list(chat_ids(tokenizer, turns))) == "<developer>to be"


def test_a_template_reads_calls_and_tools() -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    call = {"id": "c", "function": {"name": "be", "arguments": '{"who": "you"}'}}
    turns = [Message(role="assistant", content="", extra={"tool_calls": [call]})]
    tokenizer.chat_template = (
        "{% for t in tools %}{{ t.name }};{% endfor %}"
        "{% for c in messages[0].tool_calls %}{{ c.function.name }} {{ c.function.arguments.who }}{% endfor %}"
    )
    assert tokenizer.decode(list(chat_ids(tokenizer, turns, [{"name": "one"}]))) == "one;be you"


def test_a_conversation_that_no_template_takes_is_refused() -> None:
    tokenizer = beginning_tokenizer("to be or not to be")
    turns = [Message(role="user", content="to be")]
    with pytest.raises(RequestError, match="has no chat template"):
        chat_ids(tokenizer, turns)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(RequestError, match="refuses a conversation of the roles user"):
        chat_ids(tokenizer, turns)
