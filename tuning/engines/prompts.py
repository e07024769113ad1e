"""The prompts of an engine's job in its target's tokens: conversations in its chat template, turn by turn.

transformers is imported where a conversation needs a chat template: with torch it takes 330 MB beside the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ModelError
from ...profiler.prompts import Prompt
from ...runtime.engines.measured import Load, MeasuredEngine
from ..conversations import turn_by_turn
from ..prompt_room import UNLIMITED
from .cut import cut_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePrompts:
    """What an engine reads, and what a reader must know of it."""

    ids: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def engine_prompts(
    engine: MeasuredEngine, target: Path, prompts: Sequence[Prompt], *, new_tokens: int, most: int | None
) -> EnginePrompts:
    """Return prompts in tokens, each later turn behind the engine's own answers to the turns before it.

    The chat template is at the target's path. `new_tokens` counts for answers too; `most` None is what positions allow.
    """
    notes = []
    template = _template_of(target) if any(prompt.messages for prompt in prompts) else None
    if template is not None:
        answers = _Answers(engine, target, template, new_tokens, most)
        prompts = turn_by_turn(prompts, answers)
    elif bare := sum(bool(prompt.messages) for prompt in prompts):
        notes.append(f"no chat template of the target is known: {bare} conversations are read as bare text")
        if later := sum(len(prompt.later) for prompt in prompts):
            notes.append(f"{later} later turns of them are not asked")
    room = _room(engine, new_tokens, most)
    whole = _cut(engine, prompts, template, UNLIMITED)
    if longer := sum(len(ids) > room for ids in whole):
        notes.append(f"{longer} of {len(whole)} prompts lose all but their last {room:,} tokens")
        whole = _cut(engine, prompts, template, room)
    return EnginePrompts(ids=tuple(whole), notes=tuple(notes))


class _Answers:
    def __init__(
        self,
        engine: MeasuredEngine,
        target: Path,
        template: PreTrainedTokenizerBase,
        new_tokens: int,
        most: int | None,
    ) -> None:
        from ...runtime.ends import end_tokens

        self._engine, self._template, self._new_tokens, self._most = engine, template, new_tokens, most
        self._ends = end_tokens(target, template)

    def __call__(self, prompts: Sequence[Prompt]) -> list[str]:
        room = _room(self._engine, self._new_tokens, self._most)
        asked = _cut(self._engine, prompts, self._template, room)
        load = Load(concurrency=1, capacity=max(map(len, asked)) + self._new_tokens + 1)
        with self._engine.started(None, load) as running:
            texts = [running.decode([ids], self._new_tokens)[0].tokens for ids in asked]
        return [self._read(text) for text in texts]

    def _read(self, tokens: Sequence[int]) -> str:
        """Return a text up to its end: an engine that is measured goes on behind that."""
        end = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        return str(self._template.decode(list(tokens[:end]), skip_special_tokens=True))


def _cut(
    engine: MeasuredEngine, prompts: Sequence[Prompt], template: PreTrainedTokenizerBase | None, most: int
) -> list[tuple[int, ...]]:
    def encode(texts: Sequence[str]) -> list[tuple[int, ...]]:
        encoded = engine.encode(texts)
        for place, prompt in enumerate(prompts):
            if template is not None and prompt.messages:
                from ...runtime.prompt_ids import chat_ids

                encoded[place] = chat_ids(template, prompt.messages, prompt.tools)
        return encoded

    return cut_prompts(encode, [prompt.text for prompt in prompts], most)


def _room(engine: MeasuredEngine, new_tokens: int, most: int | None) -> int:
    positions = engine.facts.positions
    return max(min(most or UNLIMITED, UNLIMITED if positions is None else positions - new_tokens), 1)


def _template_of(target: Path) -> PreTrainedTokenizerBase | None:
    from ...runtime.models.loading import load_tokenizer

    try:
        tokenizer = load_tokenizer(str(target))
    except ModelError:
        return None
    return tokenizer if tokenizer.chat_template else None
