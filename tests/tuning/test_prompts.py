"""From text to requests: chat templates, cuts at the front, seeds and stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from spectune.errors import RequestError
from spectune.profiler.prompts import Message, Prompt
from spectune.runtime.engine.prompts import beginning, encode_prompt, prompt_ids
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest

from ..support.tiny_family import END, beginning_tokenizer, byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<it>{% endif %}"
)
TURNS = (Message(role="me", content="hello"), Message(role="you", content="there"))
CHAT = Prompt(text="hello\n\nthere", messages=TURNS)


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    made = byte_tokenizer("hello there")
    made.chat_template = template
    return made


def request(*texts: str, longest: int = 64, seed: int = 0) -> ProfileRequest:
    return ProfileRequest(
        models=Models(target=Path("target")),
        prompts=[Prompt(text=text) for text in texts],
        batches=(1,),
        max_new_tokens=9,
        max_prompt_tokens=longest,
        temperature=0.5,
        seed=seed,
    )


def test_a_conversation_goes_through_the_chat_template() -> None:
    made = tokenizer(TEMPLATE)
    assert made.decode(list(encode_prompt(CHAT, made))) == "<me>hello<you>there<it>"


def test_a_conversation_without_a_template_is_its_contents() -> None:
    made = tokenizer()
    assert made.decode(list(encode_prompt(CHAT, made))) == "hello\n\nthere"


def test_a_conversation_the_template_refuses_is_reported_with_its_roles() -> None:
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    prompt = Prompt(text="Be brief.", messages=(Message(role="system", content="Be brief."),))
    with pytest.raises(RequestError, match=r"refuses a conversation of the roles system \(no system role\)"):
        encode_prompt(prompt, tokenizer(picky))


def test_a_templates_own_special_tokens_are_not_doubled() -> None:
    made = tokenizer(END + "{{ messages[0].content }}")
    assert made.decode(list(encode_prompt(CHAT, made))) == END + "hello"


def test_plain_text_never_meets_the_chat_template() -> None:
    made = tokenizer(TEMPLATE)
    assert made.decode(list(encode_prompt(Prompt(text="hello"), made))) == "hello"


def test_a_prompt_without_tokens_is_refused_by_its_words() -> None:
    deaf = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))
    with pytest.raises(RequestError, match=r"the prompt 'zzz' has no tokens under this tokenizer"):
        encode_prompt(Prompt(text="zzz"), deaf)


def test_a_long_prompt_keeps_its_end() -> None:
    made = tokenizer()
    whole = encode_prompt(Prompt(text="abcdefghij"), made)
    cut, short = requests_of(request("abcdefghij", "xy", longest=4), made)
    assert cut.prompt == whole[-4:] and made.decode(list(cut.prompt)) == "ghij"
    assert made.decode(list(short.prompt)) == "xy"


@pytest.mark.parametrize(("longest", "cut"), [(4, "hij"), (11, "abcdefghij"), (1, "j")])
def test_a_cut_prompt_keeps_the_token_that_begins_a_text(longest: int, cut: str) -> None:
    made = beginning_tokenizer("hello there")
    first = made.bos_token_id
    found, _ = requests_of(request("abcdefghij", "xy", longest=longest), made)
    kept = tuple(made(cut, add_special_tokens=False)["input_ids"])
    assert found.prompt == ((first, *kept) if longest > 1 else kept)


def test_a_text_that_carries_its_first_token_is_recorded_as_it_is_decoded() -> None:
    made = beginning_tokenizer("hello there")
    ids = encode_prompt(Prompt(text=f"{END}hello"), made)
    assert ids == prompt_ids(made, f"{END}hello") and ids.count(made.bos_token_id) == 1


def test_requests_draw_with_seeds_of_their_own_and_stop_at_the_tokenizers_end() -> None:
    made = tokenizer()
    found = requests_of(request("a", "b", "c", seed=40), made)
    assert [one.seed for one in found] == [40, 41, 42]
    assert {one.stop for one in found} == {frozenset([made.convert_tokens_to_ids(END)])}
    assert {(one.max_new_tokens, one.temperature) for one in found} == {(9, 0.5)}


def test_a_tokenizer_without_an_end_stops_at_nothing() -> None:
    endless = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer("hello").backend_tokenizer)
    assert requests_of(request("a", "b"), endless)[0].stop == frozenset()


def test_what_begins_every_text_is_known_by_itself() -> None:
    assert beginning(beginning_tokenizer("hello there")) == (beginning_tokenizer("hello there").bos_token_id,)
    assert beginning(byte_tokenizer("hello there")) == ()
