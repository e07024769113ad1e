"""Engines that run here: bound to their models, which are converted to their own form where they have one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import RequestError
from ..profiler.cpu import available_bytes
from .drafter import require_language_model
from .measured import FREE_SOME, MeasuredEngine
from .table import FORMATS, RUNNING

WEIGHTS = ("safetensors", "bin")  # endings


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
    return RUNNING[name](target, drafters, dtype=dtype, threads=threads, folder=folder)


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
    return native if name not in FORMATS or native in FORMATS[name].dtypes else "float32"


def convert_model(name: str, model: Path, out: Path, *, dtype: str) -> Path:
    """Write a Hugging Face folder in the own form of an engine of `FORMATS`; return `out`, complete or absent.

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
            return FORMATS[name].write(model, Path(scratch) / out.name, dtype).rename(out)
    except OSError as error:
        raise RequestError(
            f"cannot write {model} as {out} ({error.strerror}: {error.filename}); look at its files, free some space "
            "or choose another place"
        ) from error
