"""OpenVINO GenAI as an engine that runs here: one sequence, plain, with a draft model, or by prompt lookup."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...errors import MeasurementError, RequestError
from ...planner.policies import ChainPolicy
from ...planner.replay.recorded import Text
from ...planner.text.lookup import find_continuation
from .converted import converted
from .measured import EngineCounters, EngineFacts, EngineText, Load
from .one_sequence import WARM_UP_TOKENS, lookups, measurable, require_one_sequence
from .openvino import THRESHOLD, OpenVINO
from .openvino_model import MODEL_FILE, supported, write_openvino
from .round_counts import RoundCounts
from .schema import recorded_version
from .setting import EngineDrafter, Setting

PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers")
DTYPES = {"float32": False, "float16": True}  # whether weights are stored in half
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}  # else a CPU keeps 8 bits of keys and values
WARM_UP = (3, 5, 7, 3, 5, 7, 3, 5)  # any tokens: the first forwards allocate


def missing() -> str | None:
    """Return why OpenVINO GenAI cannot run here, None where it can."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"openvino: no {' and no '.join(absent)} here; pip install 'spectune[openvino]'" if absent else None


class RunningOpenVINO:
    """OpenVINO GenAI with one target on the CPU; a `MeasuredEngine`."""

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path) -> None:
        """Find or write the models.

        Args:
            target, drafters: folders of OpenVINO, or of Hugging Face, which are converted.
            dtype: "float32" computes and keeps keys and values in it; "float16" stores weights in half and leaves the
                rest to OpenVINO.
            threads: that compute.
            folder: where converted models go; one of the same weights and dtype is taken as it is.

        Raises:
            RequestError: the wheels are not installed, the dtype is none of these, or there is nothing at a path.
            ModelError: a folder cannot be converted.
        """
        if reason := missing():
            raise RequestError(reason)
        if dtype not in DTYPES:
            raise RequestError(f"OpenVINO runs {', '.join(DTYPES)} here, not {dtype!r}; give one with --dtype")
        self._target, self._dtype, self._threads = as_openvino(target, folder, dtype), dtype, threads
        self._drafters = tuple(
            EngineDrafter(name=name, path=str(as_openvino(path, folder, dtype)), form="model")
            for name, path in drafters.items()
        )
        self._tokenizer = importlib.import_module("openvino_genai").Tokenizer(str(self._target))
        self._pipelines: WeakValueDictionary[str, _Pipeline] = WeakValueDictionary()  # by how they draft

    @cached_property
    def facts(self) -> EngineFacts:
        """What runs here."""
        found = ".".join(version("openvino-genai").split(".")[:3])
        return EngineFacts(
            name="openvino",
            version=found,
            recorded=recorded_version("openvino", found),
            regime=f"engine:openvino-{found}",
            dtype=self._dtype,
            threads=self._threads,
            most_concurrency=1,
            sets_acceptance=False,
            notes=("OpenVINO does not count what its prompt lookup drafts; it is what the same search finds",),
        )

    @property
    def target(self) -> Path:
        """The target's folder."""
        return self._target

    @property
    def drafters(self) -> tuple[EngineDrafter, ...]:
        """The draft models, by their folders."""
        return self._drafters

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' tokens, by the tokenizer that lies with the target."""
        told = [self._tokenizer.encode(text).input_ids.data.ravel() for text in texts]
        return [tuple(int(token) for token in one) for one in told]

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next token at every place of texts, in one inference each."""
        path = Path(drafter.path) / MODEL_FILE
        compiled = importlib.import_module("openvino").Core().compile_model(path, "CPU", self._properties())
        asked = compiled.create_infer_request()
        found: list[tuple[int, ...]] = []
        for text in texts:
            ids = np.array([[*text.prompt, *text.continuation[:-1]]], dtype=np.int64)
            asked.reset_state()
            told = asked.infer(
                {
                    "input_ids": ids,
                    "attention_mask": np.ones_like(ids),
                    "position_ids": np.arange(ids.shape[1], dtype=np.int64)[None],
                    "beam_idx": np.zeros(1, dtype=np.int32),
                }
            )
            found.append(tuple(told["logits"][0, -text.positions :].argmax(axis=-1).tolist()))
        return found

    def ngrams(self) -> Sequence[Setting]:
        """Return a few lengths of prompt lookup, the simplest first."""
        return lookups(OpenVINO(), self.facts.recorded)

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of a draft model's chains of one length."""
        return measurable(OpenVINO(), self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: Load) -> Iterator[OpenVINODecoding]:
        """Load a pipeline, warmed up. Settings that differ in lengths alone share one as long as one of them is open.

        Raises:
            MeasurementError: it does not load, more than one sequence is asked for, or acceptance is to be set.
        """
        require_one_sequence("OpenVINO", load)
        running = OpenVINODecoding(self._pipeline(setting), setting)
        running.decode([WARM_UP], min(WARM_UP_TOKENS, load.capacity - len(WARM_UP)))
        yield running

    def _pipeline(self, setting: Setting | None) -> _Pipeline:
        drafter = "" if setting is None or setting.drafter is None else setting.drafter.path
        key = "plain" if setting is None else drafter or setting.method
        found = self._pipelines.get(key)
        if found is None:
            found = _Pipeline(self._target, drafter, setting is not None, self._properties())
            self._pipelines[key] = found
        return found

    def _properties(self) -> dict[str, Any]:
        return {"INFERENCE_NUM_THREADS": self._threads, **(EXACT if self._dtype == "float32" else {})}


def as_openvino(path: Path, folder: Path, dtype: str) -> Path:
    """Return a model's folder of OpenVINO, written where the path is one of Hugging Face.

    Raises:
        RequestError: there is no folder at the path.
        ModelError: it cannot be converted.
    """
    if (path / MODEL_FILE).is_file():
        return path
    if not path.is_dir():
        raise RequestError(f"no model folder at {path}; give one of OpenVINO or of Hugging Face")
    supported(path)
    out = converted(path, folder, f"{dtype}.openvino")
    return out if (out / MODEL_FILE).is_file() else write_openvino(path, out, is_half=DTYPES[dtype])


class _Pipeline:
    """A pipeline with continuous batching, as an exported program makes it."""

    def __init__(self, target: Path, drafter: str, drafts: bool, properties: Mapping[str, Any]) -> None:
        genai = importlib.import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # every prompt is read anew
        more: dict[str, Any] = {"prompt_lookup": True} if drafts else {}
        if drafter:
            more = {"draft_model": genai.draft_model(drafter, "CPU", **properties)}
        try:
            self.generator = genai.LLMPipeline(str(target), "CPU", scheduler_config=scheduler, **more, **properties)
        except RuntimeError as error:
            raise MeasurementError(f"OpenVINO does not load {target}: {error}; look at its files") from error


class OpenVINODecoding:
    """A pipeline at work with one setting."""

    def __init__(self, pipeline: _Pipeline, setting: Setting | None) -> None:
        """Take a loaded pipeline; None is plain decoding."""
        self._pipeline, self._setting = pipeline, setting
        self._counts = RoundCounts()
        self._drafted = self._accepted = 0

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue the one prompt greedily; its rounds are always told, and it is timed by OpenVINO's own clock."""
        (prompt,) = prompts
        ids = importlib.import_module("openvino").Tensor(np.array([list(prompt)], dtype=np.int64))
        told = self._pipeline.generator.generate(ids, self._configuration(new_tokens))
        tokens, raw = tuple(int(token) for token in told.tokens[0]), told.perf_metrics.raw_metrics
        kept = [int(count) - 1 for count in raw.m_batch_sizes][1:]  # the first round reads the prompt
        by_round = self._by_round(prompt, tokens, kept)
        for count, accepted in zip(by_round, kept, strict=True):
            self._counts.add(count, accepted)
        drafted = sum(by_round)
        if self._doubts:  # OpenVINO counts no draft of a request's last round
            drafted = max(sum(kept), int(told.extended_perf_metrics.get_num_draft_tokens()))
        text = EngineText(
            tokens=tokens,
            ms=float(raw.m_new_token_times[-1] - raw.m_new_token_times[0]),
            drafted=drafted,
            accepted=sum(kept),
            kept=tuple(kept),
        )
        self._drafted += text.drafted
        self._accepted += text.accepted
        return (text,)

    def counters(self) -> EngineCounters:
        """Return what was counted since the start; of drafts that end at doubt the sums alone."""
        if self._doubts:
            return EngineCounters(drafts=None, drafted=self._drafted, accepted=self._accepted)
        return self._counts.counters

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
        """Return what each round drafted: its length, less where the text ends, or what the lookup's search finds."""
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
