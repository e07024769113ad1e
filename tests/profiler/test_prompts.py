"""Prompts read from the files people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectune.errors import RequestError
from spectune.profiler.prompts import Message, Prompt, by_workload, read_prompts


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_a_json_line_gives_a_prompt_or_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '{"prompt": "one\\ntwo", "id": 3}\n\n{"text": "dr\u2028ei"}\n')
    assert [prompt.text for prompt in read_prompts(path)] == ["one\ntwo", "dr\u2028ei"]


def test_a_conversation_keeps_its_turns(tmp_path: Path) -> None:
    turns = '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]'
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", f'{{"messages": {turns}}}'))
    assert prompt.messages == (Message(role="system", content="Be brief."), Message(role="user", content="Hi"))
    assert prompt.text == "Be brief.\n\nHi"


def test_a_messages_text_parts_are_joined(tmp_path: Path) -> None:
    parts = '[{"type": "text", "text": "Read "}, {"type": "text", "text": "this."}]'
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", f'{{"messages": [{{"role": "user", "content": {parts}}}]}}'))
    assert prompt.messages == (Message(role="user", content="Read this."),)


def test_a_line_may_name_its_workload(tmp_path: Path) -> None:
    lines = (
        '{"prompt": "a", "workload": "code"}\n{"messages": [{"role": "user", "content": "b"}], "workload": "chat"}\n'
    )
    assert [prompt.workload for prompt in read_prompts(write(tmp_path / "p.jsonl", lines))] == ["code", "chat"]


def test_prompts_are_parted_by_workload_and_the_untagged_belong_to_the_default() -> None:
    tags = ["code", "", "chat", "code", "plain", ""]
    prompts = [Prompt(text=str(place), workload=tag) for place, tag in enumerate(tags)]
    parted = {workload: [prompt.text for prompt in own] for workload, own in by_workload(prompts, "plain").items()}
    assert parted == {"code": ["0", "3"], "plain": ["1", "4", "5"], "chat": ["2"]}
    assert list(parted) == ["code", "plain", "chat"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plain_text_is_one_prompt_per_block(tmp_path: Path, end: str) -> None:
    lines = ["", "first", "  still first", " ", "", "second", ""]
    prompts = read_prompts(write(tmp_path / "p.txt", end.join(lines)))
    assert [prompt.text for prompt in prompts] == ["first\n  still first", "second"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path / "p.txt", "\ufeffHi"))[0].text == "Hi"


@pytest.mark.parametrize(
    "line",
    [
        "{broken",
        "[]",
        '"text"',
        "{}",
        '{"prompt": 3}',
        '{"prompt": " "}',
        '{"messages": []}',
        '{"messages": [{}]}',
        '{"messages": "Hi"}',
        '{"messages": [{"role": "user", "content": null}]}',
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        '{"messages": [{"content": "Hi"}]}',
        '{"prompt": "good", "workload": 3}',
        '{"prompt": "good", "workload": " "}',
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "p.jsonl", f'{{"prompt": "good"}}\n\n{line}\n')
    with pytest.raises(RequestError, match=r"p\.jsonl line 3"):
        read_prompts(path)


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_file_without_a_prompt_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="holds no prompt; write one per block"):
        read_prompts(write(tmp_path / name, "\n \n"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read prompts"):
        read_prompts(tmp_path / "none.txt")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="UTF-8"):
        read_prompts(tmp_path / "p.txt")
