"""An engine of vLLM in this process, driven step by step: a step is a round of all sequences.

Where vLLM has lengths by batch, each step looks its length up in a table of the scheduler. Here the table is set before
a text, so that settings that differ only in lengths share an engine; else each would load and compile its own models.
"""

from __future__ import annotations

import gc
import importlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import MeasurementError
from ...planner.strategies.lookup import find_continuation
from ...profiler.records.architecture import Architecture
from ...profiler.records.configuration import architecture_of
from ..models.loading import first_line, load_config
from .measured import EngineCounters, EngineText, Load
from .round_counts import RoundCounts
from .setting import Setting
from .vllm import LAST_BATCH, ROWS

LEAST_BATCHED = 2048  # tokens of a step: vLLM's own least
BLOCK = 128  # tokens of a block of keys and values on a CPU
ROOMY = 2  # times what is needed: blocks of two models are of one size, and weights are packed beside themselves
Arguments = dict[str, Any]  # of vLLM


class VLLMEngine:
    """An engine with one model and one source of drafts."""

    def __init__(self, model: Path, setting: Setting | None, load: Load, *, dtype: str) -> None:
        """Load the models; `setting` has the longest length of all that share them; MeasurementError if it fails."""
        self.log = _Log()
        self._asked = 0  # requests so far, which name them
        try:
            self._engine: Any = _engine_of(model, setting, load, dtype, self.log)  # Any: vLLM may be absent
        except Exception as error:  # whatever vLLM and what it stands on raise
            reason = first_line(error)
            raise MeasurementError(f"vLLM does not start with {model}: {reason}; look at its files") from error

    def __del__(self) -> None:
        """Stop it and free its memory."""
        if hasattr(self, "_engine"):
            self._engine.engine_core.shutdown()
            self._engine = None
            gc.collect()

    def set_length(self, length: int) -> None:
        """Set the drafted tokens of every later round, at most those it was started with."""
        table = self._engine.engine_core.engine_core.scheduler.dynamic_sd_lookup
        table[:] = [length] * len(table)

    def next_tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the model's own token behind each of these but the last."""
        ((_, told),) = self.run([tokens], max_tokens=1, prompt_logprobs=1)[0]
        places = told.prompt_logprobs[1:]  # nothing stands before the first
        return tuple(max(place, key=lambda token: place[token].logprob) for place in places)

    def run(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[list[tuple[float, Any]]]:
        """Return every prompt's steps: end in ms, and vLLM's output; the first step reads all prompts."""
        vllm = importlib.import_module("vllm")
        kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        wanted = vllm.SamplingParams(temperature=0.0, detokenize=False, output_kind=kind, **sampling)
        names = [str(self._asked + number) for number in range(len(prompts))]
        self._asked += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, wanted.clone())
        steps: dict[str, list[tuple[float, Any]]] = {name: [] for name in names}
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = 1000.0 * time.perf_counter()
            for output in outputs:
                steps[output.request_id].append((now, output))
        return [steps[name] for name in names]


class VLLMDecoding:
    """An engine with one setting, None for plain decoding; `is_shared`: settings of other lengths run on it."""

    def __init__(self, engine: VLLMEngine, setting: Setting | None, *, is_shared: bool) -> None:
        self._engine, self._setting, self._is_shared = engine, setting, is_shared
        self._counts = RoundCounts()
        self._drafts = self._drafted = 0

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue prompts greedily, all at once; the first step reads all of them."""
        if self._setting is not None and self._is_shared:
            self._engine.set_length(self._setting.length)
        log = self._engine.log
        drafts, drafted = log.drafts, log.drafted
        steps = self._engine.run(prompts, max_tokens=new_tokens, ignore_eos=True)
        self._drafts += log.drafts - drafts
        self._drafted += log.drafted - drafted
        return tuple(self._text(prompt, own) for prompt, own in zip(prompts, steps, strict=True))

    def counters(self) -> EngineCounters:
        """Return the counts since the start: drafts are vLLM's, the rest is from texts: vLLM counts beyond ends."""
        return replace(self._counts.counters, drafts=self._drafts, drafted=self._drafted)

    def _text(self, prompt: Sequence[int], steps: Sequence[tuple[float, Any]]) -> EngineText:
        emitted = [tuple(output.outputs[0].token_ids) for _, output in steps]
        tokens = tuple(token for step in emitted for token in step)
        kept = tuple(len(step) - 1 for step in emitted[1:])  # the first step reads the prompt
        drafted, at = 0, 1
        for accepted in kept:
            found = self._drafted_behind([*prompt, *tokens[:at]])
            self._counts.add(found, accepted)
            drafted, at = drafted + found, at + 1 + accepted
        return EngineText(tokens=tokens, ms=steps[-1][0] - steps[0][0], drafted=drafted, accepted=sum(kept), kept=kept)

    def _drafted_behind(self, text: Sequence[int]) -> int:
        """Return how many tokens a round drafts behind a text, also past its end."""
        if self._setting is None:
            return 0
        if self._setting.drafter is not None:
            return self._setting.length
        most, least = (int(self._setting.knob(f"prompt_lookup_{end}")) for end in ("max", "min"))
        return len(find_continuation(text, self._setting.length, most, least, occurrence="first"))


class _Log:
    """Collects vLLM's counts of every step; an instance that vLLM calls as if it were the class."""

    def __init__(self) -> None:
        self.drafts = self.drafted = 0

    def __call__(self, *_: Any) -> _Log:
        return self

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        counted = None if scheduler_stats is None else scheduler_stats.spec_decoding_stats
        if counted is not None:
            self.drafts += counted.num_drafts
            self.drafted += counted.num_draft_tokens

    def log_engine_initialized(self) -> None:
        """Do nothing."""

    def log(self) -> None:
        """Do nothing."""


def architecture_in(folder: Path) -> Architecture:
    """Return the architecture in a model folder's config.json; ModelError if there is none, or it is unknown."""
    return architecture_of(load_config(str(folder)).to_dict())


def _engine_of(model: Path, setting: Setting | None, load: Load, dtype: str, log: _Log) -> Any:
    _let_modules_be_searched()
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs(
        model=str(model),
        tokenizer=str(model),
        skip_tokenizer_init=True,
        use_tqdm_on_load=False,
        dtype=dtype,
        max_model_len=load.capacity,
        max_num_seqs=load.concurrency,
        max_num_batched_tokens=max(LEAST_BATCHED, load.concurrency * load.capacity),  # all prompts in one step
        enable_prefix_caching=False,  # every prompt is read anew
        kv_cache_memory_bytes=_cache_bytes(model, setting, load, dtype),
        speculative_config=None if setting is None else _speculation(setting),
    )
    engine = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
    with warnings.catch_warnings(action="ignore"):  # of searching all modules
        return engine.from_engine_args(arguments, stat_loggers=[log])


def _speculation(setting: Setting) -> Arguments:
    found: Arguments = {"method": setting.method, "num_speculative_tokens": setting.length, **dict(setting.knobs)}
    if setting.drafter is not None:
        found["model"] = setting.drafter.path
    if setting.by_batch:
        found[ROWS] = [[1, LAST_BATCH, setting.length]]
    return found


def _cache_bytes(model: Path, setting: Setting | None, load: Load, dtype: str) -> int:
    """Return bytes for the keys and values of all sequences, target and drafter, in whole blocks."""
    drafter = () if setting is None or setting.drafter is None else (Path(setting.drafter.path),)
    a_token = sum(architecture_in(folder).kv_bytes_per_token(dtype) for folder in (model, *drafter))
    blocks = load.concurrency * (-(-load.capacity // BLOCK) + 1) + 1
    return ROOMY * a_token * blocks * BLOCK


def _let_modules_be_searched() -> None:
    """Keep llvmlite's library from answering for attributes that every object has.

    On a CPU vLLM searches all modules for objects with a `__dict__`, and that library takes any name for one of its
    functions: vLLM would not start beside numba, which it needs itself.
    """
    library = type(importlib.import_module("llvmlite.binding.ffi").lib)
    if "__dict__" not in vars(library).get("refused", ()):
        own = library.__getattr__

        def found(self: Any, name: str) -> Any:
            if name in library.refused:
                raise AttributeError(name)
            return own(self, name)

        library.__getattr__, library.refused = found, ("__dict__",)
