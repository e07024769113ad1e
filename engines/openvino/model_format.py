"""OpenVINO's own form of models: folders of its intermediate representation."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

from ...errors import RequestError
from ..conversion import EngineModelFormat, converted_path

PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers")
OPENVINO_DTYPES = {"float32": False, "float16": True}  # whether weights are stored in half
OPENVINO_FILE = "openvino_model.xml"  # of a folder
ENDING = ".openvino"  # of what a converted folder is called


def is_openvino(path: Path) -> bool:
    """Return whether a path is an OpenVINO folder."""
    return (path / OPENVINO_FILE).is_file()


def openvino_of(path: str) -> str:
    """Return a model's OpenVINO folder: the path if it is one or ends on ".openvino", else the converted one's name."""
    is_one = path.endswith(ENDING) or is_openvino(Path(path))
    return path if is_one else f"{Path(path).name}{ENDING}"


def missing() -> str | None:
    """Return why OpenVINO GenAI cannot run here, None where it can."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"openvino: no {' and no '.join(absent)} here; pip install -e '.[openvino]'" if absent else None


def require_able(dtype: str) -> None:
    """Raise RequestError where OpenVINO GenAI cannot run here, or not in a number format."""
    if reason := missing():
        raise RequestError(reason)
    if dtype not in OPENVINO_DTYPES:
        raise RequestError(f"OpenVINO runs {', '.join(OPENVINO_DTYPES)} here, not {dtype!r}; give one with --dtype")


def as_openvino(path: Path, folder: Path, dtype: str) -> Path:
    """Return a model's OpenVINO folder, written for a Hugging Face folder; RequestError if the path has neither."""
    if is_openvino(path):
        return path
    if not path.is_dir():
        raise RequestError(f"no model folder at {path}; give one of OpenVINO or of Hugging Face")
    from .converter import supported, write_openvino

    supported(path)
    out = converted_path(path, folder, f"{dtype}.openvino")
    return out if is_openvino(out) else write_openvino(path, out, is_half=OPENVINO_DTYPES[dtype])


def write_as_openvino(model: Path, out: Path, dtype: str) -> Path:
    """Write a Hugging Face folder for OpenVINO and return the new folder.

    Raises:
        RequestError: the wheels are not installed, or the dtype is none of theirs.
        ModelError: it cannot be converted.
    """
    require_able(dtype)
    from .converter import write_openvino

    return write_openvino(model, out, is_half=OPENVINO_DTYPES[dtype])


def _require_supported(folder: Path) -> None:
    from .converter import supported

    supported(folder)


def _elsewhere(path: str, out: str, dtype: str | None) -> str:
    told = () if dtype is None else ("--weight-format", "fp32" if dtype == "float32" else "fp16")
    return shlex.join(("optimum-cli", "export", "openvino", "-m", path, *told, out))


MODEL_FORMAT = EngineModelFormat(
    engine="openvino",
    ending="openvino",
    named=openvino_of,
    require=_require_supported,
    write=write_as_openvino,
    elsewhere=_elsewhere,
    for_heads="optimum-cli export openvino",
    dtypes=tuple(OPENVINO_DTYPES),
)
