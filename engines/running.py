"""Engines that can run here by name; a new one is a file and a line here, and one more if its models are converted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RequestError
from ..profiler.cpu import available_bytes
from ..runtime.engines.converted import OPENVINO_DTYPES
from ..runtime.engines.drafter import require_language_model
from ..runtime.engines.measured import FREE_SOME, MeasuredEngine

WEIGHTS = ("safetensors", "bin")  # endings
Maker = Callable[[Path, Mapping[str, Path], str, int, Path], MeasuredEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConverter:
    """An engine's own form of models: the ending of its names, and its converter from Hugging Face folders."""

    ending: str
    write: Callable[[Path, Path, str], Path]  # the folder, where to and the dtype; returns where to


def run_engine(
    name: str, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path
) -> MeasuredEngine:
    """Return an engine of `RUNNING` bound to its models, in its own format or as Hugging Face folders.

    Raises:
        RequestError: it cannot run here, a drafter is no language model, or memory does not hold the weights.
        ModelError: a model cannot be loaded or converted.
    """
    if name not in RUNNING:
        raise RequestError(f"{name} cannot be run here, {', '.join(RUNNING)} can; export a plan for it instead")
    for drafter, path in drafters.items():
        require_language_model(drafter, path, name)
    require_memory(name, target, tuple(drafters.values()))
    return RUNNING[name](target, drafters, dtype, threads, folder)


def require_memory(name: str, target: Path, drafters: Sequence[Path]) -> None:
    """Raise RequestError where the weights of a target and its largest drafter exceed free memory."""
    free = available_bytes()
    needed = _weight_bytes(target) + max(map(_weight_bytes, drafters), default=0)
    if free is not None and needed > free:
        raise RequestError(
            f"{name} needs {needed / 1e9:.1f} GB for the weights of {target} and its largest drafter, and "
            f"{free / 1e9:.1f} GB of memory are free; {FREE_SOME}"
        )


def _weight_bytes(model: Path) -> int:
    files = [model] if model.is_file() else [file for ending in WEIGHTS for file in model.glob(f"*.{ending}")]
    return sum(file.stat().st_size for file in files)


def own_dtype(name: str, native: str) -> str:
    """Return the engine's default number format: the device's `native`, float32 where the engine cannot run that."""
    return "float32" if name == "openvino" and native not in OPENVINO_DTYPES else native


def convert_model(name: str, model: Path, out: Path, *, dtype: str) -> Path:
    """Write a Hugging Face folder in the own form of an engine of `OWN_FORMS`; return `out`, complete or absent.

    Raises:
        RequestError: `out` exists or cannot be written, there is no folder at `model`, the engine's wheels are missing,
            or it does not run the dtype.
        ModelError: the model cannot be converted.
    """
    if out.exists():
        raise RequestError(f"{out} is there already and is not overwritten; remove it, or name another place with -o")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"cannot write {out}, there is no folder {out.absolute().parent}; make it or choose another")
    if not model.is_dir():
        raise RequestError(f"no model folder at {model}; give one of Hugging Face")
    try:
        with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}.") as scratch:
            return OWN_FORMS[name].write(model, Path(scratch) / out.name, dtype).rename(out)
    except OSError as error:
        raise RequestError(
            f"cannot write {model} as {out} ({error.strerror}: {error.filename}); look at its files, free some space "
            "or choose another place"
        ) from error


def _llama_cpp(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from .own_llama_cpp import OwnLlamaCpp

    return OwnLlamaCpp(target, drafters, dtype=dtype, threads=threads, folder=folder)


def _transformers(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from ..runtime.engines.transformers_running import RunningTransformers

    return RunningTransformers(target, drafters, dtype=dtype, threads=threads)


def _openvino(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from ..runtime.engines.openvino_running import RunningOpenVINO

    return RunningOpenVINO(target, drafters, dtype=dtype, threads=threads, folder=folder)


def _vllm(target: Path, drafters: Mapping[str, Path], dtype: str, threads: int, folder: Path) -> MeasuredEngine:
    from .own_vllm import OwnVLLM

    return OwnVLLM(target, drafters, dtype=dtype, threads=threads)


def _as_gguf(model: Path, out: Path, dtype: str) -> Path:
    from .own_llama_cpp import write_as_gguf

    return write_as_gguf(model, out, dtype)


def _as_openvino(model: Path, out: Path, dtype: str) -> Path:
    from ..runtime.engines.openvino_running import write_as_openvino

    return write_as_openvino(model, out, dtype)


RUNNING: Mapping[str, Maker] = {
    "llama.cpp": _llama_cpp,
    "openvino": _openvino,
    "transformers": _transformers,
    "vllm": _vllm,
}
OWN_FORMS: Mapping[str, ModelConverter] = {
    "llama.cpp": ModelConverter(ending="gguf", write=_as_gguf),
    "openvino": ModelConverter(ending="openvino", write=_as_openvino),
}
