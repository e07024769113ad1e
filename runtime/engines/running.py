"""Engines that can run here by name; a new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import RequestError
from .measured import MeasuredEngine

Maker = Callable[[Path, Mapping[str, Path], str, int, Path], MeasuredEngine]


def run_engine(
    name: str, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path
) -> MeasuredEngine:
    """Return an engine bound to its models.

    Args:
        name: one of `RUNNING`.
        target, drafters: in the engine's own format, or folders of Hugging Face.
        dtype: number format of the weights.
        threads: that compute.
        folder: for files that are converted.

    Raises:
        RequestError: it cannot run here, and why.
        ModelError: a model cannot be loaded or converted.
    """
    if name not in RUNNING:
        raise RequestError(f"{name} cannot be run here, {', '.join(RUNNING)} can; export a plan for it instead")
    return RUNNING[name](target, drafters, dtype, threads, folder)


def own_dtype(name: str, native: str) -> str:
    """Return the number format an engine runs in unless another is asked for.

    Args:
        name: one of `RUNNING`.
        native: of the device; float32 where the engine does not run it.
    """
    from .openvino_running import DTYPES

    return "float32" if name == "openvino" and native not in DTYPES else native


def _llama_cpp(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from .llama_running import RunningLlamaCpp

    return RunningLlamaCpp(target, drafters, dtype=dtype, threads=threads, folder=folder)


def _transformers(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from .transformers_running import RunningTransformers

    return RunningTransformers(target, drafters, dtype=dtype, threads=threads)


def _openvino(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from .openvino_running import RunningOpenVINO

    return RunningOpenVINO(target, drafters, dtype=dtype, threads=threads, folder=folder)


RUNNING: Mapping[str, Maker] = {"llama.cpp": _llama_cpp, "openvino": _openvino, "transformers": _transformers}
