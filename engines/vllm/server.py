"""vLLM's server: one JSON object configures drafting; its rows give the length by batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from ...errors import RequestError
from ...planner.strategies.lookup import LookupPolicy
from ..command import value_of, without
from ..schema import nearest_recorded, require_known
from ..server_engine import Lengths, ServerEngine, Source, stages_of
from ..setting import EngineDrafter, Setting, Value
from .counters import COUNTERS
from .export import EXPORT, ROWS, options_of, speculation

SPECULATION = ("--speculative-config", "--speculative_config", "-sc")
NGRAMS = (2, 4)  # tokens of the n-grams that are searched
LENGTH = "num_speculative_tokens"
CHECKED = "0.32"


class VLLMServer(ServerEngine):
    """`vllm serve` and `python -m vllm.entrypoints.openai.api_server`."""

    name = "vllm"
    takes_table = True
    counters = COUNTERS
    example = "vllm serve MODEL"

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without anything that drafts."""
        kept = without(command, SPECULATION)
        dotted = [word.partition("=")[0] for word in kept if word.startswith(tuple(f"{one}." for one in SPECULATION))]
        return without(kept, dotted)

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return the command: vLLM always shows its counters."""
        return list(command)

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return draft models, what the command itself drafts with, and vLLM's n-gram search."""
        found = [
            Source(
                name=drafter.name,
                is_model=True,
                setting=Setting(
                    method="draft_model", drafter=drafter, knobs=(), length=longest, by_batch=True, off="any"
                ),
                checked=CHECKED,
            )
            for drafter in drafters
        ]
        text = value_of(command, SPECULATION)
        if text is not None:
            found.append(_own(text, longest))
        search = EXPORT.setting(
            LookupPolicy(length=longest, max_ngram=NGRAMS[1], min_ngram=NGRAMS[0], occurrence="first"),
            None,
            nearest_recorded(self.name, version),
        )
        if isinstance(search, Setting) and not any(one.setting.method == search.method for one in found):
            found.append(Source(name="n-grams", is_model=False, setting=search, checked=CHECKED))
        return tuple(found)

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the speculative configuration; rows of lengths where they differ by batch."""
        known = nearest_recorded(self.name, version)
        values = speculation(replace(source.setting, length=max(lengths.values())), stages_of(lengths))
        if source.checked == CHECKED:
            require_known(self.name, known, options_of(values))
        return "--speculative-config", json.dumps({**values, **source.kept})


def _own(text: str, longest: int) -> Source:
    """Return a command's own drafting with another length; RequestError where it is no JSON object with a length."""
    try:
        told = json.loads(text)
        method, model = str(told.get("method", "draft_model")), told.get("model")
    except (ValueError, AttributeError) as error:
        raise RequestError(f"the command's --speculative-config {text[:80]!r} is no JSON object; mend it") from error
    knobs: tuple[tuple[str, Value], ...] = tuple(
        (name, value)
        for name, value in told.items()
        if name not in ("method", "model", LENGTH) and isinstance(value, int | float | str | bool)
    )
    is_text = method in ("ngram", "suffix")
    drafter = None if model is None else EngineDrafter(name=PurePath(model).name, path=model, form="unknown")
    name = method if drafter is None else drafter.name
    setting = Setting(method=method, drafter=drafter, knobs=knobs, length=longest, by_batch=True, off="any")
    kept = {
        name: value
        for name, value in told.items()
        if name not in (LENGTH, ROWS) and not isinstance(value, int | float | str | bool)
    }
    found = Source(name=name, is_model=not is_text, setting=setting, kept=kept)
    return replace(found, checked=CHECKED) if method in ("ngram", "draft_model") else found


SERVER = VLLMServer()
