"""A prompt of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)  # JSON values for the template, as "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt of a model; a conversation holds its turns for the model's chat template."""

    text: str  # of a conversation: its contents, joined by blank lines, for models without a template
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # JSON values that the template lists
    later: tuple[str, ...] = ()  # what the user asks next, each behind the model's own answer to all before
    workload: str = ""  # what kind of prompt it is; "" is that of the whole file
    images: tuple[Path, ...] = ()  # files of what it speaks of, for targets that see
    answer: str = ""  # what its text should end with; "" where that is not known

    def __post_init__(self) -> None:
        if not self.text.strip():
            what = f"holds blanks alone, {self.text[:40]!r}" if self.text else "is empty"
            raise RequestError(f"a prompt {what}; write some text in it or remove it")
        read = [self.text, *self.later, self.answer, self.workload, *(turn.role for turn in self.messages)]
        listed = [self.tools, [turn.extra for turn in self.messages]]
        try:
            "".join([*read, json.dumps(listed, ensure_ascii=False)]).encode()
        except UnicodeEncodeError as error:
            lone = f"\\u{ord(error.object[error.start]):04x}"
            raise RequestError(f"a prompt holds half a character, {lone} alone; write the whole one") from None


def conversation(messages: Iterable[Message], **more: Any) -> Prompt:  # Any: other fields of a prompt
    """Return a prompt of some turns."""
    turns = tuple(messages)
    return Prompt(text="\n\n".join(turn.content for turn in turns if turn.content), messages=turns, **more)
