"""Models written anew for an engine: where they lie, in which number formats, and what tells a folder of OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...profiler.identity import identify

GgufDtype = Literal["f32", "f16", "bf16"]
GGUF_DTYPES: Mapping[str, GgufDtype] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # by torch's names
KNOWN_BY = 12  # digits of a hash
OPENVINO_FILE = "openvino_model.xml"  # of a folder of OpenVINO


def is_openvino(path: Path) -> bool:
    """Say whether a path is a folder of OpenVINO."""
    return (path / OPENVINO_FILE).is_file()


def converted(model: Path, folder: Path, ending: str) -> Path:
    """Return the place of a model's other form: checkpoints of one name, or of one path over time, never share it.

    Args:
        model: folder of Hugging Face.
        folder: where other forms lie.
        ending: of the form, number format included.

    Raises:
        ModelError: it is no such folder.
    """
    who = identify(model)
    return folder / f"{who.name}.{who.weights_hash[:KNOWN_BY]}.{ending}"
