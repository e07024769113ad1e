"""Conversations in a folder's chat template are those that transformers writes, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from spectune.errors import RequestError
from spectune.profiler.prompt import Message, conversation
from spectune.runtime.engines.folder_chats import chats_of_folder
from spectune.runtime.models.loading import load_tokenizer
from spectune.runtime.prompt_ids import chat_ids

from .tiny_family import save_model

CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TURNS = (
    Message(role="developer", content="be short"),
    Message(role="user", content="1 + 1 <tag> 'é'"),
    Message(role="assistant", content="", extra={"tool_calls": [CALL], "refusal": None}),
    Message(role="user", content="main"),
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
    "what is not there": "{{ messages | selectattr('refusal', 'defined') | list | length }}{{ documents is defined }}",
}
TOOLS = ({"type": "function", "function": {"name": "add", "description": "é"}},)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("chats") / "target", layers=1, seed=1)


def saved(folder: Path, template: str | dict[str, str]) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template  # type: ignore[assignment]  # several by their names
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_what_transformers_writes(name: str, folder: Path) -> None:
    tokenizer = saved(folder, TEMPLATES[name])
    found = chats_of_folder(folder)
    assert found is not None
    asked = (conversation(TURNS, tools=TOOLS), conversation(TURNS[1:]))
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
