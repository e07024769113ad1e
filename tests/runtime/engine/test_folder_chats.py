"""Conversations in a folder's chat template are those that transformers writes, token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from spectune.engines.transformers.running import RunningTransformers
from spectune.errors import ModelError, RequestError
from spectune.profiler.prompt import Message, conversation
from spectune.runtime.engine.chat_sandbox import ChatSandbox
from spectune.runtime.engine.folder_chats import FolderChats, chats_of_folder, tokenizer_of
from spectune.runtime.engine.loaded_chats import chats_of_target
from spectune.runtime.engine.prompts import chat_ids
from spectune.runtime.models.loading import load_tokenizer

from ...support.tiny_family import END, save_model, save_vocabulary

CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TURNS = (
    Message(role="developer", content="be short"),
    Message(role="user", content="1 + 1 <tag> 'é'"),
    Message(role="assistant", content="", extra={"tool_calls": [CALL], "refusal": None}),
    Message(role="user", content="main"),
)
THOUGHTS = tuple(
    Message(role="assistant", content="2", extra=extra)
    for extra in (
        {"reasoning": "a"},
        {"thinking": "b"},
        {"reasoning_content": "c"},
        {"reasoning": "d", "thinking": "e"},
    )
)
TEMPLATES = {
    "roles": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ add_generation_prompt }}",
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}",
    "tools": "{{ tools | tojson }}{% for m in messages if m.tool_calls is defined %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}",
    "blanks": "{% set ns = namespace(n=0) %}\n  {% for m in messages %}\n    {%- set ns.n = ns.n + 1 %}\n"
    "{{ ns.n }}\n{% endfor %}\n",
    "a generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    "a date": "{{ strftime_now('%Y') }}{{ messages[1].content | tojson }}",
    "functions": "{{ dict(a=1) | tojson }}{{ dict.fromkeys([1], 2) }}{{ namespace({'a': 1}, self=2).self }}"
    "{{ tools | tojson(indent=1, separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}",
    "thoughts": "{% for m in messages %}{{ m.reasoning_content }};{{ m.thinking }};{{ m.reasoning }}{% endfor %}",
    "what is not there": "{{ messages | selectattr('refusal', 'defined') | list | length }}{{ documents is defined }}",
}
REFUSED = {
    "a call in a namespace": "{% set ns = namespace(**{'__call__': 1}) %}",
    "a hidden name in one": "{% set ns = namespace({'_x': 1}) %}",
    "a hidden name set there": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "a method of dictionaries": "{{ dict.update(messages[0], role='x') }}",
    "a function for JSON": "{% macro f(x) %}x{% endmacro %}{{ range(1) | tojson(default=f) }}",
    "a class for JSON": "{{ messages | tojson(cls=namespace) }}",
}
TOOLS = ({"type": "function", "function": {"name": "add", "description": "é"}},)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("chats") / "target", layers=1, seed=1)


def saved(folder: Path, template: str | dict[str, str]) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template  # several by their names
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_what_transformers_writes(name: str, folder: Path) -> None:
    tokenizer = saved(folder, TEMPLATES[name])
    found = chats_of_folder(folder)
    assert found is not None
    asked = (conversation(TURNS, tools=TOOLS), conversation(TURNS[1:]), conversation(THOUGHTS, tools=TOOLS))
    assert found.encode(asked) == [chat_ids(tokenizer, one.messages, one.tools) for one in asked]


def test_of_several_templates_tools_have_their_own(folder: Path) -> None:
    tokenizer = saved(folder, {"default": "plain{{ messages[0].content }}", "tool_use": "tools"})
    found = chats_of_folder(folder)
    assert found is not None
    asked = (conversation(TURNS), conversation(TURNS, tools=TOOLS))
    assert found.encode(asked) == [chat_ids(tokenizer, one.messages, one.tools) for one in asked]
    assert found.encode(asked)[0] != found.encode(asked)[1]


def test_a_refused_conversation_is_named_by_its_roles(folder: Path) -> None:
    saved(folder, "{{ raise_exception('no developers') }}")
    found = chats_of_folder(folder)
    assert found is not None
    with pytest.raises(RequestError, match=r"roles developer, user, assistant, user \(no developers\)"):
        found.encode([conversation(TURNS)])


def test_a_template_cannot_reach_python(folder: Path) -> None:
    saved(folder, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    found = chats_of_folder(folder)
    assert found is not None
    with pytest.raises(RequestError, match="unsafe"):
        found.encode([conversation(TURNS)])


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_refuses_is_refused(name: str, folder: Path) -> None:
    tokenizer = saved(folder, REFUSED[name])
    found = chats_of_folder(folder)
    assert found is not None
    with pytest.raises(RequestError, match="refuses a conversation"):
        chat_ids(tokenizer, TURNS)
    with pytest.raises(RequestError, match="refuses a conversation"):
        found.encode([conversation(TURNS)])


def test_a_call_that_lies_in_an_object_is_not_called() -> None:
    called = []

    @pass_context
    def call(context: object) -> None:
        called.append(context)

    call.unsafe_callable = True  # type: ignore[attr-defined]  # jinja2's own mark, which it looks for in the object
    with pytest.raises(SecurityError):
        ChatSandbox().from_string("{{ given() }}").render(given=Namespace({"__call__": call}))
    assert not called


def test_templates_without_a_default_are_refused_where_none_is_wanted(tmp_path: Path) -> None:
    folder = save_model(tmp_path, layers=1, seed=1)
    tokenizer = saved(folder, {"rag": "x", "tool_use": "tools"})
    found = chats_of_folder(folder)
    assert found is not None
    with_tools = conversation(TURNS, tools=TOOLS)
    assert found.encode([with_tools]) == [chat_ids(tokenizer, TURNS, TOOLS)]
    with pytest.raises(RequestError, match="of its templates rag, tool_use none is default"):
        found.encode([conversation(TURNS)])


@pytest.mark.parametrize("template", [[{"template": "x"}], [{"name": "default"}], ["x"], {"default": "x"}])
def test_a_template_in_an_unknown_form_is_named(template: object, tmp_path: Path) -> None:
    folder = save_model(tmp_path, layers=1, seed=1)
    said(folder, chat_template=template)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json has the chat template"):
        chats_of_folder(folder)


@pytest.mark.parametrize("is_cut", [True, False])
def test_texts_are_neither_cut_nor_padded(is_cut: bool, tmp_path: Path) -> None:
    folder = save_model(tmp_path, layers=1, seed=1)
    tokenizer = saved(folder, "{% for m in messages %}{{ m.content }}{% endfor %}")
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if is_cut:
        own.enable_truncation(2)
    else:
        own.enable_padding(length=50)
    own.save(str(folder / "tokenizer.json"))
    found, read = tokenizer_of(folder), chats_of_folder(folder)
    assert found is not None and found.encode("def main").ids == tokenizer.encode("def main")
    assert read is not None and read.encode([conversation(TURNS)]) == [chat_ids(tokenizer, TURNS)]


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "9.0"}')
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        tokenizer_of(tmp_path)


def said(folder: Path, **more: object) -> Mapping[str, Any]:
    """Write settings into a folder's tokenizer_config.json and return all."""
    file = folder / "tokenizer_config.json"
    settings = {name: value for name, value in (json.loads(file.read_text()) | more).items() if value is not None}
    file.write_text(json.dumps(settings))
    return settings


@pytest.mark.parametrize("added", [None, {"0": {"content": END, "special": True}}])
def test_special_tokens_are_read_where_transformers_reads_them(
    added: Mapping[str, object] | None, tmp_path: Path
) -> None:
    folder = save_model(tmp_path, layers=1, seed=1)
    said(folder, chat_template="{{ bos_token }};{{ eos_token }}", added_tokens_decoder=added, bos_token=END)
    marks = {
        "bos_token": {"content": "def", "lstrip": False, "rstrip": False, "normalized": False},
        "eos_token": "main",
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(marks))
    tokenizer, found = load_tokenizer(str(folder)), chats_of_folder(folder)
    assert found is not None
    (ids,) = found.encode([conversation(TURNS)])
    assert tokenizer.decode(list(ids)) == tokenizer.decode(list(chat_ids(tokenizer, TURNS)))
    assert tokenizer.decode(list(ids)) == ("def;main" if added is None else f"{END};{END}")


@pytest.mark.parametrize("name", ["add_bos_token", "add_eos_token"])
def test_as_in_transformers_only_the_tokenizer_s_file_adds_tokens_to_texts(name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, layers=1, seed=1)
    said(folder, bos_token=END, **{name: True})
    found = tokenizer_of(folder)
    assert found is not None and found.encode("def main").ids == load_tokenizer(str(folder)).encode("def main")


def test_a_target_without_a_tokenizer_file_reads_conversations_by_transformers(tmp_path: Path) -> None:
    folder = save_vocabulary(save_model(tmp_path, layers=1, seed=1), TEMPLATES["roles"])
    tokenizer = load_tokenizer(str(folder))
    engine = RunningTransformers(folder, {}, dtype="float32", threads=1, folder=tmp_path)
    text, end = tokenizer.encode("def main"), tokenizer.eos_token_id
    for chats in (engine.chats, chats_of_target(folder)):
        assert chats is not None
        assert chats.encode([conversation(TURNS)]) == [chat_ids(tokenizer, TURNS)]
        assert chats.decode([[*text, end, *text], text]) == ["def main", "def main"]


def test_a_target_s_own_tokenizer_file_is_read_without_transformers(folder: Path, tmp_path: Path) -> None:
    saved(folder, "x")
    assert isinstance(chats_of_target(folder), FolderChats)
    assert chats_of_target(tmp_path) is None


def test_an_answer_is_read_up_to_its_end_without_special_tokens(folder: Path) -> None:
    tokenizer = saved(folder, "x")
    found = chats_of_folder(folder)
    assert found is not None and tokenizer.eos_token_id is not None
    text = tokenizer.encode("def main", add_special_tokens=False)
    assert found.decode([[*text, tokenizer.eos_token_id, *text], text]) == ["def main", "def main"]


def test_without_a_template_or_a_tokenizer_no_conversation_is_read(folder: Path, tmp_path: Path) -> None:
    assert chats_of_folder(tmp_path) is None
    bare = save_model(tmp_path / "bare", layers=1, seed=1)
    assert chats_of_folder(bare) is None
    saved(bare, "x")
    (bare / "tokenizer.json").unlink()
    assert chats_of_folder(bare) is None
