"""The prompts a profile is taken on, read from a file people can write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is asked of a model; a conversation keeps its turns for the model's chat template."""

    text: str  # of a conversation: its contents, joined by blank lines, for models without a template
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise RequestError("a prompt is empty; write some text in it or remove it")


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts of a file.

    Args:
        path: .jsonl with {"prompt": str}, {"text": str} or {"messages": [{"role": str, "content": str}, ...]} per
            line; any other name is plain text with one prompt per block, blocks separated by blank lines.

    Raises:
        RequestError: the file is missing, is not text, holds no prompt, or has a malformed line, which is named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read prompts from {path} ({error}); give a UTF-8 text or .jsonl file") from error
    prompts = _from_lines(path, text) if path.suffix == ".jsonl" else _from_blocks(text)
    if not prompts:
        lines = len(text.splitlines())
        raise RequestError(f"{path} ends at line {lines} without a prompt; write one per block or JSON line")
    return prompts


def _from_blocks(text: str) -> tuple[Prompt, ...]:
    blocks = re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n"))
    return tuple(Prompt(text=block.strip("\n")) for block in blocks if block.strip())


def _from_lines(path: Path, text: str) -> tuple[Prompt, ...]:
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold other separators that splitlines cuts at
        if line.strip():
            try:
                prompts.append(_from_entry(json.loads(line)))
            except json.JSONDecodeError as error:
                raise RequestError(f"{path} line {number} is not JSON ({error.msg}); mend or remove it") from error
            except RequestError as error:
                raise RequestError(f"{path} line {number}: {error}") from error
    return tuple(prompts)


def _from_entry(entry: object) -> Prompt:
    if isinstance(entry, dict) and "messages" in entry:
        messages = _messages(entry["messages"])
        return Prompt(text="\n\n".join(message.content for message in messages), messages=messages)
    text = entry.get("prompt", entry.get("text")) if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise RequestError('need {"prompt": text}, {"text": text} or {"messages": [...]}')
    return Prompt(text=text)


def _messages(entries: object) -> tuple[Message, ...]:
    if not isinstance(entries, list) or not all(_is_message(entry) for entry in entries):
        raise RequestError('messages must be a list of {"role": text, "content": text}')
    return tuple(Message(role=entry["role"], content=entry["content"]) for entry in entries)


def _is_message(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("role", "content"))
