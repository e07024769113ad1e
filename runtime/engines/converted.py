"""Models converted for an engine: places, number formats, and the mark of an OpenVINO folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...profiler.identity import identify

GgufDtype = Literal["f32", "f16", "bf16"]
GGUF_DTYPES: Mapping[str, GgufDtype] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # by torch's names
OPENVINO_DTYPES = {"float32": False, "float16": True}  # whether weights are stored in half
KNOWN_BY = 12  # digits of a hash
OPENVINO_FILE = "openvino_model.xml"  # of a folder of OpenVINO


def is_openvino(path: Path) -> bool:
    """Return whether a path is an OpenVINO folder."""
    return (path / OPENVINO_FILE).is_file()


def converted(model: Path, folder: Path, ending: str) -> Path:
    """Return the path of a model's other form, unique by its weights' hash; ModelError if it is not a model folder."""
    who = identify(model)
    return folder / f"{who.name}.{who.weights_hash[:KNOWN_BY]}.{ending}"
