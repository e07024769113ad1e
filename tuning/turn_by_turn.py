"""Conversations of several turns: each later one is another prompt, behind the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..profiler.prompt import Message, Prompt, conversation

Answering = Callable[[Sequence[Prompt]], Sequence[str]]


def turn_by_turn(prompts: Sequence[Prompt], answered: Answering) -> tuple[Prompt, ...]:
    """Return each turn of each prompt behind the answers before it; `answered` is called once per round of turns."""
    asked = [[prompt] for prompt in prompts]
    while waiting := [turns for turns in asked if turns[-1].later]:
        for turns, answer in zip(waiting, answered([own[-1] for own in waiting]), strict=True):
            turns.append(_behind(turns[-1], answer))
    return tuple(replace(turn, later=()) for turns in asked for turn in turns)


def _behind(prompt: Prompt, answer: str) -> Prompt:
    said = (Message(role="assistant", content=answer), Message(role="user", content=prompt.later[0]))
    more = {"tools": prompt.tools, "later": prompt.later[1:], "workload": prompt.workload}
    return conversation((*prompt.messages, *said), **more)
