"""llama.cpp's own form of models: GGUF files."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shlex
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RequestError
from ..conversion import EngineModelFormat, converted_path

if TYPE_CHECKING:
    from ...runtime.models.gguf import GgufDtype

GGUF_DTYPES: Mapping[str, GgufDtype] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # by torch's names


def gguf_of(path: str) -> str:
    """Return the GGUF file of a model: the path itself, or a name from its folder's."""
    return path if path.endswith(".gguf") else f"{Path(path).name}.gguf"


def require_dtype(dtype: str) -> None:
    """Raise RequestError where GGUF files have no such number format."""
    if dtype not in GGUF_DTYPES:
        raise RequestError(f"llama.cpp runs {', '.join(GGUF_DTYPES)} here, not {dtype!r}; give one with --dtype")


def as_gguf(path: Path, folder: Path, dtype: str) -> Path:
    """Return a model's GGUF file, written for a Hugging Face folder; RequestError if the path has neither."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir():
        raise RequestError(f"no GGUF file and no model folder at {path}; give one of these")
    out = converted_path(path, folder, f"{dtype}.gguf")
    if out.is_file():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # PyTorch does not stay in this process
        return apart.submit(write_as_gguf, path, out, dtype).result()


def write_as_gguf(model: Path, out: Path, dtype: str) -> Path:
    """Write a Hugging Face folder as a GGUF file and return the file.

    Raises:
        RequestError: `gguf` is not installed, or the dtype is none of GGUF's.
        ModelError: it cannot be converted.
    """
    require_dtype(dtype)
    if importlib.util.find_spec("gguf") is None:
        raise RequestError("llama.cpp: no gguf here, which writes its files; pip install gguf")
    from ...runtime.models.gguf import write_gguf

    return write_gguf(model, out, dtype=GGUF_DTYPES[dtype])


def _require_writable(folder: Path) -> None:
    from ...runtime.models.gguf import require_writable

    require_writable(folder)


def _elsewhere(path: str, out: str, dtype: str | None) -> str:
    told = () if dtype is None else ("--outtype", GGUF_DTYPES[dtype])
    return shlex.join(("python", "convert_hf_to_gguf.py", path, "--outfile", out, *told))


MODEL_FORMAT = EngineModelFormat(
    engine="llama.cpp",
    ending="gguf",
    named=gguf_of,
    require=_require_writable,
    write=write_as_gguf,
    elsewhere=_elsewhere,
    for_heads="llama.cpp's convert_hf_to_gguf.py",
    dtypes=tuple(GGUF_DTYPES),
)
