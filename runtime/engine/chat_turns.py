"""Conversations as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...errors import RequestError
from ...profiler.prompt import Message

THOUGHT = ("reasoning_content", "thinking", "reasoning")  # names of what a model thought; templates read the first two


def turns_of(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Return turns in OpenAI's form: a developer's are the system's where the template does not know developers."""
    knows_developers = "developer" in template
    return [
        {
            "role": "system" if message.role == "developer" and not knows_developers else message.role,
            "content": message.content,
            **message.extra,
        }
        for message in messages
    ]


def template_turns(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Return turns as templates take them: nothing that is null, thoughts by both names, arguments of calls as objects.

    Source: transformers' `render_jinja_template`.
    """
    turns = [
        _with_thought({key: value for key, value in turn.items() if value is not None})
        for turn in turns_of(messages, template)
    ]
    return [
        {**turn, "tool_calls": [_call(call) for call in turn["tool_calls"]]} if turn.get("tool_calls") else turn
        for turn in turns
    ]


def refusal(messages: Sequence[Message], error: Exception) -> RequestError:
    """Return the error of a conversation that a template does not take."""
    roles = ", ".join(message.role for message in messages)
    return RequestError(
        f"the tokenizer's chat template refuses a conversation of the roles {roles} ({error}); "
        "change the roles or give the prompt as text"
    )


def _with_thought(turn: dict[str, Any]) -> dict[str, Any]:
    thought = next((turn[name] for name in THOUGHT if name in turn), None)
    return turn if thought is None else {"thinking": thought} | turn | {"reasoning_content": thought}


def _call(call: Any) -> Any:
    try:
        return {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
    except (KeyError, TypeError, ValueError):  # no call as OpenAI writes it: the template says what it thinks of that
        return call
