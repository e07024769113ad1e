"""A pipeline of OpenVINO GenAI with one setting: its texts and the counts of its drafts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import MeasurementError
from ...planner.strategies.lookup import find_continuation
from ..measured import EngineCounters, EngineText
from ..one_sequence import RoundCounts
from ..setting import Setting
from .export import THRESHOLD


class OpenVINOPipeline:
    """A pipeline with continuous batching, as in an exported program."""

    def __init__(self, target: Path, drafter: str, drafts: bool, properties: Mapping[str, Any]) -> None:
        """Load the models; `drafts` without `drafter` means prompt lookup; MeasurementError if one does not load."""
        genai = importlib.import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # every prompt is read anew
        more: dict[str, Any] = {"prompt_lookup": True} if drafts else {}
        try:
            if drafter:
                more = {"draft_model": genai.draft_model(drafter, "CPU", **properties)}
            self.generator = genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **more, **properties)
        except RuntimeError as error:
            raise MeasurementError(f"OpenVINO does not load {target}: {error}; look at its files") from error


class OpenVINODecoding:
    """A pipeline with one setting; None is plain decoding."""

    def __init__(self, pipeline: OpenVINOPipeline, setting: Setting | None) -> None:
        self._pipeline, self._setting = pipeline, setting
        self._counts = RoundCounts()
        self._drafted = 0

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue the one prompt greedily; rounds are counted, and timed by OpenVINO's own clock."""
        (prompt,) = prompts
        ids = importlib.import_module("openvino").Tensor(np.array([list(prompt)], dtype=np.int64))
        told = self._pipeline.generator.generate(ids, self._configuration(new_tokens))
        tokens, raw = tuple(int(token) for token in told.tokens[0]), told.perf_metrics.raw_metrics
        kept = [int(count) - 1 for count in raw.m_batch_sizes][1:]  # the first round reads the prompt
        by_round = self._by_round(prompt, tokens, kept)
        for count, accepted in zip(by_round, kept, strict=True):
            self._counts.add(count, accepted)
        drafted = sum(by_round)
        if self._has_model:
            drafted = drafted_in_all(int(told.extended_perf_metrics.get_num_draft_tokens()), by_round, kept)
        self._drafted += drafted
        text = EngineText(
            tokens=tokens,
            ms=float(raw.m_new_token_times[-1] - raw.m_new_token_times[0]),
            drafted=drafted,
            accepted=sum(kept),
            kept=tuple(kept),
        )
        return (text,)

    def counters(self) -> EngineCounters:
        """Return the counts since the start; only sums where drafts end at doubt."""
        counted = replace(self._counts.counters, drafted=self._drafted)
        return replace(counted, drafts=None, by_position=()) if self._doubts else counted

    @property
    def _has_model(self) -> bool:
        return self._setting is not None and self._setting.drafter is not None

    @property
    def _doubts(self) -> bool:
        return self._setting is not None and THRESHOLD in dict(self._setting.knobs)

    def _configuration(self, new_tokens: int) -> Any:  # Any: the wheel may be absent
        options: dict[str, Any] = {
            "max_new_tokens": new_tokens,
            "ignore_eos": True,
            "do_sample": False,
            "apply_chat_template": False,
        }
        if self._setting is not None:
            knobs = dict(self._setting.knobs)
            options |= knobs if THRESHOLD in knobs else {"num_assistant_tokens": self._setting.length, **knobs}
        return importlib.import_module("openvino_genai").GenerationConfig(**options)

    def _by_round(self, prompt: Sequence[int], tokens: Sequence[int], kept: Sequence[int]) -> list[int]:
        """Return what each round should draft: its length or the lookup's match, less where the text ends.

        For a lookup these are its drafts, as far as can be known. For a model they only say which rounds draft;
        OpenVINO itself counts the tokens.
        """
        found, at = [], 1
        for accepted in kept:
            left = len(tokens) - at - 1
            found.append(max(accepted, min(self._sought([*prompt, *tokens[:at]]), left)))
            at += 1 + accepted
        return found

    def _sought(self, text: Sequence[int]) -> int:
        if self._setting is None:
            return 0
        if self._setting.drafter is not None:
            return self._setting.length
        longest = int(dict(self._setting.knobs)["max_ngram_size"])
        return len(find_continuation(text, self._setting.length, longest, occurrence="first"))


def drafted_in_all(told: int, expected: Sequence[int], kept: Sequence[int]) -> int:
    """Return the tokens a model drafted for a text: OpenVINO's count, and the last round, which that leaves out.

    The last round is assumed to draft as the others did, within its length and the text's end, and at least what was
    accepted. `expected` is each round's draft if the set length is used, `kept` its accepted tokens.
    """
    if not kept:
        return told
    before = sum(drafted > 0 for drafted in expected[:-1])
    last = expected[-1] if not before else min(expected[-1], round(told / before))
    return told + max(last, kept[-1])
