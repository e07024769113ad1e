"""Prompt files as people have them: forms told apart by keys, kinds by names, samples, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spectune.errors import RequestError
from spectune.profiler.prompt_files import BLOCK
from spectune.profiler.prompts import Message, Prompt, answers_of, read_prompts

PUBLISHED = Path(__file__).parents[1] / "data" / "prompts"
ASKED = {"role": "user", "content": "Is rain wet?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def put(path: Path, *entries: Any) -> Path:
    """Write entries as lines of JSON, texts as prompts."""
    each = [{"prompt": entry} if isinstance(entry, str) else entry for entry in entries]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in each))
    return path


def only(tmp_path: Path, entry: Any) -> Prompt:
    (prompt,) = read_prompts(put(tmp_path / "p.jsonl", entry))
    return prompt


@pytest.mark.parametrize(
    ("name", "count", "begins", "is_chat", "later", "workload"),
    [
        ("HumanEval.jsonl.gz", 3, "from typing import List\n\n\ndef has_close", False, 0, ""),
        ("question.jsonl", 3, "Compose an engaging travel blog", True, 1, "writing"),
        ("dummy_conversation.json", 3, "Who are you?", True, 0, ""),
        ("asdiv.jsonl", 3, "Seven red apples and two green apples are in the basket.\n\nHow many", True, 0, ""),
        ("liveqa.jsonl", 2, "What is the relationship between", True, 0, ""),
        ("trivia_qa.jsonl", 3, "Follow the given examples and answer the question.\n\nWho was", True, 0, ""),
        ("longbench_write.jsonl", 3, "Write an outline for a short", False, 0, ""),
        ("primality_testing.json", 3, "Is 7411 a prime number?", True, 0, ""),
        ("to_be_fixed_questions.json", 3, "Simplify $(5x+3)", True, 0, ""),
        ("beneficial_samples.jsonl", 2, "I'm planning the menu", True, 0, ""),
    ],
)
def test_files_of_published_packages_are_read_as_they_are(
    name: str, count: int, begins: str, is_chat: bool, later: int, workload: str
) -> None:
    prompts = read_prompts(PUBLISHED / name)
    first = prompts[0]
    assert (len(prompts), bool(first.messages), len(first.later), first.workload) == (count, is_chat, later, workload)
    assert first.text.startswith(begins)
    assert answers_of(prompts) == ()


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"instruction": "Sort them.", "input": "3 1 2", "output": "1 2 3"}, "Sort them.\n\n3 1 2"),
        ({"output": "Yes.", "input": "", "instruction": "Is rain wet?"}, "Is rain wet?"),
        ({"instruction": "Who?", "context": "Ann rode.", "response": "Ann", "category": "qa"}, "Who?\n\nAnn rode."),
        ({"question": "2 + 2?", "answer": "It is 4.\n#### 4"}, "2 + 2?"),
        ({"conversations": [{"from": "gpt", "value": "Hi"}, {"from": "human", "value": "So?"}]}, "So?"),
        ({"conversation": [ASKED, {"role": "assistant", "content": "Yes."}], "turn": 1}, "Is rain wet?"),
        ({"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [ASKED]}}, "Is rain wet?"),
        ({"custom_id": "1", "url": "/v1/responses", "body": {"input": "Is rain wet?"}}, "Is rain wet?"),
        ({"messages": [ASKED, {"role": "assistant", "content": "Yes."}]}, "Is rain wet?"),
        ({"prompt": [ASKED]}, "Is rain wet?"),
    ],
)
def test_a_form_is_told_by_its_keys(tmp_path: Path, entry: Any, text: str) -> None:
    assert only(tmp_path, entry).text == text


def test_a_batch_request_for_a_completion_is_plain_text(tmp_path: Path) -> None:
    prompt = only(tmp_path, {"custom_id": "1", "url": "/v1/completions", "body": {"model": "m", "prompt": "def f("}})
    assert prompt == Prompt(text="def f(")


def test_shared_conversations_keep_their_system_turn(tmp_path: Path) -> None:
    turns = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
    assert only(tmp_path, {"id": "x", "conversations": turns}).messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi"),
    )


def test_what_tools_were_asked_and_said_stays_in_a_conversation(tmp_path: Path) -> None:
    said = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "wet", "tool_call_id": "c1"},
    ]
    prompt = only(tmp_path, {"messages": said, "tools": [{"type": "function"}]})
    assert [message.role for message in prompt.messages] == ["developer", "user", "assistant", "tool"]
    assert [dict(message.extra) for message in prompt.messages[2:]] == [{"tool_calls": [CALL]}, {"tool_call_id": "c1"}]
    assert prompt.text == "Be brief.\n\nIs rain wet?\n\nwet"
    assert prompt.tools == ({"type": "function"},)


def test_several_turns_are_asked_one_behind_the_other(tmp_path: Path) -> None:
    prompt = only(tmp_path, {"turns": ["One?", "Two?", "Three?"], "question_id": 1, "category": "math"})
    assert (prompt.messages, prompt.later) == ((Message(role="user", content="One?"),), ("Two?", "Three?"))
    assert prompt.workload == "math"


@pytest.mark.parametrize("wrapper", ["", "data", "rows"])
def test_a_json_file_is_its_array_wherever_that_lies(tmp_path: Path, wrapper: str) -> None:
    entries = ["one", {"prompt": "two"}]
    (tmp_path / "p.json").write_text(json.dumps({"version": 1, wrapper: entries} if wrapper else entries, indent=1))
    assert [prompt.text for prompt in read_prompts(tmp_path / "p.json")] == ["one", "two"]


def test_a_json_file_may_be_one_prompt_or_several_behind_each_other(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"messages": [ASKED]}, indent=1))
    assert len(read_prompts(tmp_path / "p.json")) == 1
    assert len(read_prompts(put(tmp_path / "q.json", {"prompt": "a"}, {"prompt": "b"}))) == 2


def test_a_table_s_header_tells_its_columns(tmp_path: Path) -> None:
    with (tmp_path / "p.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([["id", "Prompt", "workload"], [1, 'say "hi",\n\nthen go', "chat"], [2, "b", ""]])
    prompts = read_prompts(tmp_path / "p.csv")
    assert [(prompt.text, prompt.workload) for prompt in prompts] == [('say "hi",\n\nthen go', "chat"), ("b", "")]


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "P.TSV"])
def test_a_table_may_be_parted_otherwise(tmp_path: Path, separator: str, name: str) -> None:
    (tmp_path / name).write_text(f"id{separator}question\n1{separator}a, b?\n")
    assert [prompt.text for prompt in read_prompts(tmp_path / name)] == ["a, b?"]


@pytest.mark.parametrize("end", ["", ",", ", ,"])
def test_a_cell_that_its_commas_would_cut_is_refused_and_empty_cells_behind_are_none(tmp_path: Path, end: str) -> None:
    (tmp_path / "p.csv").write_text(f"prompt,id\nfirst,1{end}\n")
    assert [prompt.text for prompt in read_prompts(tmp_path / "p.csv")] == ["first"]
    (tmp_path / "p.csv").write_text(f"prompt\nsay one{end}\nfirst this, then that\n")
    with pytest.raises(RequestError, match=r"p\.csv line 3 has 2 cells, and its first line names 1; put quotes around"):
        read_prompts(tmp_path / "p.csv")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz"])
def test_blank_lines_inside_quotes_of_a_table_end_no_prompt(tmp_path: Path, name: str, end: str) -> None:
    texts = [f'Write {place}:\n\n"first", block\n\n\nand a second one' for place in range(10)]
    rows = [f'"{text.replace(chr(34), 2 * chr(34))}",{place}' for place, text in enumerate(texts)]
    written = end.join(["prompt,id", *(row.replace("\n", end) for row in rows)]).encode()
    (tmp_path / name).write_bytes(gzip.compress(written) if name.endswith("gz") else written)
    found = [prompt.text.replace("\r\n", "\n") for prompt in read_prompts(tmp_path / name)]
    assert found == texts


def test_a_parquet_file_is_read_by_its_columns(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {"prompt": [["One?", "Two?"], ["Three?"]], "category": ["math", "code"], "blob": [b"x", b"y"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "p.parquet")
    prompts = read_prompts(tmp_path / "p.parquet")
    assert [(prompt.text, prompt.later, prompt.workload) for prompt in prompts] == [
        ("One?", ("Two?",), "math"),
        ("Three?", (), "code"),
    ]
    parquet.write_table(pyarrow.table({"id": [1]}), tmp_path / "q.parquet")
    with pytest.raises(RequestError, match="has the columns 'id', and no prompt is known by them"):
        read_prompts(tmp_path / "q.parquet")
    (tmp_path / "r.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RequestError, match="is no Parquet file"):
        read_prompts(tmp_path / "r.parquet")


def test_a_folder_is_all_its_logs_in_order(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    put(tmp_path / "logs" / "b.jsonl", {"prompt": "second"})
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'["first"]'))
    (tmp_path / "README.md").write_text("no prompt")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["first", "second"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="holds no file of prompts"):
        read_prompts(tmp_path / "empty")


def test_a_sample_is_drawn_by_its_seed_and_lies_in_the_file_s_order(tmp_path: Path) -> None:
    path = put(tmp_path / "p.jsonl", *(f"{number:03}" for number in range(200)))
    drawn = {seed: [prompt.text for prompt in read_prompts(path, sample=20, seed=seed)] for seed in (1, 2)}
    assert drawn[1] == sorted(drawn[1]) and len(set(drawn[1])) == 20
    assert drawn[1] != drawn[2]
    assert drawn[1] == [prompt.text for prompt in read_prompts(path, sample=20, seed=1)]


def test_every_prompt_is_as_likely_in_a_sample(tmp_path: Path) -> None:
    path = put(tmp_path / "p.jsonl", *"abcdef")
    drawn = [prompt.text for seed in range(600) for prompt in read_prompts(path, sample=2, seed=seed)]
    assert all(150 < drawn.count(letter) < 250 for letter in "abcdef")  # 200 each, give or take 4.3 deviations


def test_a_sample_has_as_many_of_each_workload(tmp_path: Path) -> None:
    kinds = [*["common"] * 90, *["rare"] * 3, *["some"] * 7]
    entries = [{"prompt": str(place), "workload": kind} for place, kind in enumerate(kinds)]
    drawn = [prompt.workload for prompt in read_prompts(put(tmp_path / "p.jsonl", *entries), sample=12, seed=4)]
    assert [drawn.count(kind) for kind in ("common", "rare", "some")] == [5, 3, 4]


def test_an_array_longer_than_what_is_read_at_once_is_whole(tmp_path: Path) -> None:
    texts = [f"{number} " + "ä\u2028\"'\\]," * 1000 for number in range(2 * BLOCK // 7000)]
    texts.append("long " * (BLOCK // 3))
    (tmp_path / "p.json").write_text(json.dumps(texts, ensure_ascii=False))
    assert [prompt.text for prompt in read_prompts(tmp_path / "p.json")] == texts


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    whole = json.dumps([{"conversations": []}, "one", "two"])
    (tmp_path / "p.json").write_text(whole[:-3])
    assert [prompt.text for prompt in read_prompts(tmp_path / "p.json", sample=5, tell=told.append)] == ["one"]
    assert "breaks off within entry 3; the 2 before it are read" in told[0]
    assert "1 conversations" in told[1] and "fewer than the 5 asked for" in told[2]


def test_answers_are_there_where_every_prompt_has_one(tmp_path: Path) -> None:
    both = [{"prompt": "1 + 1 =", "answer": "2"}, {"messages": [ASKED], "answer": "yes"}]
    assert answers_of(read_prompts(put(tmp_path / "p.jsonl", *both))) == ("2", "yes")
    assert answers_of(read_prompts(put(tmp_path / "p.jsonl", *both, {"prompt": "a"}))) == ()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"story": "x", "title": "y"}, "no prompt is known by the keys 'story', 'title'; write for example {"),
        ({"prompt": "a\ud800"}, r"a prompt holds half a character, \\ud800 alone"),
        ({"turns": ["a", "\udfff"]}, r"half a character, \\udfff alone"),
        ({"messages": [{**ASKED, "name": "\ud800"}]}, "half a character"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "part of the type 'image_url'"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "no turn to answer"),
        ({"turns": [3]}, "turns must be a list of texts"),
        ({"question": [[ASKED]]}, "a question must be text"),
        ({"conversations": [{"from": "human"}]}, "a turn of conversations must be"),
        ({"instruction": 3}, "the instruction and its input must be texts"),
        ({"body": "x"}, "the body must be an object"),
        ({"prompt": "a", "answer": 4}, "an answer must be text, got 4"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_place(tmp_path: Path, entry: Any, words: str) -> None:
    with pytest.raises(RequestError, match=rf"p\.jsonl line 2: .*{words}"):
        read_prompts(put(tmp_path / "p.jsonl", "good", entry))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.json", b"first block\n\nsecond", r"p\.json is not JSON \(Expecting value, near 'first"),
        ("p.json", b'[{"prompt": "a"}, {"prompt" "b"}]' + b" " * 20, "Expecting ':' delimiter"),
        ("p.json", b'{"prompt": "never ends', "Unterminated string"),
        ("p.json", b"[" * 100_000, "nested too deeply"),
        ("p.json", b" \n", "holds no prompt"),
        ("p.json", b"[]", "holds no prompt"),
        ("p.jsonl", b"", "holds no prompt"),
        ("p.csv", b"first block\n\nsecond, block\n", "has the columns 'first block', and no prompt is known"),
        ("p.csv", b'prompt\n"never ends', "is not CSV"),
        ("p.csv", b"", "has the columns none"),
        ("p.txt", b"a\0b", "is no text: line 1 holds a zero byte"),
        ("p.txt", "ä".encode("latin-1"), "it is no UTF-8 text"),
        ("p.jsonl.gz", gzip.compress(b'{"prompt": "one"}\n' * 99, mtime=0)[:-12], "its compression is broken"),
        ("p.jsonl.gz", b"\x1f\x8bnothing of the kind", "its compression is broken"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RequestError, match=words):
        read_prompts(tmp_path / name)


def test_more_prompts_than_allowed_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = put(tmp_path / "p.jsonl", *"abcdef")
    with pytest.raises(RequestError, match="more than 5 prompts; draw some of them, for example --sample 64"):
        read_prompts(path, most=5)
    assert len(read_prompts(path, most=5, sample=3)) == 3
