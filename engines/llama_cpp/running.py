"""llama.cpp as an engine that runs here: GGUF files as they are, or Hugging Face folders converted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from ...errors import MeasurementError, RequestError
from ...planner.records.recording import Text
from ...planner.strategies.lookup import AnyOccurrence, LookupPolicy
from ...profiler.cpu import available_bytes
from ...profiler.gguf_file import read_gguf
from ...profiler.prompt import Prompt
from ...runtime.engine.chat_turns import refusal, turns_of
from ...runtime.engine.folder_chats import until
from ..measured import FREE_SOME, Chats, EngineFacts, EngineLoad, EngineStart, notes_on_version
from ..own_server import OwnServer, TokenForm
from ..server import Server
from ..setting import EngineConditions, EngineDrafter, Schedule, Setting, Stage
from ..vocabulary import PROBE, require_same_tokens
from .build import llama_build
from .export import EXPORT
from .gguf_shape import positions_of_gguf, shape_of_gguf
from .model_format import as_gguf, require_dtype
from .server import SERVER

SEARCHES: Mapping[AnyOccurrence, tuple[int, ...]] = {"last": (1, 2, 3), "mapped": (2, 3)}  # sizes of n-grams
NGRAM_LENGTHS = (4, 8, 16)  # tokens copied behind one
SIDE_BY_SIDE = 8  # texts along which a draft model is asked at once
SYNTHETIC = "--spec-synth-rates"  # of newer builds, which also count rounds
OWN_BYTES = 100_000_000  # of a server without any model
TEMPLATE, KINDS, CONTROL = "tokenizer.chat_template", "tokenizer.ggml.token_type", 3
ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
NO_TOKEN = -1  # of a model that would end the text
NO_COUNT = (
    "this llama.cpp does not count rounds that draft, only drafted tokens: n-grams are taken to copy their full length"
)
OTHERWISE = "llama.cpp would translate its drafts, and what that keeps and costs is not known here"


class OwnLlamaCpp(OwnServer):
    """`llama-server` on the CPU."""

    server = SERVER
    form = TokenForm(  # a stream leaves out tokens of characters that are cut
        path="/completion", more={"cache_prompt": True, "stream": False, "return_tokens": True}, slot="id_slot"
    )
    searches = tuple(
        LookupPolicy(length=length, max_ngram=size, min_ngram=size, occurrence=occurrence)
        for occurrence, sizes in SEARCHES.items()
        for size in sizes
        for length in NGRAM_LENGTHS
    )

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path) -> None:
        """Find or write the GGUF files of models, which are GGUF files or Llama folders of Hugging Face.

        A GGUF file has its own number format; `dtype` then only sets that of keys and values. Converted files go to
        `folder`, and are used again for the same weights and dtype.

        Raises:
            RequestError: there is no llama-server, or the dtype is none of GGUF's.
            ModelError: a folder cannot be converted.
        """
        require_dtype(dtype)
        llama_build()
        found = [
            EngineDrafter(name=name, path=str(as_gguf(path, folder, dtype)), form="model")
            for name, path in drafters.items()
        ]
        super().__init__(as_gguf(target, folder, dtype), found, dtype=dtype, threads=threads)
        self._probe: tuple[int, ...] = ()  # as the target reads it, once that is known
        self._reader: Server | None = None  # the target's, while it runs

    @cached_property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        build = llama_build()
        is_new = build.knows(SYNTHETIC)
        return EngineFacts(
            name="llama.cpp",
            version=build.version,
            recorded=build.recorded,
            regime=f"engine:llama.cpp-{build.version}",
            dtype=self._dtype,
            threads=self._threads,
            most_concurrency=None,
            sets_acceptance=is_new,
            most_open=1,
            positions=positions_of_gguf(self.target),
            notes=(
                *notes_on_version("llama.cpp", build.version, build.recorded),
                *([build.built] if build.built else []),
                *([] if is_new else [NO_COUNT]),
            ),
        )

    @property
    def chats(self) -> Chats | None:
        """How the server reads conversations; None where the target's file has no chat template."""
        template = read_gguf(self.target).said.get(TEMPLATE)
        return _ServedChats(self, template) if isinstance(template, str) else None

    @contextmanager
    def serving(self, model: Path, setting: Setting | None, load: EngineLoad) -> Iterator[Server]:
        """Start a server with any model; the target's tokenizes, too, while it runs."""
        with super().serving(model, setting, load) as server:
            if model != self.target:
                yield server
                return
            self._reader = server
            try:
                yield server
            finally:
                self._reader = None

    @contextmanager
    def reading(self) -> Iterator[Server]:
        """Yield the target's server that runs; else start one that only tokenizes, and stop it behind the block."""
        if self._reader is not None:
            yield self._reader
            return
        with self.serving(self.target, None, EngineLoad(concurrency=1, capacity=64)) as server:
            yield server

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' tokens by the target's file."""
        with self.reading() as server:
            *found, self._probe = [_encoded(server, text) for text in (*texts, PROBE)]
        return found

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, one request for each place of the texts."""
        room = max(len(text.prompt) + len(text.continuation) for text in texts) + 1
        load = EngineLoad(concurrency=min(len(texts), SIDE_BY_SIDE), capacity=room)
        found: list[tuple[int, ...]] = []
        if not self._probe:
            self.encode([])
        with self.serving(Path(drafter.path), None, load) as server:
            require_same_tokens(drafter.name, _encoded(server, PROBE), self._probe, otherwise=OTHERWISE)
            for at in range(0, len(texts), load.concurrency):
                found += _followed(server, texts[at : at + load.concurrency])
        return found

    def command(self, model: Path, setting: Setting | None, load: EngineLoad) -> list[str]:
        """Return a command with the flags of the setting's export; the load's room holds the last round's drafts."""
        build = llama_build()
        require_memory(model, setting, load, self._dtype)
        if load.synthetic and not build.knows(SYNTHETIC):
            raise MeasurementError(f"llama.cpp {build.version} has no {SYNTHETIC}; acceptance cannot be set by hand")
        schedule = Schedule(
            setting=setting,
            stages=(Stage(first=1, last=None, length=0 if setting is None else setting.length),),
            most_batch=load.concurrency,
            serving=EngineConditions(dtype=self._dtype, threads=self._threads),
        )
        return [
            *(build.path, "--model", str(model), "--ctx-size", str(load.concurrency * load.capacity), "--metrics"),
            *("--cache-ram", "0"),  # prompts stay in their slots and nowhere else
            *EXPORT.flags(schedule, str(model), build.recorded),
            *((SYNTHETIC, ",".join(map(str, load.synthetic))) if load.synthetic else ()),
        ]


class _ServedChats:
    """Conversations as the server reads them for its users."""

    def __init__(self, engine: OwnLlamaCpp, template: str) -> None:
        self._engine, self._template = engine, template

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        with self._engine.reading() as server:
            return [_encoded(server, self._written(server, prompt)) for prompt in prompts]

    def decode(self, texts: Sequence[Sequence[int]]) -> list[str]:
        said = read_gguf(self._engine.target).said
        kinds = said.get(KINDS, ())
        control = [token for token, kind in enumerate(kinds) if kind == CONTROL] if isinstance(kinds, tuple) else []
        ends = frozenset((*control, *(int(str(said[name])) for name in ENDS if name in said)))
        with self._engine.reading() as server:
            return [str(server.post("/detokenize", {"tokens": until(text, ends)})["content"]) for text in texts]

    def _written(self, server: Server, prompt: Prompt) -> str:
        tools = {"tools": list(prompt.tools)} if prompt.tools else {}
        try:
            told = server.post("/apply-template", {"messages": turns_of(prompt.messages, self._template), **tools})
            return str(told["prompt"])
        except MeasurementError as error:
            raise refusal(prompt.messages, error) from error


def _encoded(server: Server, text: str) -> tuple[int, ...]:
    return tuple(server.post("/tokenize", {"content": text, "add_special": True})["tokens"])


def _followed(server: Server, texts: Sequence[Text]) -> list[tuple[int, ...]]:
    """Return the model's next token at every place behind the continuations' first; -1 for end of text."""
    found: list[list[int]] = [[] for _ in texts]
    for place in range(1, max(len(text.continuation) for text in texts)):
        asked = [number for number, text in enumerate(texts) if place < len(text.continuation)]
        given = [[*texts[number].prompt, *texts[number].continuation[:place]] for number in asked]
        body = {"prompt": given, "n_predict": 1, "return_tokens": True, "temperature": 0.0, "cache_prompt": True}
        told = server.post("/completion", body)
        answers = sorted(told, key=lambda one: int(one["index"])) if isinstance(told, list) else [told]
        for number, one in zip(asked, answers, strict=True):
            found[number].append(int(one["tokens"][0]) if one["tokens"] else NO_TOKEN)
    return [tuple(one) for one in found]


def needed_bytes(target: Path, setting: Setting | None, load: EngineLoad, dtype: str) -> int:
    """Return a server's bytes: weights, KV caches of all slots and logits, of target and drafter."""
    drafter = None if setting is None or setting.drafter is None else Path(setting.drafter.path)
    tokens, number_bytes = load.concurrency * load.capacity, 4 if dtype == "float32" else 2
    files = [target] if drafter is None else [target, drafter]
    beside = [shape_of_gguf(file).bytes_beside_weights(tokens, number_bytes) for file in files]
    return OWN_BYTES + sum(file.stat().st_size for file in files) + sum(beside)


def require_memory(target: Path, setting: Setting | None, load: EngineLoad, dtype: str) -> None:
    """Raise RequestError where the machine, or this process's control group, has too little memory."""
    needed, free = needed_bytes(target, setting, load, dtype), available_bytes()
    if free is not None and needed > free:
        who = "" if setting is None or setting.drafter is None else f" with {setting.drafter.name}"
        raise RequestError(
            f"llama.cpp needs {needed / 1e9:.1f} GB for {target}{who} and {load.concurrency} sequences of "
            f"{load.capacity} tokens, and {free / 1e9:.1f} GB of memory are free; {FREE_SOME}"
        )


RUNNING: EngineStart = OwnLlamaCpp
