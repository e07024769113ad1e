"""llama.cpp as an engine that runs here: GGUF files as they are, or Hugging Face folders converted to them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from ...errors import RequestError
from ...planner.records.recording import Text
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import AnyOccurrence, LookupPolicy
from .converted import GGUF_DTYPES, converted
from .gguf_file import write_gguf
from .llama_build import llama_build, missing_server
from .llama_cpp import LlamaCpp
from .llama_server import SYNTHETIC, LlamaServer
from .measured import EngineFacts, Load, notes_on_version
from .one_sequence import measurable
from .positions import positions_of_gguf
from .setting import EngineDrafter, Setting
from .vocabulary import PROBE, require_same_tokens

SEARCHES: Mapping[AnyOccurrence, tuple[int, ...]] = {"last": (1, 2, 3), "mapped": (2, 3)}  # sizes of n-grams
NGRAM_LENGTHS = (4, 8, 16)  # tokens copied behind one
SIDE_BY_SIDE = 8  # texts along which a draft model is asked at once
NO_COUNT = (
    "this llama.cpp does not count rounds that draft, only drafted tokens: n-grams are taken to copy their full length"
)


def missing() -> str | None:
    """Return why llama.cpp cannot run here, None where it can."""
    reason = missing_server()
    return None if reason is None else f"llama.cpp: {reason}"


def require_dtype(dtype: str) -> None:
    """Raise RequestError where GGUF files have no such number format."""
    if dtype not in GGUF_DTYPES:
        raise RequestError(f"llama.cpp runs {', '.join(GGUF_DTYPES)} here, not {dtype!r}; give one with --dtype")


class RunningLlamaCpp:
    """llama.cpp with one target; a `MeasuredEngine`."""

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
        self._target = as_gguf(target, folder, dtype)
        self._dtype, self._threads = dtype, threads
        self._probe: tuple[int, ...] = ()  # as the target reads it, once that is known
        self._drafters = tuple(
            EngineDrafter(name=name, path=str(as_gguf(path, folder, dtype)), form="model")
            for name, path in drafters.items()
        )

    @cached_property
    def facts(self) -> EngineFacts:
        """The engine's version and its properties here."""
        build = llama_build()
        is_new = build.knows(SYNTHETIC)  # and such a build counts rounds
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
            positions=positions_of_gguf(self._target),
            notes=(
                *notes_on_version("llama.cpp", build.version, build.recorded),
                *([build.built] if build.built else []),
                *([] if is_new else [NO_COUNT]),
            ),
        )

    @property
    def target(self) -> Path:
        """The target's GGUF file."""
        return self._target

    @property
    def drafters(self) -> tuple[EngineDrafter, ...]:
        """The draft models, by their GGUF files."""
        return self._drafters

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' tokens by the target's file."""
        with self.started(None, Load(concurrency=1, capacity=64)) as server:
            *found, self._probe = [server.encode(text) for text in (*texts, PROBE)]
        return found

    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return a draft model's own next tokens, by a server with it as target; see `MeasuredEngine.next_tokens`."""
        room = max(len(text.prompt) + len(text.continuation) for text in texts) + 1
        load = Load(concurrency=min(len(texts), SIDE_BY_SIDE), capacity=room)
        found: list[tuple[int, ...]] = []
        if not self._probe:
            self.encode([])
        with self._server(Path(drafter.path), None, load) as server:
            otherwise = "llama.cpp would translate its drafts, and what that keeps and costs is not known here"
            require_same_tokens(drafter.name, server.encode(PROBE), self._probe, otherwise=otherwise)
            for at in range(0, len(texts), load.concurrency):
                found += server.next_tokens(texts[at : at + load.concurrency])
        return found

    def ngrams(self) -> Sequence[Setting]:
        """Return llama.cpp's n-gram searches, plain and with memory, at a few sizes; none in old builds."""
        ways = [
            LookupPolicy(length=length, max_ngram=size, min_ngram=size, occurrence=occurrence)
            for occurrence, sizes in SEARCHES.items()
            for size in sizes
            for length in NGRAM_LENGTHS
        ]
        found = (LlamaCpp().setting(way, None, self.facts.recorded) for way in ways)
        return [setting for setting in found if isinstance(setting, Setting)]

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of a draft model's chains without early end."""
        return measurable(LlamaCpp(), self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: Load) -> Iterator[LlamaServer]:
        """Start a server, which warms itself up; it stops when the context is left."""
        with self._server(self._target, setting, load) as server:
            yield server

    @contextmanager
    def _server(self, model: Path, setting: Setting | None, load: Load) -> Iterator[LlamaServer]:
        server = LlamaServer(model, setting, load, dtype=self._dtype, threads=self._threads)
        try:
            yield server
        finally:
            server.close()


def as_gguf(path: Path, folder: Path, dtype: str) -> Path:
    """Return a model's GGUF file, written for a Hugging Face folder; RequestError if the path has neither."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir():
        raise RequestError(f"no GGUF file and no model folder at {path}; give one of these")
    out = converted(path, folder, f"{dtype}.gguf")
    if out.is_file():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    return write_as_gguf(path, out, dtype)


def write_as_gguf(model: Path, out: Path, dtype: str) -> Path:
    """Write a Hugging Face folder as a GGUF file and return the file.

    Raises:
        RequestError: `gguf` is not installed, or the dtype is none of GGUF's.
        ModelError: it cannot be converted.
    """
    require_dtype(dtype)
    if importlib.util.find_spec("gguf") is None:
        raise RequestError("llama.cpp: no gguf here, which writes its files; pip install gguf")
    return write_gguf(model, out, dtype=GGUF_DTYPES[dtype])
