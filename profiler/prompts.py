"""The prompts a profile is taken on, read from a file people can write.

A .jsonl file has one object per line: {"prompt": text}, {"text": text} or {"messages": [{"role": text, "content":
text}, ...]}. A message's content may also be a list of parts {"type": "text", "text": text}, which are joined.
"workload": text says what kind of prompt a line is, where a file mixes several; "answer": text is what its text should
end with (see `read_answers`); "image": the name of a file beside this one, or a list of names, are images that the
prompt speaks of. Other keys are left alone. Any other
file is plain text, one prompt per block, blocks separated by blank lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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
    workload: str = ""  # what kind of prompt it is; "" is that of the whole file
    images: tuple[Path, ...] = ()  # files of what it speaks of, for targets that see

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise RequestError("a prompt is empty; write some text in it or remove it")


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts of a file.

    Args:
        path: named .jsonl, or plain text; see the head of this file.

    Raises:
        RequestError: the file is missing, is not text, holds no prompt, or has a malformed line, which is named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read prompts from {path} ({error}); give a UTF-8 text or .jsonl file") from error
    prompts = _from_lines(path, text) if path.suffix == ".jsonl" else _from_blocks(text)
    if not prompts:
        raise RequestError(f"{path} holds no prompt; write one per block or JSON line")
    return prompts


def read_answers(path: Path) -> tuple[str, ...]:
    """Return the "answer" of every line of a .jsonl file of prompts; nothing where a line, or any other file, has none.

    Raises:
        RequestError: the file cannot be read as prompts, or an answer is no text.
    """
    if path.suffix != ".jsonl":
        return ()
    read_prompts(path)
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    answers = [json.loads(line).get("answer", "") for line in lines if line.strip()]
    if not all(isinstance(answer, str) for answer in answers):
        raise RequestError(f"an answer in {path} is no text; write it in quotes")
    return tuple(answers) if all(answer.strip() for answer in answers) else ()


def by_workload(prompts: Iterable[Prompt], default: str) -> dict[str, tuple[Prompt, ...]]:
    """Return the prompts of every workload, in the order in which the workloads first come.

    Args:
        prompts: of one file.
        default: the workload of prompts that do not name theirs.
    """
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.workload or default, []).append(prompt)
    return {workload: tuple(own) for workload, own in found.items()}


def _from_blocks(text: str) -> tuple[Prompt, ...]:
    blocks = re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n"))
    return tuple(Prompt(text=block.strip("\n")) for block in blocks if block.strip())


def _from_lines(path: Path, text: str) -> tuple[Prompt, ...]:
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold other separators that splitlines cuts at
        if line.strip():
            try:
                prompts.append(_from_entry(json.loads(line), path.parent))
            except json.JSONDecodeError as error:
                raise RequestError(f"{path} line {number} is not JSON ({error.msg}); mend or remove it") from error
            except RequestError as error:
                raise RequestError(f"{path} line {number}: {error}") from error
    return tuple(prompts)


def _from_entry(entry: object, folder: Path) -> Prompt:
    if not isinstance(entry, dict):
        raise RequestError(f"need a JSON object per line, got {str(entry)[:40]!r}")
    workload = entry.get("workload", "")
    if not isinstance(workload, str) or ("workload" in entry and not workload.strip()):
        raise RequestError(f"the workload must be a name, got {workload!r}; write one or leave it out")
    images = _images(entry.get("image", []), folder)
    if images and "messages" in entry:
        raise RequestError('a conversation with images is not read; write its text as "prompt"')
    if "messages" in entry:
        messages = _messages(entry["messages"])
        joined = "\n\n".join(message.content for message in messages)
        return Prompt(text=joined, messages=messages, workload=workload)
    text = entry.get("prompt", entry.get("text"))
    if not isinstance(text, str):
        raise RequestError('need {"prompt": text}, {"text": text} or {"messages": [...]}')
    return Prompt(text=text, workload=workload, images=images)


def _images(named: object, folder: Path) -> tuple[Path, ...]:
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RequestError(f"an image is the name of a file, or a list of names, got {str(named)[:40]!r}")
    return tuple(folder / name for name in names)


def _messages(entries: object) -> tuple[Message, ...]:
    if not isinstance(entries, list):
        raise RequestError('messages must be a list of {"role": text, "content": text}')
    return tuple(_message(entry) for entry in entries)


def _message(entry: object) -> Message:
    role = entry.get("role") if isinstance(entry, dict) else None
    content = _content(entry.get("content")) if isinstance(entry, dict) else None
    if not isinstance(role, str) or content is None:
        raise RequestError('a message must be {"role": text, "content": text}')
    return Message(role=role, content=content)


def _content(content: object) -> str | None:
    """Return the text of a message, None where it is none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part["text"] for part in content if isinstance(part, dict) and part.keys() >= {"type", "text"}]
    is_text = len(parts) == len(content) and all(isinstance(part, str) for part in parts)
    return "".join(parts) if is_text else None
