"""OpenVINO GenAI as an engine that runs here: one sequence, plain, with a draft model, or by prompt lookup."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...planner.records.recording import Text
from ...planner.strategies.chain import ChainPolicy
from ...runtime.engine.loaded_chats import chats_of_target
from ...runtime.models.loading import positions_of_folder
from ..measured import EngineFacts, EngineLoad, EngineStart, notes_on_version
from ..one_sequence import WARM_UP_TOKENS, lookups, measurable, require_one_sequence
from ..schema import nearest_recorded
from ..setting import EngineConditions, EngineDrafter, Setting, Value
from ..vocabulary import PROBE, require_same_tokens
from .decoding import OpenVINODecoding, OpenVINOPipeline
from .export import EXPORT, properties_of
from .model_format import OPENVINO_FILE, as_openvino, require_able

WARM_UP = (3, 5, 7, 3, 5, 7, 3, 5)  # any tokens: the first forwards allocate
TOKENIZER_FILE = "openvino_tokenizer.xml"
UNCOUNTED = "OpenVINO does not count what its prompt lookup drafts; it is what the same search finds"


class RunningOpenVINO:
    """OpenVINO GenAI with one target on the CPU; a `MeasuredEngine`."""

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path) -> None:
        """Find or write the models, which are folders of OpenVINO or of Hugging Face.

        `dtype` "float32" also holds for computation and keys and values; "float16" only for stored weights. Converted
        models go to `folder`, and are used again for the same weights and dtype.

        Raises:
            RequestError: the wheels are not installed, the dtype is none of these, or there is nothing at a path.
            ModelError: a folder cannot be converted.
        """
        require_able(dtype)
        self.chats = chats_of_target(target)
        self.target, self._dtype, self._threads = as_openvino(target, folder, dtype), dtype, threads
        self.drafters = tuple(
            EngineDrafter(name=name, path=str(as_openvino(path, folder, dtype)), form="model")
            for name, path in drafters.items()
        )
        self._tokenizer = importlib.import_module("openvino_genai").Tokenizer(str(self.target))
        self._pipelines: WeakValueDictionary[str, OpenVINOPipeline] = WeakValueDictionary()  # by how they draft

    @cached_property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        found = ".".join(version("openvino-genai").split(".")[:3])
        recorded = nearest_recorded("openvino", found)
        return EngineFacts(
            name="openvino",
            version=found,
            recorded=recorded,
            regime=f"engine:openvino-{found}",
            dtype=self._dtype,
            threads=self._threads,
            most_concurrency=1,
            sets_acceptance=False,
            positions=positions_of_folder(self.target),
            notes=(*notes_on_version("openvino", found, recorded), UNCOUNTED),
        )

    def reading(self) -> AbstractContextManager[object]:
        """Return a context of nothing: the tokenizer is loaded."""
        return nullcontext()

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' tokens by the tokenizer beside the target."""
        return [_encoded(self._tokenizer, text) for text in texts]

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, by one inference per text; see `MeasuredEngine.next_tokens`."""
        self._require_same_tokens(drafter)
        path = Path(drafter.path) / OPENVINO_FILE
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

    def _require_same_tokens(self, drafter: EngineDrafter) -> None:
        if (Path(drafter.path) / TOKENIZER_FILE).is_file():
            own = importlib.import_module("openvino_genai").Tokenizer(drafter.path)
            otherwise = "OpenVINO would take its drafts for other words"
            require_same_tokens(
                drafter.name, _encoded(own, PROBE), _encoded(self._tokenizer, PROBE), otherwise=otherwise
            )

    def ngrams(self) -> Sequence[Setting]:
        """Return a few lengths of prompt lookup, the simplest first."""
        return lookups(EXPORT, self.facts.recorded)

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of a draft model's chains of one length."""
        return measurable(EXPORT, self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: EngineLoad) -> Iterator[OpenVINODecoding]:
        """Load and warm up a pipeline; settings that differ only in lengths share an open one."""
        require_one_sequence("OpenVINO", load)
        running = OpenVINODecoding(self._pipeline(setting), setting)
        running.decode([WARM_UP], min(WARM_UP_TOKENS, load.capacity - len(WARM_UP)))
        yield running

    def _pipeline(self, setting: Setting | None) -> OpenVINOPipeline:
        drafter = "" if setting is None or setting.drafter is None else setting.drafter.path
        key = "plain" if setting is None else drafter or setting.method
        found = self._pipelines.get(key)
        if found is None:
            found = OpenVINOPipeline(self.target, drafter, setting is not None, self._properties())
            self._pipelines[key] = found
        return found

    def _properties(self) -> Mapping[str, Value]:
        return properties_of(EngineConditions(dtype=self._dtype, threads=self._threads))


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:  # Any: the wheel may be absent
    return tuple(int(token) for token in tokenizer.encode(text).input_ids.data.ravel())


RUNNING: EngineStart = RunningOpenVINO
