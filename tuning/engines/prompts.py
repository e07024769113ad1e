"""The prompts of an engine's job in its target's tokens: conversations in its chat template, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...engines.measured import Chats, EngineLoad, MeasuredEngine
from ...profiler.prompts import Prompt
from ..positions import UNLIMITED
from ..turn_by_turn import turn_by_turn
from .cut import Encoded, encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePrompts:
    """What an engine reads, and what a reader must know of it."""

    ids: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def engine_prompts(
    engine: MeasuredEngine, prompts: Sequence[Prompt], *, new_tokens: int, most: int | None
) -> EnginePrompts:
    """Return prompts in tokens, each later turn behind the engine's own answers to the turns before it.

    `new_tokens` counts for answers too; `most` None is what positions allow.
    """
    notes = []
    room = _room(engine, new_tokens, most)
    chats = engine.chats if any(prompt.messages for prompt in prompts) else None
    if chats is not None:
        prompts = turn_by_turn(prompts, partial(_answers, engine, chats, room, new_tokens))
    elif bare := sum(bool(prompt.messages) for prompt in prompts):
        notes.append(f"no chat template of the target is known: {bare} conversations are read as bare text")
        if later := sum(len(prompt.later) for prompt in prompts):
            notes.append(f"{later} later turns of them are not asked")
    read = _encoded(engine, prompts, chats)
    if longer := sum(len(ids) > room for ids in read.whole):
        notes.append(f"{longer} of {len(read.whole)} prompts lose all but their last {room:,} tokens")
    return EnginePrompts(ids=read.cut(room), notes=tuple(notes))


def _answers(engine: MeasuredEngine, chats: Chats, room: int, new_tokens: int, prompts: Sequence[Prompt]) -> list[str]:
    asked = _encoded(engine, prompts, chats).cut(room)
    load = EngineLoad(concurrency=1, capacity=max(map(len, asked)) + new_tokens + 1)
    with engine.started(None, load) as running:
        return chats.decode([running.decode([ids], new_tokens)[0].tokens for ids in asked])


def _encoded(engine: MeasuredEngine, prompts: Sequence[Prompt], chats: Chats | None) -> Encoded:
    def encode(texts: Sequence[str]) -> list[tuple[int, ...]]:
        found = engine.encode(texts)
        spoken = [place for place, prompt in enumerate(prompts) if chats is not None and prompt.messages]
        if chats is not None and spoken:
            for place, ids in zip(spoken, chats.encode([prompts[place] for place in spoken]), strict=True):
                found[place] = ids
        return found

    with engine.reading():
        return encoded(encode, [prompt.text for prompt in prompts])


def _room(engine: MeasuredEngine, new_tokens: int, most: int | None) -> int:
    positions = engine.facts.positions
    return max(min(most or UNLIMITED, UNLIMITED if positions is None else positions - new_tokens), 1)
