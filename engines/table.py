"""The engines by name; a new one is a folder of its parts and a line here.

A folder is called like its engine, and a part is a file with a constant of the same name in capitals. Parts are loaded
when they are used, since engines differ in what they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .base import ExportEngine
    from .conversion import EngineModelFormat
    from .counters import CounterNames
    from .measured import EngineStart
    from .server_engine import ServerEngine

NAMES = (
    "sglang",
    "vllm",
    "tensorrt-llm",
    "transformers",
    "llama.cpp",
    "openvino",
)
Part = TypeVar("Part", covariant=True)


def folder_of(name: str) -> Path:
    """Return the folder of an engine."""
    return Path(__file__).parent / name.replace(".", "_").replace("-", "_")


class EngineParts(Mapping[str, Part]):
    """One part of every engine that has it, by the engine's name."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._names = tuple(name for name in NAMES if (folder_of(name) / f"{file}.py").is_file())

    def __getitem__(self, name: str) -> Part:
        """Return the part, loaded now; KeyError where the engine has none."""
        if name not in self._names:
            raise KeyError(name)
        found: Part = getattr(import_module(f".{folder_of(name).name}.{self._file}", __package__), self._file.upper())
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


ENGINES: Mapping[str, ExportEngine] = EngineParts("export")  # what each runs of a plan, and as which settings
SERVERS: Mapping[str, ServerEngine] = EngineParts("server")  # that are started or reached, put under load and tuned
COUNTERS: Mapping[str, CounterNames] = EngineParts("counters")  # of the servers with a Prometheus page
RUNNING: Mapping[str, EngineStart] = EngineParts("running")  # that run here, to be profiled, planned for and validated
FORMATS: Mapping[str, EngineModelFormat] = EngineParts("model_format")  # of those with a form of models of their own
