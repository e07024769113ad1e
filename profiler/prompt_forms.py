"""The forms in which people keep prompts, distinguished by their keys.

The first of these keys that an entry has tells its form:

| keys | known from | what is asked |
|---|---|---|
| `messages` | OpenAI's chats | the turns, up to the last that is not the model's |
| `conversations` | ShareGPT | the first turn of a human, behind a system's |
| `turns` | MT-Bench, Spec-Bench | each turn behind the model's answers; `category` is the workload |
| `body` | OpenAI's batches | what is in it |
| `instruction` | Alpaca, Dolly | that, a blank line, and its `input` or `context` |
| `prompt`, `text` | ours, HumanEval, MBPP | the text, to be continued; a list is turns or messages |
| `question` and such | GSM8K | the text as a user's turn, behind its `passage` or `context` |

A prompt may have `workload`, `answer` and `image` beside it. The `answer` of a `question` is a worked solution, which
no text ends with: it is left alone. So are all other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RequestError
from .prompt import Message, Prompt, conversation

Json = Any
Entry = Mapping[str, Json]
EXTRAS = ("name", "tool_calls", "tool_call_id")  # of a message, which templates read
TEXT_PARTS = ("text", "input_text", "output_text")
ASKING = {"human", "user"}  # in ShareGPT's forms
QUESTIONS = ("question", "problem", "query", "input")
READ = (
    '{"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]}, {"turns": ["..."]} or {"question": "..."}'
)


def prompt_of(entry: object, folder: Path) -> Prompt | None:
    """Return the prompt of a JSON value, None where no human speaks; RequestError for a malformed one."""
    if isinstance(entry, str):
        return Prompt(text=entry)
    if not isinstance(entry, Mapping):
        raise RequestError(f"need a JSON object per prompt, got {str(entry)[:40]!r}; write for example {READ}")
    workload = entry.get("workload", "")
    if not isinstance(workload, str) or ("workload" in entry and not workload.strip()):
        raise RequestError(f"the workload must be a name, got {workload!r}; write one or leave it out")
    for key, read in FORMS.items():
        if key in entry:
            return read(entry, {"workload": workload}, folder)
    keys = ", ".join(map(repr, list(entry)[:12])) or "none"
    raise RequestError(f"no prompt is known by the keys {keys}; write for example {READ}")


def is_known(key: str) -> bool:
    """Return whether a key identifies a form, or belongs to a prompt of any form."""
    return key in FORMS or key in {"workload", "answer", "image", "context", "passage", "category", "tools"}


def _chat(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt:
    if entry.get("image"):
        raise RequestError('a conversation with images is not read; write its text as "prompt"')
    return _conversation(entry["messages"], entry, common)


def _conversation(listed: Json, entry: Entry, common: dict[str, Json]) -> Prompt:
    """Return a conversation without the model's last turns: these are to be generated."""
    messages = _messages(listed)
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages:
        raise RequestError("a conversation has no turn to answer; give one with the role user")
    tools = entry.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"tools must be a list of objects, got {str(tools)[:40]!r}")
    return conversation(messages, tools=tuple(tools), answer=_answer(entry), **common)


def _batch(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt | None:
    body = entry["body"]
    if not isinstance(body, dict) or "body" in body:
        raise RequestError(f"the body must be an object with messages or a prompt, got {str(body)[:40]!r}")
    return prompt_of({**body, **{key: value for key, value in common.items() if value}}, folder)


def _turns(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt:
    key = "turns" if "turns" in entry else "prompt"
    turns = entry[key]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise RequestError(f"{key} must be a list of texts, got {str(turns)[:40]!r}")
    category = entry.get("category")
    workload = common["workload"] or (category.strip() if isinstance(category, str) else "")
    return conversation([Message(role="user", content=turns[0])], later=tuple(turns[1:]), workload=workload)


def _shared(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt | None:
    turns = entry["conversations"] if "conversations" in entry else entry["conversation"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise RequestError('conversations must be a list of {"from": "human", "value": text}')
    said = [(turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))) for turn in turns]
    if not all(isinstance(who, str) and isinstance(what, str) for who, what in said):
        raise RequestError('a turn of conversations must be {"from": "human", "value": text}')
    asked = [what for who, what in said if who in ASKING and what.strip()]
    if not asked:
        return None
    system = [Message(role="system", content=what) for who, what in said[:1] if who == "system" and what.strip()]
    return conversation([*system, Message(role="user", content=asked[0])], **common)


def _instruction(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt:
    beside = entry.get("input") or entry.get("context") or ""
    parts = [entry["instruction"], beside]
    if not all(isinstance(part, str) for part in parts):
        raise RequestError("the instruction and its input must be texts")
    asked = "\n\n".join(part for part in parts if part.strip())
    return conversation([Message(role="user", content=asked)], **common)


def _prompt(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt:
    text = entry.get("prompt", entry.get("text"))
    if isinstance(text, list) and "prompt" in entry:
        return _turns(entry, common, folder) if not _are_messages(text) else _conversation(text, entry, common)
    if not isinstance(text, str):
        raise RequestError(f"a prompt must be text, got {str(text)[:40]!r}; write for example {READ}")
    images = _images(entry.get("image", []), folder)
    return Prompt(text=text, images=images, answer=_answer(entry), **common)


def _question(entry: Entry, common: dict[str, Json], folder: Path) -> Prompt:
    text = next(entry[key] for key in QUESTIONS if key in entry)
    if _are_messages(text):
        return _conversation(text, entry, common)
    if not isinstance(text, str):
        raise RequestError(f"a question must be text, got {str(text)[:40]!r}")
    passage = entry.get("passage", entry.get("context"))
    asked = f"{passage}\n\n{text}" if isinstance(passage, str) and passage.strip() else text
    return conversation([Message(role="user", content=asked)], **common)


Form = Callable[[Entry, dict[str, Json], Path], Prompt | None]
FORMS: Mapping[str, Form] = {
    "messages": _chat,
    "conversations": _shared,
    "conversation": _shared,
    "turns": _turns,
    "body": _batch,
    "instruction": _instruction,
    "prompt": _prompt,
    "text": _prompt,
    **dict.fromkeys(QUESTIONS, _question),
}


def _answer(entry: Entry) -> str:
    answer = entry.get("answer", "")
    if not isinstance(answer, str):
        raise RequestError(f"an answer must be text, got {answer!r:.40}; write it in quotes")
    return answer


def _images(named: Json, folder: Path) -> tuple[Path, ...]:
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RequestError(f"an image is the name of a file, or a list of names, got {str(named)[:40]!r}")
    return tuple(folder / name for name in names)


def _are_messages(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "role" in each for each in value)


def _messages(entries: Json) -> list[Message]:
    if not isinstance(entries, list):
        raise RequestError('messages must be a list of {"role": text, "content": text}')
    return [message_of(entry) for entry in entries]


def message_of(entry: object) -> Message:
    """Return a turn as OpenAI's API takes it: text, its parts, or tool calls; RequestError for anything else."""
    role = entry.get("role") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(role, str):
        raise RequestError(f'a message must be {{"role": text, "content": text}}, got {str(entry)[:60]!r}')
    content = entry.get("content")
    if content is None and entry.get("tool_calls"):
        content = ""
    extra = {key: entry[key] for key in EXTRAS if entry.get(key)}
    return Message(role=role, content=content if isinstance(content, str) else _joined(content), extra=extra)


def _joined(parts: Json) -> str:
    if not isinstance(parts, Sequence):
        raise RequestError(f"the content of a message must be text, got {str(parts)[:40]!r}")
    kinds = [part.get("type", "") if isinstance(part, Mapping) else "" for part in parts]
    if other := next((kind for kind in kinds if kind not in TEXT_PARTS), None):
        raise RequestError(f"a message has a part of the type {other!r}, and only text is read; leave that message out")
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise RequestError('a part of a message must be {"type": "text", "text": text}')
    return "".join(map(str, texts))
