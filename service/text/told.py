"""Answers in the form of OpenAI's API."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...runtime.engine.settings import Completion
from .worker import TextAnswer

Json = dict[str, Any]  # JSON values
Form = Literal["completion", "chat"]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResponse:
    """The form of a request's answers: the API's form, the model's name, and the number of answers to a prompt."""

    form: Form
    model: str
    choices: int = 1
    number: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, done: Sequence[tuple[TextAnswer, Completion]]) -> Json:
        """Return all choices at once."""
        choices = [self._choice(place, completion) for place, (_, completion) in enumerate(done)]
        return {**self._head(is_chunk=False), "choices": choices, "usage": self._usage(done)}

    def chunk(self, place: int, piece: str, reason: str | None = None, *, is_first: bool = False) -> Json:
        """Return a piece of one choice, or its end."""
        if self.form == "completion":
            choice: Json = {"index": place, "text": piece, "logprobs": None, "finish_reason": reason}
        else:
            delta = ({"role": "assistant"} if is_first else {}) | ({"content": piece} if piece or is_first else {})
            choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head(is_chunk=True), "choices": [choice]}

    def last(self, done: Sequence[tuple[TextAnswer, Completion]]) -> Json:
        """Return the chunk with the usage alone."""
        return {**self._head(is_chunk=True), "choices": [], "usage": self._usage(done)}

    def _usage(self, done: Sequence[tuple[TextAnswer, Completion]]) -> Json:
        first = done[:: self.choices]
        read = sum(len(answer.request.prompt) for answer, _ in first)
        new = sum(len(completion.tokens) for _, completion in done)
        cached = sum(completion.cached_tokens for _, completion in first)
        return {
            "prompt_tokens": read,
            "completion_tokens": new,
            "total_tokens": read + new,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _head(self, *, is_chunk: bool) -> Json:
        kind, prefix = "text_completion", "cmpl"
        if self.form == "chat":
            kind, prefix = "chat.completion.chunk" if is_chunk else "chat.completion", "chatcmpl"
        return {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.model}

    def _choice(self, place: int, done: Completion) -> Json:
        text: Json = {"text": done.text}
        if self.form == "chat":
            text = {"message": {"role": "assistant", "content": done.text}}
        return {"index": place, **text, "logprobs": None, "finish_reason": done.finish_reason}


def error_of(message: str, kind: str, code: str | None = None) -> Json:
    """Return an error as clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def sse(told: Json) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"
